"""A producer for columns of records: a tally instead of one future per record.

Owns the filling of batches. Not what follows, order and bounds included: see ``sender``. For tools
that write millions of lines or rows and do not need their offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelog.client.metadata import Topic
from tidelog.client.producing.partitioner import by_partition
from tidelog.client.producing.send_queue import ProducerBatch, SendQueue, SendTally
from tidelog.client.producing.sender import RECORD_OVERHEAD_BYTES, RecordSender
from tidelog.client.producing.topic_epochs import TopicEpochs
from tidelog.client.stamps import Stamp
from tidelog.records.builder import Columns, NewRecord


class BulkSender:
    """Lets a ``RecordSender`` accept columns of records."""

    def __init__(self, sender: RecordSender) -> None:
        self._sender = sender
        self._topics = sender.topics
        self._turning = sender.turning
        self._delivery = sender.delivery
        self._memory = sender.memory

    async def send_many(
        self, topic: str, records: Columns, tally: SendTally, *, partition: int | None = None
    ) -> None:
        """Accept many records, in order; ``tally`` counts their outcomes.

        A tenth of the work of ``send``, for callers that need no offsets. The timestamp of a record
        is the time it is accepted. Waits and raises as ``send`` does; ``tally.taken`` is the number
        accepted before.
        """
        described = await self._sender.topic(topic)
        if partition is not None:
            why = self._topics.epochs_of(described).why_not(partition)
            if why is not None:
                raise why
        left = await self._send_once(described, records, tally, partition)
        while left.values:
            # The topic was resized meanwhile: what is left is hashed again.
            left = await self._send_once(described, left, tally, partition)

    async def flush(self) -> None:
        """Do what ``RecordSender.flush`` does."""
        await self._sender.flush()

    async def _send_once(
        self, topic: Topic, records: Columns, tally: SendTally, partition: int | None
    ) -> Columns:
        """Send records under the present count; return those that are left when it changes."""
        epochs = self._topics.epochs_of(topic)
        if epochs.refused is not None:
            return await self._hold_all(epochs, records, tally, partition)
        if partition is not None or records.keys is None:
            sent = await self._send_run(epochs, partition, records, tally, partition is not None)
            return _from(records, sent)
        homes = self._sender.chooser.choose_all(epochs.seen, records.keys)
        parts = iter(by_partition(records, homes).items())
        for index, part in parts:
            if epochs.is_turning and epochs.is_shut(index):
                left = await self._hold_all(epochs, part, tally, None)
                sent = len(part.values) - len(left.values)
            else:
                sent = await self._send_run(epochs, index, part, tally)
            if sent < len(part.values):
                return _joined([_from(part, sent), *(rest for _, rest in parts)])
        if None in records.keys:
            self._sender.chooser.batch_filled(epochs.seen.name)
        return _NOTHING

    async def _send_run(
        self,
        epochs: TopicEpochs,
        partition: int | None,
        records: Columns,
        tally: SendTally,
        is_fixed: bool = False,
    ) -> int:
        """Send records to one partition; None: to the sticky partition of each batch.

        Returns how many were sent before the topic was resized, or its partition was shut.
        """
        begin, count = 0, len(records.values)
        room = min(self._sender.settings.batch_bytes, self._memory.limit)
        stamp, topic = epochs.stamp, epochs.seen.name
        while begin < count:
            if not self._memory.has_room(room):
                await self._sender.wait_for_room(room)
            self._topics.epochs_of(epochs.seen)
            if epochs.refused is not None or epochs.stamp != stamp:
                return begin
            index = self._turning.home_of(epochs, None) if partition is None else partition
            if epochs.is_turning and epochs.is_shut(index):
                named = partition if is_fixed else None
                left = await self._hold_all(epochs, _from(records, begin), tally, named)
                return count - len(left.values)
            queue = self._turning.queue_of(epochs, index)
            batch = queue.last
            if (
                batch is None
                or batch.tally is not tally
                or batch.stamp != stamp
                or batch.is_fixed != is_fixed
            ):
                batch = self._next_batch(queue, batch, tally, stamp, is_fixed)
            before_these, now_ms = begin, self._sender.clock.wall_ms()
            size_before = batch.builder.size
            begin = batch.builder.extend(now_ms, records, begin, count)
            if begin == before_these:
                # The batch was already full; the first record of the next one always fits.
                batch = self._next_batch(queue, batch, tally, stamp, is_fixed)
                size_before = batch.builder.size
                begin = batch.builder.extend(now_ms, records, begin, count)
            batch.size += batch.builder.size - size_before
            self._memory.used += batch.builder.size - size_before
            tally.taken += begin - before_these
            if begin < count:
                if partition is None:
                    self._sender.chooser.batch_filled(topic)
                self._delivery.times.linger(batch, 0.0)
                self._delivery.drain()
                # Let the loop read responses; otherwise brokers idle until the memory is full.
                await asyncio.sleep(0)
                self._sender.refuse_when_closed()
        return count

    async def _hold_all(
        self, epochs: TopicEpochs, records: Columns, tally: SendTally, partition: int | None
    ) -> Columns:
        """Keep records while their partition is shut, or not known; return those that are left."""
        for index, value in enumerate(records.values):
            key = None if records.keys is None else records.keys[index]
            headers = [] if records.headers is None else list(records.headers[index])
            size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
            if not self._memory.has_room(size):
                await self._sender.wait_for_room(size)
            self._topics.epochs_of(epochs.seen)
            home = self._turning.home_now(epochs, key, partition)
            if not epochs.is_turning or (home is not None and not epochs.is_shut(home)):
                return _from(records, index)
            record = NewRecord(self._sender.clock.wall_ms(), key, value, headers)
            self._memory.used += size
            tally.taken += 1
            self._topics.hold_new(epochs, record, size, partition, tally=tally, home=home)
        return _NOTHING

    def _next_batch(
        self,
        queue: SendQueue,
        former: ProducerBatch | None,
        tally: SendTally,
        stamp: Stamp | None,
        is_fixed: bool,
    ) -> ProducerBatch:
        """Open a batch after the last one, which is full and need not linger."""
        batch = queue.open(tally, stamp=stamp, is_fixed=is_fixed)
        self._delivery.opened(queue, batch, former)
        return batch


_NOTHING = Columns([])


def _from(records: Columns, begin: int) -> Columns:
    """Return the records from a place on."""
    values, keys, headers = records
    return Columns(
        values[begin:],
        None if keys is None else keys[begin:],
        None if headers is None else headers[begin:],
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    """Return records of several partitions, with keys, as one."""
    return Columns(
        [value for part in parts for value in part.values],
        [key for part in parts for key in part.keys or ()],
        None
        if any(part.headers is None for part in parts)
        else [headers for part in parts for headers in part.headers or ()],
    )
