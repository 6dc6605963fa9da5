"""The record sender: batches records, sends them to leaders, retries, reports each outcome once.

Owns the path of a record from ``send`` into a batch: partitioning, lingering, memory. Not the
requests and retries: see ``delivery``. Not order and sequence numbers of one partition: see
``send_queue``. Not a topic that is resized meanwhile: see ``turning``. Not the arguments and
serializers of the public Producer: see ``tidelog.aio``.

Order: records of one partition are written in the order of ``send``, also after retries (five
requests in flight with an identity, one without), and records of one key also while their topic
grows or shrinks. Bounds: ``buffer_bytes`` of unacknowledged records; ``send`` waits above that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog.client.errors import GaveUp, Refused, WrongState
from tidelog.client.metadata import Topic
from tidelog.client.producing.record_metadata import RecordMetadata, RecordOutcome
from tidelog.client.producing.settings import SendSettings
from tidelog.client.producing.topic_epochs import TopicEpochs
from tidelog.client.producing.turning import TOMBSTONES, TurningDelivery
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import NewRecord
from tidelog.records.record import Header
from tidelog.runtime.tasks import call_off

CLOSED = "the producer was closed before this was written"
TRIED = "the producer was closed before this was acknowledged: it may be written"
"""The outcomes of records that were sent to no leader, and of those that were."""

LAST_WAIT_S = 1.0
"""How long ``close`` waits for ancestor tombstones, which may be lost."""

RECORD_OVERHEAD_BYTES = 100
"""The estimated memory of a record in Python, beyond its key, value and headers."""


class RecordSender(TurningDelivery):
    """Sends records. ``async with RecordSender(cluster) as sender`` flushes and closes."""

    async def __aenter__(self) -> RecordSender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> asyncio.Future[RecordMetadata]:
        """Accept a record and return the future of its place.

        Waits for the topic's metadata and for memory, at most ``max_block_ms``. The future fails
        with Refused, or GaveUp after ``delivery_timeout_ms``. Raises Refused for an unknown topic
        or partition and for a record that is too large, GaveUp when there is no memory in time.
        """
        outcome: asyncio.Future[RecordMetadata] = asyncio.Future(loop=asyncio.get_running_loop())
        if not self.accept(topic, value, key, partition, timestamp_ms, headers, outcome):
            await self.accept_later(topic, value, key, partition, timestamp_ms, headers, outcome)
        elif self.owes_turn:
            await self.give_turn()
        return outcome

    async def give_turn(self) -> None:
        """Let the loop send and receive; otherwise brokers idle until the memory is full."""
        self.owes_turn = False
        await asyncio.sleep(0)

    def accept(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
        outcome: RecordOutcome,
    ) -> bool:
        """Accept a record now, whose outcome ``outcome`` receives; False: it has to wait first.

        With False nothing was done: ``accept_later`` waits. Raises as ``send`` does.
        """
        if self._is_closing:
            raise _closed()
        epochs = self._topics.get(topic)
        if epochs is None or epochs.view is not self._cluster.view:
            epochs = self._known(topic)
            if epochs is None:
                return False
        key_bytes = -1 if key is None else len(key)
        value_bytes = -1 if value is None else len(value)
        header_bytes = -1
        size = RECORD_OVERHEAD_BYTES + key_bytes + value_bytes
        if headers:
            header_bytes = size_of(headers)
            size += header_bytes
        if size > self._settings.max_request_bytes:
            raise self._too_large(topic, size)
        if self._buffered and self._buffered + size > self._settings.buffer_bytes:
            return False
        # The record is hashed under what metadata say now.
        if partition is not None and (why := epochs.why_not(partition)) is not None:
            raise why
        if timestamp_ms is None:
            timestamp_ms = self._clock.wall_ms()
        opened = (outcome, timestamp_ms, key_bytes, value_bytes, header_bytes)
        place = partition
        if epochs.is_turning:
            place = self._home_now(epochs, key, partition)
        elif partition is None:
            place = self._chooser.choose(epochs.seen, key)
        if place is None or (epochs.is_turning and epochs.is_shut(place)):
            record = NewRecord(timestamp_ms, key, value, headers)
            self._hold_new(epochs, record, size, partition, opened, place=place)
        else:
            queue = epochs.queues.get(place)
            batch = None if queue is None or not queue.waiting else queue.waiting[-1]
            if (
                batch is None
                or batch.data is not None
                or batch.stamp is not epochs.stamp
                or batch.is_fixed is not (partition is not None)
                or batch.tally is not None
                or not batch.builder.append(timestamp_ms, key, value, headers)
            ):
                # All but the usual case, which costs no call for each record.
                record = NewRecord(timestamp_ms, key, value, headers)
                batch = self._append(epochs, place, record, partition is not None)
            batch.outcomes.append(opened)
            batch.size += size
        self._buffered += size
        return True

    async def accept_later(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
        outcome: RecordOutcome,
    ) -> None:
        """Wait for the topic's metadata and for memory, then accept a record. Raises as ``send``.

        ``max_block_ms`` bounds each of the two waits.
        """
        await self.topic(topic)
        while not self.accept(topic, value, key, partition, timestamp_ms, headers, outcome):
            await self.topic(topic)
            size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
            await self.wait_for_room(size + size_of(headers))

    def _known(self, topic: str) -> TopicEpochs | None:
        """Return what records of a topic are hashed under, if its metadata are known."""
        view = self._cluster.view
        known = view.topics.get(topic)
        if known is None or known.error:
            return None
        epochs = self._epochs_of(known)
        epochs.view = view
        return epochs

    def _too_large(self, topic: str, size: int) -> Refused:
        most = self._settings.max_request_bytes
        said = (
            f"the record has {size} bytes and max_request_size is {most}: "
            "send less, or raise max_request_size here and max.message.bytes of the topic"
        )
        return Refused(ErrorCode.MESSAGE_TOO_LARGE, f"topic {topic!r}", said)

    async def flush(self) -> None:
        """Send all records now, without lingering, and wait for the outcomes of those.

        Records that are sent meanwhile prolong it only as far as they share a batch with these.
        """
        self._flushing += 1
        end = (next(self._numbers),)
        try:
            while self._holds_before(end) or any(q.has_before(end) for q in self._queues.values()):
                self._drain()
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """Flush and stop; ``send`` raises at once. If cancelled, unwritten records fail."""
        self._is_closing = True
        self._wake(self._room)
        try:
            await self.flush()
            if TOMBSTONES in self._tasks:
                await asyncio.wait([self._tasks[TOMBSTONES]], timeout=LAST_WAIT_S)
        finally:
            self._closed = True
            for timer in (self._timer, self._watch):
                if timer is not None:
                    timer.cancel()
            for queue in self._queues.values():
                for batch in (*queue.waiting, *queue.in_flight):
                    queue.fail(batch, WrongState(TRIED if batch.attempts else CLOSED))
                    self._finish(batch)
            self._fail_held(WrongState(CLOSED))
            await call_off(self._tasks.values())

    @property
    def settings(self) -> SendSettings:
        """The settings that it was made with."""
        return self._settings

    @property
    def buffered(self) -> int:
        """Bytes of records that have no outcome yet."""
        return self._buffered

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the figures as {group: {name: value}}, by Kafka's names."""
        in_flight = sum(self._in_flight.values())
        shown = self.figures.shown(self._settings.buffer_bytes, self._buffered, in_flight)
        return {"producer-metrics": shown}

    def _refuse_when_closed(self) -> None:
        if self._is_closing:
            raise _closed()

    async def topic(self, name: str) -> Topic:
        """Return the metadata of a topic; waits for them. Raises as ``send`` does."""
        self._refuse_when_closed()
        known = self._cluster.view.topics.get(name)
        if known is None or known.error:
            block_ms, create = self._settings.max_block_ms, self._settings.create_topics
            found = await self._cluster.topics([name], timeout_ms=block_ms, create=create)
            self._refuse_when_closed()
            return found[name]
        return known

    async def wait_for_room(self, size: int) -> None:
        """Wait for memory for a record of ``size`` bytes. Raises GaveUp after ``max_block_ms``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.max_block_ms / 1000
        while self._buffered and self._buffered + size > self._settings.buffer_bytes:
            waiter = loop.create_future()
            self._room.append(waiter)
            # While a record waits for room, no batch lingers.
            self._drain()
            await asyncio.wait([waiter], timeout=max(0.0, deadline - loop.time()))
            self._refuse_when_closed()
            if not waiter.done() and loop.time() >= deadline:
                raise self.no_room()

    def no_room(self) -> GaveUp:
        """Return the error of a record that found no memory in time."""
        said = (
            f"no memory for a record within {self._settings.max_block_ms} ms: "
            f"{self._buffered} bytes are unacknowledged"
        )
        held = {
            name: size
            for name, epochs in self._topics.items()
            if (size := sum(record.size for record in epochs.all_held()))
        }
        if held:
            said += (
                f", {sum(held.values())} of them wait for the end of a resize "
                f"(topic {', '.join(sorted(held))})"
            )
        return GaveUp(f"{said}; {self._trouble}" if self._trouble else said)


def size_of(headers: Sequence[Header]) -> int:
    """Return the bytes of headers as they are sent, without lengths."""
    return sum(len(name.encode()) + len(content or b"") for name, content in headers)


def _closed() -> WrongState:
    return WrongState("this producer is closed: open another one")
