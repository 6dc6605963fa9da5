"""The index files of a closed segment, opened or read as a whole.

Owns the two ways to begin with them: a life that wrote them or was stopped cleanly looks entries up
where they are, and has each confirmed by its batch; a start after a crash looks at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from tidelog.records.batch import NO_TIMESTAMP, BatchHeader
from tidelog.storage.segments.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
)
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.stored_entries import Read

Both = tuple[OffsetIndex, TimeIndex]


def open_indexes(
    resources: Resources, base_offset: int, index_path: str, time_index_path: str
) -> Both | None:
    """Return the indexes in two files, which are read where they are asked; None when one is
    missing or no whole number of entries. Constant work; OSError as the disk gives it."""
    files = resources.files
    try:
        offsets, no_offset = divmod(files.size(index_path), OFFSET_ENTRY_BYTES)
        times, no_time = divmod(files.size(time_index_path), TIME_ENTRY_BYTES)
    except FileNotFoundError:
        return None
    if no_offset or no_time:
        return None
    return (
        OffsetIndex(base_offset, reader_of(resources, index_path), offsets),
        TimeIndex(base_offset, reader_of(resources, time_index_path), times),
    )


def read_indexes(
    resources: Resources, base_offset: int, index_path: str, time_index_path: str, log_size: int
) -> Both | None:
    """Return them likewise, when every entry is sane for a log of that size; None otherwise."""
    disk = resources.disk
    try:
        contents = disk.read(index_path), disk.read(time_index_path)
    except FileNotFoundError:
        return None
    index = OffsetIndex.parse(base_offset, contents[0], log_size)
    time_index = TimeIndex.parse(base_offset, contents[1])
    if index is None or time_index is None:
        return None
    return open_indexes(resources, base_offset, index_path, time_index_path)


def reader_of(resources: Resources, path: str) -> Read:
    """Return what reads a part of an index file that is open, or opened for it."""
    return partial(_read, resources, path)


def _read(resources: Resources, path: str, position: int, size: int) -> bytes:
    return resources.files.get(path).read_at(position, size)


class BuiltIndexes(NamedTuple):
    """Both indexes of a segment as its batches give them, and what was learnt on the way."""

    offsets: OffsetIndex
    times: TimeIndex
    newest: tuple[int, int]
    """The greatest timestamp, and the last offset of the batch that has it."""
    first_time: int | None
    bytes_since_entry: int
    end: int
    """Where the batches end in the file."""


def indexes_of(
    batches: Iterable[tuple[int, BatchHeader]], base_offset: int, interval: int
) -> BuiltIndexes:
    """Return the indexes of a segment, built in memory from the headers of all its batches.

    As ``Segment.note`` builds them while batches are appended.
    """
    index, time_index = OffsetIndex(base_offset), TimeIndex(base_offset)
    newest, first_time = (NO_TIMESTAMP, base_offset), None
    since = end = 0
    for position, header in batches:
        size, time = header.size, header.newest_time
        if time > newest[0]:
            newest = time, header.last_offset
        if position == 0:
            first_time = time
        if since <= interval:
            since += size
        else:
            index.add(header.last_offset, position)
            time_index.add(*newest)
            since = size
        end = position + size
    return BuiltIndexes(index, time_index, newest, first_time, since, end)
