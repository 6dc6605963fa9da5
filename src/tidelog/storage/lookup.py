"""Finding a record by its time.

Owns the search over segments, their time indexes and batch headers; only the one batch that holds
the answer is decoded. Source: ListOffsets (KIP-79), max timestamp (KIP-734).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.records.batch import BatchHeader
from tidelog.records.reader import read_batch
from tidelog.runtime.disk import File
from tidelog.storage.results import TimeOffset
from tidelog.storage.scan import HEADERS_BYTES, scan
from tidelog.storage.segment import Segment


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, start_offset: int
) -> TimeOffset | None:
    """Return the first record not older than ``timestamp`` (ms) from ``start_offset`` on.

    Grows with the number of segments and one index interval of headers. CorruptRecords when the
    batch does not decode.
    """
    for segment in segments:
        if segment.next_offset <= start_offset or segment.newest[0] < timestamp:
            continue
        from_offset = max(segment.time_index.offset_for(timestamp), start_offset)
        position = segment.index.position_for(from_offset)
        file = segment.open_log()
        for at, header in scan(
            file, position, segment.size, check=False, chunk_bytes=HEADERS_BYTES
        ):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            found = _first_in(file, at, header, timestamp, start_offset)
            if found is not None:
                return found
    return None


def newest(segments: Sequence[Segment], start_offset: int) -> TimeOffset | None:
    """Return the first record with the greatest timestamp; None when no record has a time."""
    best: Segment | None = None
    for segment in segments:
        if segment.newest[0] >= 0 and (best is None or segment.newest[0] > best.newest[0]):
            best = segment
    if best is None:
        return None
    timestamp, last_offset = best.newest
    located = best.locate(last_offset)
    if located is None:
        return None
    return _first_in(best.open_log(), located[0], located[1], timestamp, start_offset)


def _first_in(
    file: File, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> TimeOffset | None:
    if header.record_count == 0:
        return None
    for record in read_batch(file.read_at(position, header.size)):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return TimeOffset(record.timestamp, record.offset, header.leader_epoch)
    return None
