"""The check for missing segments: neighbouring segments of a log must leave no gap (promise 26).

Owns that judgement, which a start needs for the segments that it does not read. A segment begins
where the one before it ends, whatever retention, cuts and our own compaction have done, so a gap is
a missing segment. Below the cleaner's checkpoint gaps are allowed: Apache Kafka's cleaner leaves
them. Two small reads for each segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.scan import HEADERS_BYTES, scan
from tidelog.storage.segments.segment import Segment

_ENTRY = Struct(">ii")
"""An entry of an offset index: an offset and a position, both relative."""


def missing_between(
    resources: Resources, segments: Sequence[Segment], cleaned: int, log_start: int
) -> str | None:
    """Return a sentence about a gap between two segments that begin at or above ``cleaned``, or
    None.

    A gap below the log's start is no damage: a power loss may bring back files that were removed,
    without bytes that were never synced.
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
    """Return the offset where a closed segment ends, None if its last batches cannot be walked.

    The walk begins at the last entry of its index, or at the first batch without one.
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
