"""Finding a record by its time.

Owns the search over segments, their time indexes and batch headers; only the one batch that holds
the answer is decoded. Source: ListOffsets (KIP-79), max timestamp (KIP-734).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.records.batch import NO_TIMESTAMP, BatchHeader
from tidelog.records.reader import read_batch
from tidelog.storage.results import TimeOffset
from tidelog.storage.segment import Segment
from tidelog.storage.soundness import check_batch


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, start_offset: int
) -> TimeOffset | None:
    """Return the first record not older than ``timestamp`` (ms) from ``start_offset`` on.

    Grows with the number of segments and one index interval of headers. CorruptRecords when the
    batch does not decode.
    """
    for segment in segments:
        if segment.next_offset <= start_offset or segment.sound_newest[0] < timestamp:
            continue
        for at, header in segment.from_time(timestamp, start_offset):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            found = _first_in(segment, at, header, timestamp, start_offset)
            if found is not None:
                return found
    return None


def newest(segments: Sequence[Segment], start_offset: int, limit_offset: int) -> TimeOffset | None:
    """Return the first record with the greatest timestamp of ``start_offset`` up to, not with,
    ``limit_offset``; None when no record there has a time.

    Grows with the number of segments; where the newest of a segment is outside, by the headers
    between the last entry of its time index that is inside and the end.
    """
    best: tuple[int, int, BatchHeader, Segment] | None = None
    for segment in segments:
        if segment.next_offset <= start_offset or segment.base_offset >= limit_offset:
            continue
        if best is not None and segment.sound_newest[0] <= best[0]:
            continue
        found = _newest_in(segment, start_offset, limit_offset)
        if found is not None and (best is None or found[0] > best[0]):
            best = (*found, segment)
    if best is None:
        return None
    timestamp, position, header, segment = best
    return _first_in(segment, position, header, timestamp, start_offset)


def _newest_in(
    segment: Segment, start_offset: int, limit_offset: int
) -> tuple[int, int, BatchHeader] | None:
    """Return the greatest timestamp of a part of a segment, and the batch that has it."""
    timestamp, last_offset = segment.sound_newest
    if timestamp < 0:
        return None
    if start_offset <= last_offset < limit_offset:
        located = segment.locate(last_offset)
        if located is not None and located[1].base_offset >= start_offset:
            return timestamp, *located
    best: tuple[int, int, BatchHeader] | None = None
    for position, header in segment.from_newest(start_offset, limit_offset):
        if header.next_offset > limit_offset:
            break
        if header.last_offset < start_offset:
            continue
        newest_time = header.newest_time
        if header.base_offset < start_offset:
            # Its newest record may be one of those that are deleted.
            batch = segment.read_bytes(position, header.size)
            check_batch(batch)
            records = read_batch(batch)
            times = [record.timestamp for record in records if record.offset >= start_offset]
            newest_time = max(times, default=NO_TIMESTAMP)
        if newest_time > (NO_TIMESTAMP if best is None else best[0]):
            best = newest_time, position, header
    return best


def _first_in(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> TimeOffset | None:
    if header.record_count == 0:
        return None
    batch = segment.read_bytes(position, header.size)
    check_batch(batch)
    for record in read_batch(batch):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return TimeOffset(record.timestamp, record.offset, header.leader_epoch)
    return None
