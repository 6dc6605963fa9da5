"""The comparison of records of the lake with records of the log, both in the order of offsets.

Owns what "the same record" means, over Arrow batches with numpy: offset by offset, no row in
Python. Pure; does not read files or logs. Works through windows: all rows of the lake below the end
of one batch of the log beside that batch, so that memory holds a batch of each side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# What must be equal besides the place; headers are compared by their own rule.
_FLAT = ("key", "value", "timestamp", "timestampType", "epoch")


@dataclass(slots=True)
class ComparisonCounts:
    """What was found. `unmatched` are offsets of the lake that the log did not give."""

    log_rows: int = 0
    matched: int = 0
    differing: int = 0
    missing: int = 0
    missing_first: int = -1
    missing_last: int = -1
    unmatched_rows: int = 0
    unmatched: list[Offsets] | None = None

    def add_missing(self, offsets: Offsets) -> None:
        """Offsets of the log that the lake does not have; they are sorted."""
        if not len(offsets):
            return
        first, last = int(offsets[0]), int(offsets[-1])
        self.missing_first = min(first, self.missing_first) if self.missing else first
        self.missing += len(offsets)
        self.missing_last = max(last, self.missing_last)

    def add_unmatched(self, offsets: Offsets) -> None:
        """Offsets of the lake that the log does not have, in order."""
        if len(offsets):
            self.unmatched = [*(self.unmatched or ()), offsets]
            self.unmatched_rows += len(offsets)

    def unmatched_from(self, log_start: int) -> int:
        """How many of them lie at or above an offset."""
        return sum(int((offsets >= log_start).sum()) for offsets in self.unmatched or ())


def compare(lake: Iterable[pa.RecordBatch], log: Iterable[pa.RecordBatch]) -> ComparisonCounts:
    """Both sides in the order of their offsets; an offset may come several times in the lake.

    Of several rows with one offset the first is compared.
    """
    counts = ComparisonCounts()
    rows = _Cursor(lake)
    for batch in log:
        if batch.num_rows:
            offsets = batch.column("offset").to_numpy()
            _window(rows.below(int(offsets[-1]) + 1), batch, offsets, counts)
    for left in rows.rest():
        counts.add_unmatched(np.unique(left.column("offset").to_numpy()))
    return counts


class _Cursor:
    """Takes rows off a stream of batches up to an offset."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._held: pa.RecordBatch | None = None

    def below(self, end: int) -> list[pa.RecordBatch]:
        """All rows not yet taken whose offset is below `end`."""
        taken: list[pa.RecordBatch] = []
        while (batch := self._next()) is not None:
            cut = int(np.searchsorted(batch.column("offset").to_numpy(), end))
            if cut:
                taken.append(batch.slice(0, cut))
            if cut < batch.num_rows:
                self._held = batch.slice(cut)
                break
        return taken

    def rest(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._next()) is not None:
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        if self._held is not None:
            batch, self._held = self._held, None
            return batch
        for batch in self._batches:
            if batch.num_rows:
                return batch
        return None


def _window(
    rows: list[pa.RecordBatch], log: pa.RecordBatch, log_offsets: Offsets, counts: ComparisonCounts
) -> None:
    counts.log_rows += log.num_rows
    if not rows:
        counts.add_missing(log_offsets)
        return
    lake = _joined(rows)
    offsets = lake.column("offset").to_numpy()
    if not np.array_equal(offsets, log_offsets):
        again = np.flatnonzero(np.diff(offsets) == 0) + 1
        if len(again):
            kept = np.delete(np.arange(len(offsets)), again)
            lake, offsets = lake.take(pa.array(kept)), offsets[kept]
        places = np.searchsorted(log_offsets, offsets)
        hit = log_offsets[np.minimum(places, len(log_offsets) - 1)] == offsets
        counts.add_unmatched(offsets[~hit])
        absent = np.ones(len(log_offsets), np.bool_)
        absent[places[hit]] = False
        counts.add_missing(log_offsets[absent])
        lake = lake.take(pa.array(np.flatnonzero(hit)))
        log = log.take(pa.array(places[hit]))
    counts.matched += log.num_rows
    if log.num_rows:
        counts.differing += int(differences(lake, log).sum())


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def differences(lake: pa.RecordBatch, log: pa.RecordBatch) -> Mask:
    """Which rows differ in key, value, timestamp, its type, epoch or headers; row by row.

    Null and empty are two values of a key, a value and a header's value; a record without headers
    has null in the log and an empty list in the lake.
    """
    differing = np.zeros(lake.num_rows, np.bool_)
    for name in _FLAT:
        differing |= _flat_differences(lake.column(name), log.column(name))
    differing |= _header_differences(lake.column("headers"), log.column("headers"))
    return differing


def _flat_differences(left: pa.Array, right: pa.Array) -> Mask:
    if left.type != right.type:
        left = left.cast(right.type)
    if left.equals(right):
        return np.zeros(len(left), np.bool_)
    same = pc.fill_null(pc.equal(left, right), False)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    made: Mask = ~pc.or_(same, both_null).to_numpy(zero_copy_only=False)
    return made


def _header_differences(left: pa.Array, right: pa.Array) -> Mask:
    lengths, others = _lengths(left), _lengths(right)
    differing: Mask = lengths != others
    if not lengths.any() and not others.any():
        return differing
    if differing.any():
        # Headers can be laid side by side only where both have the same number.
        equal = pa.array(np.flatnonzero(~differing))
        left, right = left.take(equal), right.take(equal)
        lengths = lengths[~differing]
    ours, theirs = left.flatten(), right.flatten()
    apart = _flat_differences(ours.field("key"), theirs.field("key"))
    apart |= _flat_differences(ours.field("value"), theirs.field("value"))
    if apart.any():
        rows = np.repeat(np.flatnonzero(~differing), lengths)
        differing[rows[apart]] = True
    return differing


def _lengths(headers: pa.Array) -> Offsets:
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
