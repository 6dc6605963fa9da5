"""The times in a segment: the time that retention goes by, and batches found by their time.

Owns the walk from a true entry of the time index. Not the newest time itself: see `segment`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.records.batch import BatchHeader
from tidelog.storage.segments.scan import HEADERS_BYTES, scan
from tidelog.storage.segments.segment import UNKNOWN_TIME, Segment
from tidelog.storage.segments.soundness import Unsound


def largest_timestamp(segment: Segment) -> int:
    """Return the time that retention goes by: the newest timestamp, or the file's without one.

    Batches that compaction has emptied still have the time of their records. Where batches cannot
    be walked, the file's time counts too: batches after the damage may be newer.
    """
    newest = segment.newest[0]
    if segment.unsound is not None:
        return max(newest, segment.resources.disk.modified_ms(segment.log_path))
    if newest >= 0:
        return newest
    if not segment.size:
        return segment.created_ms
    batches = scan(segment.open_log(), 0, segment.size, check=False, chunk_bytes=HEADERS_BYTES)
    emptied = max((header.max_timestamp for _, header in batches), default=UNKNOWN_TIME)
    return emptied if emptied >= 0 else segment.resources.disk.modified_ms(segment.log_path)


def from_time(
    segment: Segment, timestamp: int, start_offset: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield positions and headers of the batches that end at or after an offset, beginning with one
    before which all are older than ``timestamp``. Unsound when they cannot be walked."""
    entry = segment.true_time_entry(lambda index: index.entry_below(timestamp))
    return _batches(segment, start_offset if entry is None else max(entry[1], start_offset))


def from_newest(
    segment: Segment, start_offset: int, limit: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield them likewise, beginning with a batch before ``limit`` that is as new as all from the
    offset to it."""
    entry = segment.true_time_entry(lambda index: index.entry_before(limit))
    return _batches(segment, start_offset if entry is None else max(entry[1], start_offset))


def _batches(segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    located = segment.locate(offset)
    if located is None:
        return
    file, end = segment.open_log(), located[0]
    for position, header in scan(file, end, segment.size, check=False, chunk_bytes=HEADERS_BYTES):
        end = position + header.size
        yield position, header
    if end != segment.size:
        raise Unsound(f"{segment.log_path} has no batch at position {end}")
