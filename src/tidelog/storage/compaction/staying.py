"""Batches that stay although no record of them has to.

Owns the two questions that need other batches than the one at hand. Both are asked only where the
answer counts, and then read headers: of the clean part once in a run, of a run of control batches
once. The markers of transactions will be the third (KIP-98).

| batch                                            | stays, without records               |
|--------------------------------------------------|--------------------------------------|
| one of the last five of a producer in the        | a leader recognizes a retry of it    |
| cleaned range                                    |                                      |
| an ancestor tombstone just before a fence        | a copy of the log would find a gap   |
|                                                  | there, and a higher end of the data  |

The cleaned range counts, not the log: batches after it may be cut or lost with a power loss, and
then these have the last sequences of their producer.
"""

from __future__ import annotations

from tidelog.records.batch import BatchHeader
from tidelog.records.control_records import changes_in
from tidelog.storage.compaction.keys import DirtyKeys, voided_key
from tidelog.storage.compaction.plan import SourceSegment
from tidelog.storage.compaction.reading import SegmentReading
from tidelog.storage.log.producers import BATCHES_REMEMBERED


class Staying:
    """The answers for one run, whose first pass has ended."""

    def __init__(self, reading: SegmentReading, keys: DirtyKeys) -> None:
        self._reading = reading
        self._dirty = keys.last_batches
        self._clean: dict[int, tuple[int, ...]] | None = None
        self._run = (0, 0)
        """Offsets of the control batches that were looked through last."""
        self._run_stays = False

    def for_producer(self, header: BatchHeader) -> bool:
        """Whether the batch is one of the last of a producer that the log remembers."""
        producer, plan = header.producer_id, self._reading.plan
        if producer not in plan.producers:
            return False
        last = self._dirty.get(producer, ())
        if header.last_offset >= plan.first_dirty_offset:
            return header.last_offset in last
        if len(last) == BATCHES_REMEMBERED:
            return False
        if self._clean is None:
            self._clean = self._last_of_clean_part()
        return header.last_offset in self._clean.get(producer, ())[len(last) - BATCHES_REMEMBERED :]

    def _last_of_clean_part(self) -> dict[int, tuple[int, ...]]:
        reading, last_of = self._reading, dict[int, tuple[int, ...]]()
        first_dirty, producers = reading.plan.first_dirty_offset, reading.plan.producers
        for source in reading.sources:
            if source.base_offset >= first_dirty:
                break
            for _, header in reading.headers(source):
                if header.last_offset >= first_dirty:
                    break
                if header.producer_id in producers and not header.control:
                    last = last_of.get(header.producer_id, ())
                    last = (*last[1 - BATCHES_REMEMBERED :], header.last_offset)
                    last_of[header.producer_id] = last
        return last_of

    def before_fence(self, source: SourceSegment, position: int, header: BatchHeader) -> bool:
        """Whether nothing but control batches comes between this one and a fence or seal.

        The segment after the range may begin with a fence: its end counts as one.
        """
        first, end = self._run
        if not first <= header.base_offset < end:
            end, self._run_stays = self._to_fence(source, position, header.base_offset)
            self._run = header.base_offset, end
        return self._run_stays

    def _to_fence(self, source: SourceSegment, position: int, offset: int) -> tuple[int, bool]:
        """Return up to which offset the answer is the same, and the answer."""
        reading = self._reading
        sources = reading.sources
        for later in sources[sources.index(source) :]:
            for place, header in reading.headers(later, position):
                if not header.control or header.base_offset != offset:
                    return offset, False
                offset = header.next_offset
                batch = reading.batch_at(later, place, header.size)
                if voided_key(header, batch) is None and changes_in(header, batch):
                    return offset, True
            position = 0
        return offset, True
