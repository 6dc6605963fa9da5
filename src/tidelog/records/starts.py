"""The starts of the records of a batch: the one step that must go from record to record.

Owns that walk; does not read the fields. What repeats is checked with numpy at once: runs of
records of one length, and batches whose records lie as those of another batch. All others go by a
loop of some 100 ns per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tidelog.records.record import CorruptRecords
from tidelog.records.varints import Bytes, Positions

# Below this the checks of a run cost more than the loop.
_SHORTEST_RUN = 64
_LONGEST_LOOP = 4096

# What the first byte of a length adds to the position: the lengths of the length field and of the
# record's low six (zigzag: one bit is the sign) bits.
_ADVANCE = [1 + (byte >> 1) if byte < 128 else 2 + ((byte & 127) >> 1) for byte in range(256)]


class Span(NamedTuple):
    """Where the records of one batch lie in a chunk, and how many there are."""

    begin: int
    end: int
    records: int


def all_starts(data: bytes, view: Bytes, spans: Sequence[Span]) -> Positions:
    """The positions of all records of all batches, in order.

    `view` is numpy's view of `data`. Raises CorruptRecords when the chain of lengths of a batch
    does not end at its end. Takes one step per record at most.
    """
    starts = np.empty(sum(span.records for span in spans), dtype=np.int64)
    place = 0
    alike: dict[tuple[int, int], list[tuple[Span, int]]] = {}
    for span in spans:
        alike.setdefault((span.end - span.begin, span.records), []).append((span, place))
        place += span.records
    for group in alike.values():
        first, position = group[0]
        pattern = record_starts(data, view, first)
        starts[position : position + first.records] = pattern
        rest = group[1:]
        same = _has_pattern(view, first, pattern, [span for span, _ in rest])
        for (span, position), is_same in zip(rest, same, strict=True):
            if is_same:
                starts[position : position + span.records] = pattern + (span.begin - first.begin)
            else:
                starts[position : position + span.records] = record_starts(data, view, span)
    return starts


def _has_pattern(
    view: Bytes, first: Span, pattern: Positions, others: Sequence[Span]
) -> Sequence[bool]:
    """Whether batches of one size and count begin their records where the first one does.

    They do if the length fields at these places are those of the first: a record begins where the
    lengths before it put it. Usual for data of one size; two comparisons for all batches at once.
    """
    if not others or not len(pattern):
        return [False] * len(others)
    shifts = np.array([span.begin - first.begin for span in others])[:, None]
    wide = view[pattern] > 127
    second = pattern[wide] + 1
    if wide.any() and (view[second] > 127).any():
        return [False] * len(others)  # lengths of three bytes: not worth a case of its own
    same = (view[pattern[None, :] + shifts] == view[pattern][None, :]).all(axis=1)
    if len(second):
        same &= (view[second[None, :] + shifts] == view[second][None, :]).all(axis=1)
    return [bool(one) for one in same]


def record_starts(data: bytes, view: Bytes, span: Span) -> Positions:
    """The positions of the records of one batch. Raises CorruptRecords."""
    position, left, loop = span.begin, span.records, _SHORTEST_RUN
    parts: list[Positions] = []
    try:
        while left:
            if left >= _SHORTEST_RUN:
                run = _run_of_equals(data, view, position, span.end, left)
                if len(run) > 1:
                    parts.append(run)
                    left -= len(run)
                    position = int(run[-1]) + _size(data, int(run[-1]))
                    loop = _SHORTEST_RUN
                    continue
            steps = min(left, loop)
            loop = min(loop * 2, _LONGEST_LOOP)
            position = _walk(data, position, steps, parts)
            left -= steps
    except IndexError:
        raise CorruptRecords("a record reaches beyond the end of its batch") from None
    if position != span.end:
        raise CorruptRecords("the lengths of the records do not add up to their batch")
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _walk(data: bytes, position: int, steps: int, out: list[Positions]) -> int:
    starts: list[int] = []
    append = starts.append
    advance = _ADVANCE
    for _ in range(steps):
        append(position)
        byte = data[position]
        if byte > 127:
            second = data[position + 1]
            position += advance[byte] + (second << 6) if second < 128 else _size(data, position)
        else:
            position += advance[byte]
    out.append(np.array(starts, dtype=np.int64))
    return position


def _size(data: bytes, begin: int) -> int:
    """Bytes of the record at `begin`, its length field included."""
    value = 0
    for position in range(5):
        byte = data[begin + position]
        value |= (byte & 127) << (7 * position)
        if byte < 128:
            return position + 1 + (value >> 1)
    raise CorruptRecords("the length of a record is longer than five bytes")


def _run_of_equals(data: bytes, view: Bytes, begin: int, end: int, most: int) -> Positions:
    """The positions from `begin` of records that all have the length of the first.

    Record k+1 begins one stride after record k if record k has that length: so all records before
    the first length field that differs, at any stride, have it.
    """
    stride = _size(data, begin)
    if _size(data, begin + stride) != stride:
        return np.array([begin], dtype=np.int64)
    width = 1
    while data[begin + width - 1] > 127:
        width += 1
    count = min(most, (end - begin) // stride)
    equal = np.ones(max(count, 1), dtype=np.bool_)
    for position in range(width):
        column = view[begin + position : begin + position + (count - 1) * stride + 1 : stride]
        equal[: len(column)] &= column == data[begin + position]
    length = int(equal.argmin()) if not equal.all() else len(equal)
    return begin + stride * np.arange(length, dtype=np.int64)
