"""The aborted transactions of the segments of a run: which batches are theirs, and their index.

Owns both (KIP-98). A plan without any has none of this, and its batches are not asked. Not which
markers stay: see `rewriting`. Not the form of an index: see `storage.log.aborted`.

Memory: the indexes of a segment and of those after it that name transactions of it, 34 bytes for
each transaction; more for those that have batches in the segment at hand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from tidelog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from tidelog.storage.compaction.plan import IndexedSegment, SourceSegment
from tidelog.storage.compaction.reading import SegmentReading
from tidelog.storage.log.aborted_files import read_entries
from tidelog.storage.log.aborted_recovery import entries_below
from tidelog.storage.segments.segment import Segment

OF_TRANSACTION = TRANSACTIONAL_BIT | CONTROL_BIT
"""Of these bits the first alone is set in a batch of records of a transaction."""

_ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer", ">i8"),
        ("first", ">i8"),
        ("marker", ">i8"),
        ("stable", ">i8"),
    ]
)
Entries = npt.NDArray[np.void]


class AbortedBatches:
    """The answers for one segment at a time; ``begin`` with each, in their order."""

    def __init__(self, reading: SegmentReading) -> None:
        self._reading = reading
        self._indexed = reading.plan.indexed
        self._bases = [one.base_offset for one in self._indexed]
        self._read: dict[int, Entries] = {}
        """By base offset: of the segment at hand, and of later ones that were needed for it."""
        self._of: dict[int, tuple[list[int], list[int]]] = {}
        """Producer id -> first offsets and markers of its transactions, which rise."""

    def begin(self, source: SourceSegment) -> None:
        """Go to a segment. Grows with the aborted transactions that have batches or a marker in
        it, and with those between them."""
        begin, limit = source.base_offset, source.next_offset
        self._read = {base: one for base, one in self._read.items() if base >= begin}
        self._of = {}
        for indexed in self._indexed[bisect_left(self._bases, begin) :]:
            entries = self._entries(indexed)
            there = entries[entries["first"] < limit]
            columns = (there[name].tolist() for name in ("producer", "first", "marker"))
            for producer, first, marker in zip(*columns, strict=True):
                firsts, markers = self._of.setdefault(producer, ([], []))
                firsts.append(first)
                markers.append(marker)
            if (entries["stable"] >= limit).any():
                break  # whatever ends after that one began at or above the limit

    def has(self, header: BatchHeader) -> bool:
        """Whether a batch of the segment has records of an aborted transaction."""
        if header.attributes & OF_TRANSACTION != TRANSACTIONAL_BIT:
            return False
        firsts, markers = self._of.get(header.producer_id, ((), ()))
        place = bisect_left(markers, header.base_offset)
        return place < len(markers) and firsts[place] <= header.base_offset

    def index_of(
        self, group: Sequence[SourceSegment], without: Collection[int] = ()
    ) -> bytes | None:
        """Return the index of segments that become one, but for transactions with these markers;
        None when no segment of the group has one."""
        bases = {source.base_offset for source in group}
        parts = [self._entries(one) for one in self._indexed if one.base_offset in bases]
        if not parts:
            return None
        gone = np.fromiter(without, np.int64, len(without))
        return b"".join([part[~np.isin(part["marker"], gone)].tobytes() for part in parts])

    def _entries(self, indexed: IndexedSegment) -> Entries:
        base = indexed.base_offset
        if base not in self._read:
            content = indexed.entries
            if content is None:
                disk, directory = self._reading.shared.disk, self._reading.plan.directory
                content, _ = read_entries(disk, directory, base)
            if content is None:
                content = self._by_batches(base)
            self._reading.took(len(content))
            self._read[base] = np.frombuffer(content, dtype=_ENTRY)
        return self._read[base]

    def _by_batches(self, base: int) -> bytes:
        """Return the entries of a segment whose files prove none."""
        reading = self._reading
        shared, plan = reading.shared, reading.plan
        segments = [
            Segment(shared, plan.directory, one.base_offset, one.size, one.next_offset)
            for one in takewhile(
                lambda one: one.base_offset <= base, [*reading.sources, *plan.following]
            )
        ]
        return entries_below(shared.disk, plan.directory, segments, segments[-1].next_offset)


def aborted_batches(reading: SegmentReading) -> AbortedBatches | None:
    """Return what the segments of a plan need; None where nothing was aborted."""
    return AbortedBatches(reading) if reading.plan.indexed else None
