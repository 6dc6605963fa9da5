"""The fields of many records at once with numpy: where they lie, and what their fixed part says.

Owns the fields of records format v2 (KIP-98), for the Spark decoder and the cleaner. Not where the
records begin: see `starts`. Not batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidelog.records.record import CorruptRecords
from tidelog.records.varints import Bytes, Positions, read_varints

Booleans = npt.NDArray[np.bool_]

_SMALLEST_HEADER = 2


@dataclass(frozen=True, slots=True)
class Segments:
    """Where one field of each record lies; null where `valid` is false (begin = end there)."""

    begin: Positions
    end: Positions
    valid: Booleans | None

    def cut(self, low: int, high: int) -> Segments:
        valid = None if self.valid is None else self.valid[low:high]
        return Segments(self.begin[low:high], self.end[low:high], valid)


@dataclass(frozen=True, slots=True)
class Fields:
    """What the fixed part of each record says. Offsets and timestamps are still deltas."""

    timestamp_deltas: Positions
    offset_deltas: Positions
    keys: Segments
    values: Segments
    header_counts: Positions
    header_begin: Positions
    ends: Positions


def read_fields(view: Bytes, starts: Positions, ends: Positions) -> Fields:
    """The fields of the records at `starts`. Raises CorruptRecords."""
    length, pos = read_varints(view, starts)
    if not np.array_equal(pos + length, ends):
        raise CorruptRecords("the length of a record is negative or too large")
    timestamps, pos = read_varints(view, pos + 1)  # one byte of attributes, unused
    offsets, pos = read_varints(view, pos)
    keys, pos = read_segments(view, pos, ends)
    values, pos = read_segments(view, pos, ends)
    headers, pos = read_varints(view, pos)
    # Divided, for twice a number of 64 bits may be one of no bits.
    most = (ends - pos) // _SMALLEST_HEADER
    if (pos > ends).any() or (headers < 0).any() or (headers > most).any():
        raise CorruptRecords("a record is longer than its length")
    return Fields(timestamps, offsets, keys, values, headers, pos, ends)


def read_segments(view: Bytes, begins: Positions, ends: Positions) -> tuple[Segments, Positions]:
    """The byte fields that begin at these places, and the positions after them; CorruptRecords when
    one reaches beyond its record."""
    length, begin = read_varints(view, begins)
    shortest = int(length.min())
    valid = None
    if shortest < 0:
        if shortest < -1:
            raise CorruptRecords("a key, value or header of a record has a negative length")
        valid = length >= 0
        length = np.maximum(length, 0)
    end = begin + length
    if (end > ends).any():
        raise CorruptRecords("a key, value or header reaches beyond its record")
    return Segments(begin, end, valid), end
