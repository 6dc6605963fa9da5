"""The public producer that blocks: records go from any thread to the sender on the shared loop.

Owns the way of a record to the loop, in the order of ``send``. Not batches, order and retries
there: see ``tidelog.client.producing``. Not settings and serializers: see ``tidelog.aio.producer``.

A thread appends its record to the inbox and wakes the loop if it is not awake; the loop accepts all
that it finds, in pieces. So a burst of records costs one wake-up. Bounds: ``buffer_memory`` holds
for the records in the inbox and in the sender together, and ``send`` waits above it.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, Unpack

from tidelog.aio.arguments import seconds
from tidelog.aio.producer import Headers, check_place, not_flushed
from tidelog.aio.producer import Producer as AsyncProducer
from tidelog.aio.producer_configs import ProducerConfigs
from tidelog.blocking.derived_methods import ProducerMethods
from tidelog.blocking.loop import ClientLoop
from tidelog.blocking.send_future import FutureRecordMetadata
from tidelog.client.errors import ClientError, GaveUp, WrongState
from tidelog.client.producing.sender import RECORD_OVERHEAD_BYTES
from tidelog.records.record import Header

PIECE = 1_000
"""Records that the loop accepts in one turn: some milliseconds, in which other clients wait."""

CLOSE_GRACE_S = 10.0
"""How long the end of connections may take, beyond the time-out of ``close``."""

Result = TypeVar("Result")

_Record = tuple[
    str,
    bytes | None,
    bytes | None,
    int | None,
    int | None,
    list[Header],
    FutureRecordMetadata,
]


class Producer(ProducerMethods):
    """Writes records to topics; records of one key stay in order while topics grow and shrink.

    It connects when it is made; close it, or use ``with``. Its settings are Kafka's producer
    configurations in snake case (``ProducerConfigs``). It is thread-safe: records of one thread are
    written in the order of ``send``. Raises KafkaConfigurationError for a setting that is unknown
    or not valid, NoBrokersAvailable when no broker responds.

    With a ``transactional_id`` it writes in transactions: ``init_transactions`` once, and then
    ``with producer.transaction()`` around the records of each. One thread at a time begins and ends
    them.
    """

    def __init__(self, **configs: Unpack[ProducerConfigs]) -> None:
        self._inner = AsyncProducer(**configs)
        self._inbox: deque[_Record] = deque()
        self._awake = False
        self._put_bytes = 0
        self._taken_bytes = 0
        self._slow: asyncio.Task[None] | None = None
        self._topics: set[str] = set()
        self._closed = False
        self._loop = ClientLoop()
        try:
            self._loop.run(self._inner.start())
        except BaseException:
            self._closed = True
            self._loop.leave()
            raise
        self._sender = self._inner.sender
        self._memory = self._sender.memory
        super().__init__(self._in_order, self._inner)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"a {type(self).__name__} was not closed", ResourceWarning, stacklevel=2)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """Accept a record, and return the future of its place in the log.

        Waits for the topic's metadata and for memory, ``max_block_ms`` at most. Without a
        ``partition`` the key's hash chooses it, and the choice follows the topic when it grows or
        shrinks. A ``value`` of None is a tombstone.

        Raises UnknownTopicOrPartitionError for a topic that was never seen, KafkaTimeoutError when
        there was no memory in time, TypeError for a key or value that is not bytes,
        IllegalStateError when the producer is closed. All else fails the future: the broker's
        refusal, MessageSizeTooLargeError, KafkaTimeoutError after ``delivery_timeout_ms``.
        """
        if self._closed:
            raise WrongState("this producer is closed: open another one")
        encoded, key_bytes, checked = self._inner.encoded(topic, value, key, headers)
        if partition is not None or timestamp_ms is not None:
            check_place(partition, timestamp_ms)
        size = RECORD_OVERHEAD_BYTES + len(encoded or b"") + len(key_bytes or b"")
        if topic not in self._topics and not self._loop.is_current:
            self._loop.run(self._sender.topic(topic))
            self._topics.add(topic)
        waiting = self._put_bytes - self._taken_bytes
        used = waiting + self._memory.used
        if used and used + size > self._memory.limit:
            self._wait_for_room(size)
        future = FutureRecordMetadata(self._loop.is_on_loop)
        self._put_bytes += size
        self._inbox.append((topic, encoded, key_bytes, partition, timestamp_ms, checked, future))
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._take)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Send all accepted records now, and wait until each has its outcome.

        Raises KafkaTimeoutError after ``timeout`` seconds; the records stay accepted.
        """
        self._loop.run(self._flush(seconds(timeout)))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """``with producer.transaction():`` begins, and commits at the end.

        An exception aborts the transaction and goes on. A commit that does not end in time while
        records wait is aborted: TransactionAbortableError. Its KafkaTimeoutError leaves the outcome
        open: ``commit_transaction`` finds it out.
        """
        self.begin_transaction()
        transactions, commits = self._sender.transactions, False
        try:
            yield
            commits = True
            self.commit_transaction()
        except BaseException as error:
            if transactions is not None and transactions.rules.can_abort:
                # The first error counts: a later abort says why this one did not succeed.
                with suppress(ClientError):
                    self.abort_transaction()
                if commits and isinstance(error, GaveUp):
                    raise transactions.rules.late_commit() from error
            raise

    def _in_order(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a call of a transaction on the loop, after the records that were sent before it.

        After it the first record of each topic asks the loop whether it is accepted: a record
        outside of a transaction is refused by ``send``, and not by its future alone.
        """

        async def in_order() -> Result:
            try:
                await self._taken()
            except BaseException:
                work.close()
                raise
            return await work

        if self._closed:
            work.close()
            raise WrongState("this producer is closed: open another one")
        try:
            return self._loop.run(in_order())
        finally:
            self._topics.clear()

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic that take records. Raises as ``send``."""
        return self._loop.run(self._inner.partitions_for(topic))

    def bootstrap_connected(self) -> bool:
        """Return whether the producer is connected, which it is from the start until ``close``."""
        return not self._closed

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the producer's figures as {group: {name: value}}, by Kafka's names."""
        return self._sender.metrics()

    def close(self, timeout: float | None = None) -> None:
        """Send what is accepted, wait for its outcomes, and close; a second call does nothing.

        After ``timeout`` seconds, or when this is interrupted, records without an outcome fail.
        """
        timeout = seconds(timeout)
        if self._closed:
            return
        if self._loop.is_current:
            raise WrongState("close was called in a callback, which must not wait for the records")
        self._closed = True
        limit_s = None if timeout is None else timeout + CLOSE_GRACE_S
        try:
            self._loop.run(self._close(timeout), limit_s)
        finally:
            self._loop.leave()

    def _wait_for_room(self, size: int) -> None:
        if self._loop.is_current:
            raise WrongState("no memory for a record, and a callback must not wait for it")
        block_s = self._sender.settings.max_block_ms / 1000
        try:
            self._loop.run(self._room(size), block_s)
        except TimeoutError:
            raise self._sender.no_room() from None

    # On the loop

    def _take(self) -> None:
        """Accept what is in the inbox, unless the first record has to wait."""
        self._awake = False
        inbox, accept, left = self._inbox, self._sender.accept, PIECE
        while inbox and self._slow is None:
            if not left:
                self._awake = True
                asyncio.get_running_loop().call_soon(self._take)
                return
            left -= 1
            record = inbox.popleft()
            self._note_taken(record)
            try:
                accepted = accept(*record)
            except Exception as error:
                record[-1].set_exception(_refusal(error))
                continue
            if not accepted:
                self._slow = asyncio.get_running_loop().create_task(self._take_slowly(record))

    def _note_taken(self, record: _Record) -> None:
        self._taken_bytes += RECORD_OVERHEAD_BYTES + len(record[1] or b"") + len(record[2] or b"")

    async def _take_slowly(self, record: _Record) -> None:
        """Accept a record that has to wait; those after it wait, too."""
        try:
            await self._sender.accept_later(*record)
        except Exception as error:
            record[-1].set_exception(_refusal(error))
        except asyncio.CancelledError:
            record[-1].set_exception(WrongState("the producer was closed before this was sent"))
            raise
        finally:
            self._slow = None
            self._take()

    async def _taken(self) -> None:
        """Wait until the inbox is empty."""
        while self._inbox or self._slow is not None:
            self._take()
            if self._slow is not None:
                await asyncio.wait([self._slow])
            else:
                await asyncio.sleep(0)

    async def _room(self, size: int) -> None:
        await self._taken()
        await self._sender.wait_for_room(size)

    async def _flush(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._taken()
                await self._sender.flush()
        except TimeoutError:
            raise not_flushed(timeout) from None

    async def _close(self, timeout: float | None) -> None:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                await self._taken()
        except TimeoutError:
            if self._slow is not None:
                self._slow.cancel()
                await asyncio.wait([self._slow])
        finally:
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - begun))
            await self._inner.close(left)
            # What is left was not accepted before the end: the closed sender refuses it.
            await self._taken()


def _refusal(error: Exception) -> ClientError:
    """Return what the future of a record fails with, whatever its acceptance raised."""
    return error if isinstance(error, ClientError) else ClientError(f"it is not sent: {error!r}")
