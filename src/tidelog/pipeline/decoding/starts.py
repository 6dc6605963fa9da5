"""Finds where each record of a batch begins: the one step that must go from record to record.

Owns that walk; does not read the fields. Runs of records of one length, the usual case of measured
data, are checked with numpy at once; all others by a loop of some 100 to 200 ns per record.
"""

from __future__ import annotations

import numpy as np

from tidelog.pipeline.decoding.varints import Bytes, Positions
from tidelog.records.record import CorruptRecords

# Below this the checks of a run cost more than the loop.
_SHORTEST_RUN = 64
_LONGEST_LOOP = 4096

# What the first byte of a length adds to the position: the lengths of the length field and of the
# record's low six (zigzag: one bit is the sign) bits.
_ADVANCE = [1 + (byte >> 1) if byte < 128 else 2 + ((byte & 127) >> 1) for byte in range(256)]


def record_starts(
    data: bytes, view: Bytes, begin: int, end: int, count: int, out: list[Positions]
) -> None:
    """Append to `out` the positions of the `count` records in data[begin:end].

    `view` is numpy's view of `data`. Raises CorruptRecords when the chain of lengths does not end
    at `end`. Takes `count` steps at most.
    """
    at, left, loop = begin, count, _SHORTEST_RUN
    try:
        while left:
            if left >= _SHORTEST_RUN:
                run = _run_of_equals(data, view, at, end, left)
                if len(run) > 1:
                    out.append(run)
                    left -= len(run)
                    at = int(run[-1]) + _size(data, int(run[-1]))
                    loop = _SHORTEST_RUN
                    continue
            steps = min(left, loop)
            loop = min(loop * 2, _LONGEST_LOOP)
            at = _walk(data, at, steps, out)
            left -= steps
    except IndexError:
        raise CorruptRecords("a record reaches beyond the end of its batch") from None
    if at != end:
        raise CorruptRecords("the lengths of the records do not add up to their batch")


def _walk(data: bytes, at: int, steps: int, out: list[Positions]) -> int:
    starts: list[int] = []
    append = starts.append
    advance = _ADVANCE
    for _ in range(steps):
        append(at)
        byte = data[at]
        if byte > 127:
            second = data[at + 1]
            at += advance[byte] + (second << 6) if second < 128 else _size(data, at)
        else:
            at += advance[byte]
    out.append(np.array(starts, dtype=np.int64))
    return at


def _size(data: bytes, at: int) -> int:
    """Bytes of the record at `at`, its length field included."""
    value = 0
    for position in range(5):
        byte = data[at + position]
        value |= (byte & 127) << (7 * position)
        if byte < 128:
            return position + 1 + (value >> 1)
    raise CorruptRecords("the length of a record is longer than five bytes")


def _run_of_equals(data: bytes, view: Bytes, at: int, end: int, most: int) -> Positions:
    """The positions from `at` of records that all have the length of the first.

    Record k+1 begins one stride behind record k if record k has that length: so comparing the
    length fields at all strides and cutting at the first that differs proves what is before it.
    """
    stride = _size(data, at)
    if _size(data, at + stride) != stride:
        return np.array([at], dtype=np.int64)
    width = 1
    while data[at + width - 1] > 127:
        width += 1
    count = min(most, (end - at) // stride)
    equal = np.ones(max(count, 1), dtype=np.bool_)
    for position in range(width):
        column = view[at + position : at + position + (count - 1) * stride + 1 : stride]
        equal[: len(column)] &= column == data[at + position]
    length = int(equal.argmin()) if not equal.all() else len(equal)
    return at + stride * np.arange(length, dtype=np.int64)
