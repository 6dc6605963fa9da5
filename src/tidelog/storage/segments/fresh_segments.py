"""Creation of empty segments: the first one of a log, and the next one at a roll.

Owns which of their files are created at once.
"""

from __future__ import annotations

from tidelog.runtime.disk import Disk
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.segment import Segment


def first_segment(
    resources: Resources, directory: str, now_ms: int, base_offset: int = 0
) -> Segment:
    """Return the first segment of a log; its first write creates the file."""
    segment = Segment(resources, directory, base_offset, 0, base_offset)
    segment.created_ms = now_ms
    segment.start_indexes()
    return segment


def new_segment(resources: Resources, directory: str, base_offset: int, now_ms: int) -> Segment:
    """Create an empty segment; after an OSError it does not exist."""
    segment = Segment(resources, directory, base_offset, 0, base_offset)
    segment.created_ms = now_ms
    # The log file comes last: once it exists, nothing may be appended to the segment before it.
    segment.restart_indexes()
    resources.files.get(segment.log_path, create=True).truncate(0)
    return segment


def make_files(disk: Disk, segment: Segment) -> None:
    """Create the file of a segment without a write so far, in any thread. OSError as usual."""
    for path in segment.index_paths:
        if disk.exists(path):
            _empty(disk, path)
    # The log file comes last: once it exists, nothing may be appended to the segment before it.
    _empty(disk, segment.log_path)


def _empty(disk: Disk, path: str) -> None:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
    finally:
        file.close()
