"""The record sender: batches records, sends them to leaders, retries, reports each outcome once.

Owns the path of a record from ``send`` into a batch: partitioning, lingering, memory. Not the
requests and retries: see ``delivery``. Not order and sequence numbers of one partition: see
``send_queue``. Not a topic that is resized meanwhile: see ``turning``. The public Producer will use
this.

Order: records of one partition are written in the order of ``send``, also after retries (five
requests in flight with an identity, one without), and records of one key also while their topic
grows or shrinks. Bounds: ``buffer_bytes`` of unacknowledged records; ``send`` waits above that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog.client.errors import ClientError, GaveUp
from tidelog.client.metadata import Topic
from tidelog.client.producing.send_queue import Sent
from tidelog.client.producing.turning import TurningDelivery
from tidelog.records.builder import NewRecord
from tidelog.records.record import Header
from tidelog.runtime.tasks import call_off

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
    ) -> asyncio.Future[Sent]:
        """Accept a record and return the future of its offset.

        Waits for the topic's metadata and for memory, at most ``max_block_ms``. The future fails
        with Refused, or GaveUp after ``delivery_timeout_ms``. Raises Refused for an unknown topic
        or partition, GaveUp when there is no memory in time.
        """
        known = await self._topic(topic)
        size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(content or b"") for name, content in headers)
        if self._buffered and self._buffered + size > self._settings.buffer_bytes:
            await self._wait_for_room(size)
        # From here on nothing waits: the record is hashed under what metadata say now.
        epochs = self._epochs_of(known)
        if partition is not None and (why := epochs.why_not(partition)) is not None:
            raise why
        if timestamp_ms is None:
            timestamp_ms = self._clock.wall_ms()
        outcome: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        record = NewRecord(timestamp_ms, key, value, list(headers))
        self._buffered += size
        if epochs.is_turning:
            self._hold_new(epochs, record, size, partition, outcome)
            return outcome
        place = self._chooser.choose(epochs.seen, key) if partition is None else partition
        batch = self._append(epochs, place, record, is_fixed=partition is not None)
        batch.outcomes.append((outcome, timestamp_ms))
        batch.size += size
        return outcome

    async def flush(self) -> None:
        """Send all records now, without lingering, and wait for all outcomes."""
        self._flushing += 1
        try:
            while self._has_held() or any(not queue.empty for queue in self._queues.values()):
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
        finally:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            for queue in self._queues.values():
                for batch in (*queue.waiting, *queue.in_flight):
                    queue.fail(batch, ClientError("the sender was closed before this was written"))
                    self._finish(batch)
            self._fail_held(ClientError("the sender was closed before this was written"))
            await call_off(self._tasks.values())

    def _refuse_when_closed(self) -> None:
        if self._is_closing:
            raise ClientError("this sender is closed")

    async def _topic(self, name: str) -> Topic:
        """Return the metadata of a topic. Raises as ``send`` does."""
        self._refuse_when_closed()
        known = self._cluster.view.topics.get(name)
        if known is None or known.error:
            block_ms, create = self._settings.max_block_ms, self._settings.create_topics
            found = await self._cluster.topics([name], timeout_ms=block_ms, create=create)
            self._refuse_when_closed()
            return found[name]
        if self._cluster.expired:
            # In the background: added partitions are seen within metadata_max_age_ms.
            self._run("metadata", self._cluster.refresh)
        return known

    async def _wait_for_room(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.max_block_ms / 1000
        while self._buffered and self._buffered + size > self._settings.buffer_bytes:
            self._drain()
            waiter = loop.create_future()
            self._room.append(waiter)
            await asyncio.wait([waiter], timeout=max(0.0, deadline - loop.time()))
            self._refuse_when_closed()
            if not waiter.done() and loop.time() >= deadline:
                raise GaveUp(
                    f"no memory for a record within {self._settings.max_block_ms} ms: "
                    f"{self._buffered} bytes are unacknowledged"
                )
