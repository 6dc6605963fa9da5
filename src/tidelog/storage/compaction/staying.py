"""Batches that stay although no record of them has to.

Owns the questions that need other batches than the one at hand. They are asked only where the
answer counts, and then read headers: of the clean part once in a run, of a run of control batches
once.

| batch                                            | stays                                |
|--------------------------------------------------|--------------------------------------|
| one of the last five of a producer in the        | without records: a leader recognizes |
| cleaned range                                    | a retry of it                        |
| a marker after all others of its producer there  | whole: it has the epochs that fence  |
|                                                  | (KIP-98)                             |
| an ancestor tombstone, or a marker, just before  | whole: a copy of the log would find  |
| a fence                                          | a gap, and a higher end of the data  |

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
        self._dirty_markers = keys.last_markers
        self._clean: dict[int, tuple[int, ...]] | None = None
        self._clean_markers: dict[int, int] = {}
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

    def for_fencing(self, header: BatchHeader) -> bool:
        """Whether a marker is the last batch of a producer that the log remembers."""
        producer, plan = header.producer_id, self._reading.plan
        if producer not in plan.producers:
            return False
        if producer in self._dirty or producer in self._dirty_markers:
            newest = max(self._dirty.get(producer, ())[-1:], default=-1)
            return header.last_offset >= max(newest, self._dirty_markers.get(producer, -1))
        if self._clean is None:
            self._clean = self._last_of_clean_part()
        newest = max(self._clean.get(producer, ())[-1:], default=-1)
        return header.last_offset >= max(newest, self._clean_markers.get(producer, -1))

    def _last_of_clean_part(self) -> dict[int, tuple[int, ...]]:
        reading, last_of = self._reading, dict[int, tuple[int, ...]]()
        first_dirty, producers = reading.plan.first_dirty_offset, reading.plan.producers
        for source in reading.sources:
            if source.base_offset >= first_dirty:
                break
            for _, header in reading.headers(source):
                if header.last_offset >= first_dirty:
                    break
                if header.producer_id not in producers:
                    continue
                if not header.control:
                    last = last_of.get(header.producer_id, ())
                    last = (*last[1 - BATCHES_REMEMBERED :], header.last_offset)
                    last_of[header.producer_id] = last
                elif header.record_count:
                    self._clean_markers[header.producer_id] = header.last_offset
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
