"""The consumer that blocks its caller: ``tidelog.aio.Consumer`` on the clients' shared loop.

Owns the way between the caller's thread and the loop, callbacks included. Not what a consumer does:
see ``tidelog.aio.consumer``. Names are kafka-python's.

Fetching, heartbeats and rebalances go on while the caller works. Listeners are called in the
thread of the caller, inside ``poll`` (or ``close``), and may use the consumer, except ``poll``.
Records are decoded in the caller's thread. One thread at a time may use a consumer; ``wakeup`` may
be called from any.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from tidelog.aio.arguments import milliseconds, most_records
from tidelog.aio.consumer import Consumer as AsyncConsumer
from tidelog.aio.consumer import Records
from tidelog.aio.consumer_commits import checked
from tidelog.aio.consumer_settings import settings_of
from tidelog.aio.consumer_types import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionKeyRebalanceListener,
)
from tidelog.blocking.loop import ClientLoop
from tidelog.client.errors import WrongState
from tidelog.client.fetching.consumer_record import ConsumerRecord
from tidelog.model.topics import TopicPartition

Result = TypeVar("Result")
Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]
Committed = Callable[[Any, BaseException | None], object]

IDLE_MS = 1_000.0
"""How long one wait of an iteration lasts at most."""


class Consumer:
    """Reads records: ``for record in Consumer("t", group_id="g")``, or ``poll``.

    Settings: see ``ConsumerSettings``. Raises ClusterUnreachable when no bootstrap server responds.
    ``with`` closes it.
    """

    def __init__(self, *topics: str, **settings: Any) -> None:
        # Before a thread is started for it.
        self._settings = settings_of(type(self), settings)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_calling, self._caller = False, -1
        self._ended: deque[Callable[[], object]] = deque()
        """Callbacks of asynchronous commits that have ended."""
        self._loop = ClientLoop()
        try:
            self._consumer = self._loop.run(self._made(topics, settings))
        except BaseException:
            self._loop.leave()
            raise

    async def _made(self, topics: Collection[str], settings: Mapping[str, Any]) -> AsyncConsumer:
        made = AsyncConsumer(*topics, call=self._in_caller, **settings)
        try:
            await made.start()
        except BaseException:
            await made.close()
            raise
        return made

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and not loop.has_left:
            warnings.warn(f"a {type(self).__name__} was not closed", ResourceWarning, stacklevel=2)

    # Between the threads

    async def _in_caller(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function of the user in the thread that waits for this."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._calls.put(partial(self._call, function, args, loop, ended))
        await ended

    def _call(
        self,
        function: Callable[..., Any],
        args: Collection[Any],
        loop: asyncio.AbstractEventLoop,
        ended: asyncio.Future[None],
    ) -> None:
        self._is_calling, self._caller = True, threading.get_ident()
        try:
            function(*args)
        except Exception as error:
            loop.call_soon_threadsafe(_end, ended, error)
        else:
            loop.call_soon_threadsafe(_end, ended, None)
        finally:
            self._is_calling = False

    def _refuse_in_callback(self, what: str) -> None:
        # It would wait for callbacks, which run in this thread.
        if self._is_calling and self._caller == threading.get_ident():
            raise WrongState(f"{what} was called in a callback: call it when poll has returned")

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop; its callbacks run here."""
        if self._is_calling:
            # A call within a callback has none itself.
            return self._loop.run(work)
        calls = self._calls = SimpleQueue()
        done = self._loop.start(work)
        done.add_done_callback(lambda _: calls.put(None))
        try:
            while (call := calls.get()) is not None:
                call()
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def _do(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a method that does not wait on the loop, where its state is."""

        async def done() -> Result:
            return function(*args)

        return self._wait(done())

    # Subscription

    def subscribe(
        self,
        topics: Collection[str] = (),
        pattern: str | None = None,
        listener: Any = None,
        partition_key_listener: PartitionKeyRebalanceListener | None = None,
    ) -> None:
        """Read topics: these, or all whose whole name the regular expression ``pattern`` matches.

        It replaces the former subscription. With a group_id its members share the partitions;
        without one this consumer reads all of them. ``listener``: a ConsumerRebalanceListener.
        """
        self._refuse_in_callback("subscribe")
        self._do(self._consumer.subscribe, topics, pattern, listener, partition_key_listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without other members; positions of kept ones stay."""
        self._refuse_in_callback("assign")
        self._do(self._consumer.assign, partitions)

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        self._refuse_in_callback("unsubscribe")
        self._do(self._consumer.unsubscribe)
        self._wait(self._consumer.leave_former())

    def subscription(self) -> set[str]:
        """Return the topics subscribed to."""
        return self._consumer.subscription()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that are read, by the last rebalance."""
        return self._do(self._consumer.assignment)

    # Reading

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Return records by partition, waiting up to ``timeout_ms`` for the first.

        At most ``max_records`` (default: max_poll_records). The call says that all records returned
        before are processed. Raises Wakeup, and what a callback raised.
        """
        self._refuse_in_callback("poll")
        max_records, timeout_ms = most_records(max_records), milliseconds(timeout_ms)
        self._call_back()
        consumer = self._consumer
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            if not consumer.is_due():
                found = consumer.take(max_records)
                if found:
                    return found
            left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
            self._wait(consumer.attend(left_ms))
            found = consumer.take(max_records)
            if found or left_ms < 1:
                return found

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records; asking for the next one says that the one before is processed.

        It ends when no record has come for consumer_timeout_ms, if that is set.
        """
        limit_ms = self._settings.idle_limit_ms
        take_one = self._consumer.take_one
        ends_ms: float | None = None
        while True:
            record = take_one()
            if record is None:
                # attend may return early, for example because partitions were assigned.
                now_ms = time.monotonic() * 1000
                if ends_ms is None:
                    ends_ms = now_ms + limit_ms
                elif now_ms >= ends_ms:
                    return
                self._call_back()
                self._wait(self._consumer.attend(min(ends_ms - now_ms, IDLE_MS)))
                continue
            ends_ms = None
            yield record

    def __next__(self) -> ConsumerRecord:
        """Return the next record; see ``__iter__``."""
        for record in self:
            return record
        raise StopIteration

    def wakeup(self) -> None:
        """Let ``poll`` that waits, or the next one, raise Wakeup. Any thread may call this."""
        self._consumer.mark_woken()
        self._loop.start(self._interrupt())

    async def _interrupt(self) -> None:
        self._consumer.interrupt()

    # Positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on at ``offset``. Beyond a shut gate nothing is returned until it opens."""
        self._do(self._consumer.seek, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on at the starts of these partitions, or of all assigned ones."""
        self._wait(self._consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read on at the ends of these partitions, or of all assigned ones."""
        self._wait(self._consumer.seek_to_end(*partitions))

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record of an assigned partition, once it is known."""
        return self._wait(self._consumer.position(partition))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until ``resume``; the group stays as it is.

        As in Kafka, a rebalance that revokes all partitions ends it, and a resize causes one: with
        cooperative-sticky it lasts.
        """
        self._do(self._consumer.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        self._do(self._consumer.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return self._consumer.paused()

    def waiting(self) -> dict[TopicPartition, str]:
        """Return what each partition whose gate is shut waits for (KIP-253), as a sentence."""
        return self._do(self._consumer.waiting)

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of a partition in the last answer of its leader."""
        return self._consumer.highwater(partition)

    # Commits

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit these positions, or those after all returned records.

        Raises CommitFailed when the group has gone on without this consumer.
        """
        self._wait(self._consumer.commit(offsets))

    def commit_async(
        self, offsets: Offsets | None = None, callback: Committed | None = None
    ) -> Future[None]:
        """Begin to commit, and return at once.

        ``callback`` gets the offsets and the error, or None, in a later ``poll`` or ``close``.
        """
        wanted = self._wait(self._consumer.places()) if offsets is None else checked(offsets)
        done = self._loop.start(self._consumer.commit(wanted))
        if callback is not None:

            def ended(future: Future[None]) -> None:
                error = None if future.cancelled() else future.exception()
                self._ended.append(partial(callback, wanted, error))

            done.add_done_callback(ended)
        return done

    def _call_back(self) -> None:
        while self._ended:
            self._ended.popleft()()

    def committed(
        self, partition: TopicPartition, metadata: bool = False
    ) -> int | OffsetAndMetadata | None:
        """Return what the group has committed in a partition; None for nothing."""
        return self._wait(self._consumer.committed(partition, metadata))

    # Topics and offsets

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return self._wait(self._consumer.topics())

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic from fresh metadata; None if there is no such topic."""
        return self._wait(self._consumer.fetch_partitions(topic))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time (ms); None where there is none."""
        return self._wait(self._consumer.offsets_for_times(timestamps))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the logs of partitions begin."""
        return self._wait(self._consumer.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the logs of partitions end, by the isolation level."""
        return self._wait(self._consumer.end_offsets(partitions))

    def bootstrap_connected(self) -> bool:
        """Whether the cluster was reached."""
        return self._consumer.bootstrap_connected()

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return figures of this consumer since it was made."""
        return self._do(self._consumer.metrics)

    def close(self, autocommit: bool = True) -> None:
        """Call back, commit (with enable_auto_commit), leave the group, close the connections.

        A second call does nothing. An exception of a callback is raised when everything is closed.
        """
        if self._loop.has_left:
            return
        self._refuse_in_callback("close")
        try:
            self._wait(self._consumer.close(autocommit))
            self._call_back()
        finally:
            self._loop.leave()


def _end(ended: asyncio.Future[None], error: Exception | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
