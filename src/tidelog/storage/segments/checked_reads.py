"""Reads of whole batches of a segment, each checked before a reader gets it (promise 26).

Owns which part of the file is read and which part was checked before. Not the judgement of the
bytes: see `soundness`. Not what follows from damage: see `log.reading` and `log.region`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound, sound_part

_base_offset = struct.Struct(">q").unpack_from


class Slice(NamedTuple):
    """Whole batches of a segment. ``next_offset``/``next_position``: where reading continues."""

    data: memoryview
    next_offset: int
    next_position: int


def read_batches(
    segment: Segment,
    position: int,
    max_bytes: int,
    limit_offset: int,
    at_least_one: bool,
    epochs: LeaderEpochs,
    least_offset: int = 0,
) -> Slice | None:
    """Return whole, sound batches from a batch's position that end before ``limit_offset``.

    At most ``max_bytes``, but with ``at_least_one`` the first batch whole. None when there is
    no such batch. One read; Unsound when a batch is not what was written.
    """
    available = segment.size - position
    if available < HEADER_SIZE:
        return None
    least, end = max(least_offset, segment.base_offset), segment.next_offset
    max_bytes = max(max_bytes, 0)
    # With the header after them: the same call to the disk shows where the next batch begins.
    data = _whole(segment, position, min(available, max_bytes + HEADER_SIZE))
    size, next_offset = sound_part(data, least, limit_offset, end, epochs)
    if size > max_bytes:
        # A batch that ends within those bytes: one without records is a header alone.
        size, next_offset = sound_part(data[:max_bytes], least, limit_offset, end, epochs)
    if not size:
        first = read_header(data)
        if first.size > available:
            raise Unsound(f"the batch at offset {first.base_offset} ends after its file")
        if first.size <= max_bytes or not at_least_one:
            return None
        data = _whole(segment, position, first.size)
        size, next_offset = sound_part(data, least, limit_offset, end, epochs)
        if not size:
            return None
    _check_after(segment, position, data, size, next_offset)
    return Slice(memoryview(data)[:size], next_offset, position + size)


def sound_until(segment: Segment, start: int, end: int, epochs: LeaderEpochs) -> int:
    """Return where the whole batches between two positions end. Unsound for a bad one.

    Each batch is read and checked once per process; batches that the process wrote are not.
    """
    low, high = segment.checked
    if low <= start and end <= high:
        return end
    if low <= start < high:
        start = high
    data = _whole(segment, start, end - start)
    last = segment.next_offset
    size, next_offset = sound_part(data, segment.base_offset, last, last, epochs)
    end = start + size
    _check_after(segment, start, data, size, next_offset)
    apart = start > high or end < low
    segment.checked = (start, end) if apart else (min(low, start), max(high, end))
    return end


def checked_until(segment: Segment, start: int) -> int:
    """Return the position up to which ``sound_until`` has nothing to read from ``start`` on."""
    low, high = segment.checked
    return high if low <= start < high else start


def _whole(segment: Segment, position: int, size: int) -> bytes:
    """Return bytes that the segment has. Unsound when its file is shorter: it was cut."""
    data = segment.read_bytes(position, size)
    if len(data) < size:
        raise Unsound(f"{segment.log_path} ends at {position + len(data)}, before {segment.size}")
    return data


def _check_after(segment: Segment, position: int, data: bytes, size: int, next_offset: int) -> None:
    """Raise Unsound when the batch after the first ``size`` bytes begins before they end.

    ``data``: what was read from ``position`` on. The disk is asked where its header is not there.
    """
    end = position + size
    if size + HEADER_SIZE <= len(data):
        (base_offset,) = _base_offset(data, size)
    elif end + HEADER_SIZE <= segment.size:
        base_offset = segment.header_at(end).base_offset
    else:
        return
    if base_offset < next_offset:
        raise Unsound(f"{segment.log_path} has offset {base_offset} after {next_offset - 1}")
