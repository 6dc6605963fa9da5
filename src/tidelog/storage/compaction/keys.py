"""The first pass of a run: the newest offset of each key in the dirty part of a log.

Owns how far a run goes: over the first batches whose keys fit into its table; one batch is always
taken. A record of an aborted transaction is the newest of no key. Each dirty segment is read once
here. Not the table: see `newest`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tidelog.records.batch import BatchHeader
from tidelog.records.control_records import (
    PARTITION_CHANGE,
    AncestorTombstone,
    control_type,
    decode_change,
)
from tidelog.records.reader import read_batch
from tidelog.records.record import CorruptRecords
from tidelog.storage.compaction.digests import KeyDigests
from tidelog.storage.compaction.newest import NewestOffsets, table_for
from tidelog.storage.compaction.opened import Item, OpenedBatches, opened, pieces
from tidelog.storage.compaction.plan import SourceSegment
from tidelog.storage.compaction.reading import SegmentReading
from tidelog.storage.compaction.transactions import aborted_batches
from tidelog.storage.log.producers import BATCHES_REMEMBERED


@dataclass(slots=True)
class DirtyKeys:
    """What the dirty part says, up to ``end_offset``."""

    newest: NewestOffsets
    end_offset: int
    producers: frozenset[int]
    digests: KeyDigests = field(default_factory=KeyDigests)
    last_batches: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Producer id -> last offsets of its last batches there, as many as leaders recognize."""
    last_markers: dict[int, int] = field(default_factory=dict)
    """Producer id -> offset of its last marker there (KIP-98)."""

    def take(self, items: Sequence[Item]) -> bool:
        """Note the keys of some batches; False when those of one of them do not fit: it is the
        end."""
        if self.newest.has_room(sum(map(_most_keys, items))):
            self._put(items)
            return True
        if len(items) > 1:
            half = len(items) // 2
            return self.take(items[:half]) and self.take(items[half:])
        ((part, records),) = opened(items)
        item = items[0]
        if records is None and not (item.header.control and _voided_in(part)):
            self._note_producers(items)
            return True
        if self.newest.count:
            self.end_offset = item.header.base_offset
            return False
        self.newest = NewestOffsets(_most_keys(item), _most_keys(item))
        self._put(items)
        return True

    def newest_of(self, records: OpenedBatches) -> np.ndarray:
        """Return the newest offset of each record's key, of those that have one."""
        return self.newest.get(self._digests_of(records, np.flatnonzero(records.has_key)))

    def newest_of_key(self, key: bytes) -> int:
        """Return the newest offset of a key, -1 without one."""
        return int(self.newest.get(self.digests.of_keys([key]))[0])

    def _digests_of(self, records: OpenedBatches, rows: np.ndarray) -> np.ndarray:
        return self.digests.of(records.data, records.key_starts[rows], records.key_sizes[rows])

    def _put(self, items: Sequence[Item]) -> None:
        for part, records in opened(items):
            digests = np.empty((0, 2), dtype=np.uint64)
            offsets = np.empty(0, dtype=np.int64)
            if records is not None:
                rows = np.flatnonzero(records.has_key)
                digests, offsets = self._digests_of(records, rows), records.offsets[rows]
            voided = _voided_in(part)
            if voided:
                keys, places = zip(*voided, strict=True)
                digests = np.concatenate((digests, self.digests.of_keys(list(keys))))
                offsets = np.concatenate((offsets, np.array(places, dtype=np.int64)))
                order = np.argsort(offsets, kind="stable")
                digests, offsets = digests[order], offsets[order]
            self.newest.put(digests, offsets)
        self._note_producers(items)

    def _note_producers(self, items: Sequence[Item]) -> None:
        for item in items:
            header = item.header
            if header.producer_id not in self.producers:
                continue
            if not header.control:
                last = self.last_batches.get(header.producer_id, ())
                last = (*last[1 - BATCHES_REMEMBERED :], header.last_offset)
                self.last_batches[header.producer_id] = last
            elif header.record_count:
                self.last_markers[header.producer_id] = header.last_offset


def newest_offsets(reading: SegmentReading) -> DirtyKeys:
    """Read the dirty part, as far as its keys fit into the table of the plan's share."""
    plan = reading.plan
    table = table_for(plan.share, plan.end_offset - plan.first_dirty_offset)
    keys = DirtyKeys(table, plan.end_offset, plan.producers)
    aborted = aborted_batches(reading)
    for source in reading.sources:
        if source.next_offset <= plan.first_dirty_offset:
            continue
        if aborted is not None:
            aborted.begin(source)
        for items in pieces(_dirty(reading, source), aborted):
            if not keys.take(items):
                return keys
    return keys


def voided_key(header: BatchHeader, batch: memoryview) -> bytes | None:
    """Return the key of an ancestor tombstone; None for any other control batch, or a damaged
    one."""
    if header.record_count != 1 or header.last_offset != header.base_offset:
        return None
    try:
        (record,) = read_batch(batch)
        if control_type(record.key) != PARTITION_CHANGE:
            return None
        change = decode_change(record.value)
    except CorruptRecords:
        return None
    return change.key if isinstance(change, AncestorTombstone) else None


def _dirty(
    reading: SegmentReading, source: SourceSegment
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    first = reading.plan.first_dirty_offset
    return (batch for batch in reading.batches(source) if batch[1].last_offset >= first)


def _most_keys(item: Item) -> int:
    return item.header.record_count if item.payload is not None else int(item.header.control)


def _voided_in(items: Sequence[Item]) -> list[tuple[bytes, int]]:
    """Return the keys of ancestor tombstones, and their offsets."""
    voided = []
    for item in items:
        if item.header.control:
            key = voided_key(item.header, item.batch)
            if key is not None:
                voided.append((key, item.header.last_offset))
    return voided
