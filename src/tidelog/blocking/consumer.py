"""The consumer that blocks its caller: ``tidelog.aio.Consumer`` on the clients' shared loop.

Owns polling, iteration, and the methods that differ from those of the asyncio client. Not the
others: see ``derived_methods``. Not the way to the loop and back: see ``caller_thread``. Not what a
consumer does: see ``tidelog.aio.consumer``. Names are kafka-python's.

Fetching, heartbeats and rebalances go on while the caller works. Listeners are called in the
thread of the caller, inside ``poll`` (or ``close``), and may use the consumer, except ``poll``.
Records are decoded in the caller's thread. One thread at a time may use a consumer; ``wakeup`` may
be called from any.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from tidelog.aio.arguments import milliseconds, most_records
from tidelog.aio.consumer import CLOSE_MS, Records
from tidelog.aio.consumer import Consumer as AsyncConsumer
from tidelog.aio.consumer_settings import settings_of
from tidelog.aio.consumer_types import OffsetAndMetadata
from tidelog.blocking.caller_thread import CallerThread
from tidelog.blocking.derived_methods import ConsumerMethods
from tidelog.blocking.loop import ClientLoop
from tidelog.client.fetching.consumer_record import ConsumerRecord
from tidelog.model.topics import TopicPartition

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]
Committed = Callable[[Any, BaseException | None], object]

IDLE_MS = 1_000.0
"""How long one wait of an iteration lasts at most."""


class Consumer(ConsumerMethods):
    """Reads records: ``for record in Consumer("t", group_id="g")``, or ``poll``.

    Settings: see ``ConsumerSettings``. Raises ClusterUnreachable when no bootstrap server responds.
    ``with`` closes it.
    """

    def __init__(self, *topics: str, **settings: Any) -> None:
        # Before a thread is started for it.
        self._settings = settings_of(type(self), settings)
        self._ended: deque[Callable[[], object]] = deque()
        """Callbacks of asynchronous commits that have ended."""
        self._loop = ClientLoop()
        self._thread = CallerThread(self._loop)
        try:
            self._consumer = self._loop.run(self._made(topics, settings))
        except BaseException:
            self._loop.leave()
            raise
        super().__init__(self._thread, self._consumer)

    async def _made(self, topics: Collection[str], settings: Mapping[str, Any]) -> AsyncConsumer:
        made = AsyncConsumer(*topics, call=self._thread.call, **settings)
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

    # Subscription

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        self._thread.refuse_in_callback("unsubscribe")
        self._thread.do(self._consumer.unsubscribe)
        self._thread.wait(self._consumer.leave_former())

    # Reading

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Return records by partition, waiting up to ``timeout_ms`` for the first.

        At most ``max_records`` (default: max_poll_records). The call says that all records returned
        before are processed. Raises Wakeup, and what a callback raised.
        """
        self._thread.refuse_in_callback("poll")
        max_records, timeout_ms = most_records(max_records), milliseconds(timeout_ms)
        self._call_back()
        consumer = self._consumer
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            if not consumer.is_due():
                records = consumer.take(max_records)
                if records:
                    return records
            left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
            self._thread.wait(consumer.attend(left_ms))
            records = consumer.take(max_records)
            if records or left_ms < 1:
                return records

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
                self._thread.wait(self._consumer.attend(min(ends_ms - now_ms, IDLE_MS)))
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

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on at the starts of these partitions, or of all assigned ones."""
        self._thread.wait(self._consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read on at the ends of these partitions, or of all assigned ones."""
        self._thread.wait(self._consumer.seek_to_end(*partitions))

    # Commits

    def commit_async(
        self, offsets: Offsets | None = None, callback: Committed | None = None
    ) -> Future[None]:
        """Begin to commit, and return at once.

        ``callback`` gets the offsets and the error, or None, in a later ``poll`` or ``close``.
        Without one an error is logged.
        """

        def ended(offsets: Any, error: Exception | None) -> None:
            if callback is not None:
                self._ended.append(partial(callback, offsets, error))
            elif error is not None:
                logger.warning("offsets %s were not committed: %s", offsets, error)
            if error is not None:
                raise error

        # The caller waits until it is asked for: so commits keep the order of its calls.
        task = self._thread.wait(self._consumer.commit_async(offsets, ended))
        return self._loop.start(_end_of(task))

    def _call_back(self) -> None:
        # Those of now: one that commits again may have its refusal at once. One that polls or
        # closes calls those after it itself.
        for _ in range(len(self._ended)):
            if self._ended:
                self._ended.popleft()()

    def close(self, autocommit: bool = True, timeout_ms: float = CLOSE_MS) -> None:
        """Commit (with enable_auto_commit), call back, leave the group, close the connections.

        Waits up to ``timeout_ms``, apart from the time of callbacks, for this commit and for those
        that were begun before; then they fail, and their callbacks get the error. A second call
        does nothing. An exception of a callback is raised when everything is closed.
        """
        timeout_ms = milliseconds(timeout_ms)
        if self._loop.has_left:
            return
        self._thread.refuse_in_callback("close")
        try:
            try:
                self._thread.wait(self._consumer.close(autocommit, timeout_ms))
            finally:
                self._call_back()
        finally:
            self._loop.leave()


async def _end_of(task: asyncio.Task[None]) -> None:
    await task
