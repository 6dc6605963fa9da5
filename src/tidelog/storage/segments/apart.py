"""A copy of a segment for one thread: with files of its own, and indexes that stay in memory.

Owns the copy. The log's owner continues to read the segment itself; neither sees the files that the
other opens or the indexes that it rebuilds.
"""

from __future__ import annotations

from tidelog.records.batch import BatchHeader
from tidelog.runtime.disk import Disk
from tidelog.storage.segments.index_files import reader_of
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.segment import NO_ROOM, Segment

OPEN_FILES = 8
"""One segment has three."""


def own_files(disk: Disk) -> Resources:
    """Return resources for the segments of one thread; close their files."""
    return Resources.of(disk, OPEN_FILES)


class SegmentApart(Segment):
    """A segment as it is now, read by one thread. Changes no file."""

    def __init__(self, segment: Segment, own: Resources) -> None:
        """Called by the segment's owner."""
        super().__init__(
            own, segment.directory, segment.base_offset, segment.size, segment.next_offset
        )
        self._bytes_since_entry = segment._bytes_since_entry
        if segment._index is not None and segment._time_index is not None:
            self.set_indexes(
                segment._index.copied(reader_of(own, self.index_path)),
                segment._time_index.copied(reader_of(own, self.time_index_path)),
            )

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """See ``Segment``. Does without index files that are gone though their owner has them
        open."""
        paths = (self._index, self.index_path), (self._time_index, self.time_index_path)
        for index, path in paths:
            if index is not None and index.stored.count and not self._disk.exists(path):
                self._index = self._time_index = None
        return super().locate(offset)

    def restart_indexes(self) -> None:
        """Begin both indexes again, in memory only."""
        self.start_indexes()

    def close_indexes(self) -> None:
        """Complete the indexes, in memory only."""
        self.time_index.add(*self.newest)

    def cut_at(self, size: int, end_offset: int) -> None:
        """Drop, in memory, all from a position and an offset on."""
        self.index.truncate(size)
        self.time_index.truncate(end_offset)
        self.size, self.next_offset = size, end_offset
        self._newest = self.unsound = self._first_time = None
        if not size:
            self._bytes_since_entry = 0
        _ = self.newest

    def hand_over(self, segment: Segment) -> None:
        """Let the segment itself be as this copy is, for its owner. Changes no file."""
        own = segment.resources
        own.indexes.forget(segment)
        segment.set_indexes(
            self.index.copied(reader_of(own, self.index_path)),
            self.time_index.copied(reader_of(own, self.time_index_path)),
        )
        low, high = segment.checked
        segment.checked = (min(low, self.size), min(high, self.size))
        segment.size, segment.next_offset = self.size, self.next_offset
        segment._newest, segment.unsound, segment._first_time = self._newest, self.unsound, None
        segment._bytes_since_entry = self._bytes_since_entry
        segment.room = NO_ROOM
