"""Whether neighbouring segments of a log stand without a gap: a start asks it of those it does not
read (promise 26).

Owns that judgement. A segment begins where the one before it ends, whatever retention, cuts and our
own compaction have done, so a gap is a segment that is missing. Where a cleaner has run, as its
checkpoint says, gaps are let be: Apache Kafka's leaves them. Two small reads for each segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.scan import HEADERS_BYTES, scan
from tidelog.storage.segments.segment import Segment

_ENTRY = Struct(">ii")
"""Of an offset index: an offset and a position, both relative."""


def missing_between(
    resources: Resources, segments: Sequence[Segment], cleaned: int, log_start: int
) -> str | None:
    """Return what is missing between two segments that begin at or above ``cleaned``, or None.

    What would be below the log's start is not missed: a power loss may bring back files that were
    removed, without bytes that were never synced.
    """
    for segment, following in pairwise(segments):
        if segment.base_offset < cleaned or following.base_offset <= log_start:
            continue
        end = _end_of(resources, segment)
        if end is not None and end < following.base_offset:
            return (
                f"{segment.log_path} ends at offset {end}, and the next segment begins at "
                f"{following.base_offset}: one between them is missing"
            )
    return None


def _end_of(resources: Resources, segment: Segment) -> int | None:
    """Return where the last batch of a closed segment ends, None if its end cannot be walked.

    From the last entry of its index; from the beginning without one.
    """
    end, next_offset = _last_entry(resources, segment), segment.base_offset
    file = resources.files.get(segment.log_path)
    for position, header in scan(file, end, segment.size, check=False, chunk_bytes=HEADERS_BYTES):
        end = position + header.size
        next_offset = header.next_offset
    return next_offset if end == segment.size else None


def _last_entry(resources: Resources, segment: Segment) -> int:
    if not resources.disk.exists(segment.index_path):
        return 0
    file = resources.files.get(segment.index_path)
    last = file.read_at(max(0, file.size() - _ENTRY.size), _ENTRY.size)
    if len(last) < _ENTRY.size:
        return 0
    position = int(_ENTRY.unpack(last)[1])
    return position if 0 <= position < segment.size else 0
