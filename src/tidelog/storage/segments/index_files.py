"""The index files of a segment: opening them, reading them as a whole, rebuilding their content.

Owns the three ways to get indexes. After a clean stop, and for files that this process wrote,
entries are looked up in the files, and each is compared with its batch; a start after a crash
checks all entries; files that are missing or wrong are rebuilt from the batches.
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
    """Return the indexes in two files, whose entries are read when they are looked up; None when a
    file is missing or has a part of an entry. Constant work; OSError as the disk gives it."""
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
    """Return them likewise if every entry is possible in a log of that size; otherwise None."""
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
    """Return a function that reads a part of an index file, and opens the file if need be."""
    return partial(_read, resources, path)


def _read(resources: Resources, path: str, position: int, size: int) -> bytes:
    return resources.files.get(path).read_at(position, size)


class BuiltIndexes(NamedTuple):
    """Both indexes of a segment as its batches give them, and what the walk found out."""

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
