"""One segment: a log file, its two indexes, and the newest timestamp in it.

Owns appending to the file and finding positions. Not reading whole batches: see `checked_reads`.
Not the decision to roll, keep or cut: see `log.retention` and `log.recovery`. A closed segment
loads its indexes when they are used; the shared cache drops them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog.records.batch import HEADER_SIZE, BatchHeader, read_header
from tidelog.runtime.disk import Buffer, File
from tidelog.storage import names
from tidelog.storage.segments.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
)
from tidelog.storage.segments.index_files import indexes_of, open_indexes, reader_of
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.scan import HEADERS_BYTES, indexable, scan
from tidelog.storage.segments.soundness import Unsound

UNKNOWN_TIME = -1


class Room(NamedTuple):
    """How far appends may go before ``retention.must_roll`` is called: bytes, time, offset."""

    size: int
    timestamp: int
    offset: int


NO_ROOM = Room(-1, -1, -1)


class Segment:
    """``size`` bytes of batches from ``base_offset`` up to (not including) ``next_offset``."""

    def __init__(
        self,
        resources: Resources,
        directory: str,
        base_offset: int,
        size: int,
        next_offset: int,
        *,
        ending: str = "",
    ) -> None:
        self.resources = resources
        self._disk = resources.disk
        self.directory = directory
        self._ending = ending
        self.base_offset = base_offset
        self.size = size
        self.next_offset = next_offset
        self.created_ms = 0
        self.active = False
        """Whether this is the log's active (last) segment, whose indexes stay in memory."""
        self.log_path = self.path(names.LOG)
        self.index_path = self.path(names.INDEX)
        self.time_index_path = self.path(names.TIME_INDEX)
        self.index_paths = self.index_path, self.time_index_path
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._newest: tuple[int, int] | None = None
        self.unsound: Unsound | None = None
        """Why ``newest`` may be wrong."""
        self._first_time: int | None = None
        self._bytes_since_entry = 0
        self.opened_size = size
        self.checked = (size, size)
        """The part of the file that this process has written or checked."""
        self.room = NO_ROOM
        """How far the segment may grow before ``retention.must_roll`` is called again."""

    def path(self, suffix: str) -> str:
        """Return the path of the segment's file with this suffix."""
        return f"{self.directory}/{names.file_name(self.base_offset, suffix)}{self._ending}"

    # Writing ---------------------------------------------------------------------------------

    def write(self, chunks: Sequence[Buffer], size: int) -> int:
        """Append bytes; return their position. OSError leaves ``size`` as it was."""
        position = self.size
        # As ``open_log``, without the call: every append comes here.
        files = self.resources.files
        file = files.get(self.log_path) if position else self.open_log()
        file.write_at(position, chunks)
        self.size = end = position + size
        checked = self.checked
        if checked[1] == position:
            self.checked = checked[0], end
        return position

    def note(
        self, position: int, size: int, last_offset: int, max_timestamp: int, interval: int
    ) -> None:
        """Account for one batch just written at ``position``: end, newest time, index entry."""
        self.next_offset = last_offset + 1
        newest = self._newest
        if newest is None:
            newest = self.newest
        if max_timestamp > newest[0]:
            self._newest = newest = (max_timestamp, last_offset)
        if position == 0:
            self._first_time = max_timestamp
        if self._bytes_since_entry <= interval:
            self._bytes_since_entry += size
            return
        index, time_index = self._index, self._time_index
        if index is None or time_index is None:
            index, time_index = self.index, self.time_index
        index.add(last_offset, position)
        time_index.add(*newest)
        self._bytes_since_entry = size

    def noted(self, next_offset: int, newest: tuple[int, int], bytes_since_entry: int) -> None:
        """Account for batches that a start has checked and indexed, as ``note`` does for each."""
        self.next_offset, self._newest, self._first_time = next_offset, newest, None
        self._bytes_since_entry = bytes_since_entry

    def write_indexes(self) -> None:
        """Write the index entries that the files lack; OSError leaves the rest for later.

        The time index first: ``newest`` checks the batches after the last entry of the other.
        """
        both = (self.time_index_path, self._time_index), (self.index_path, self._index)
        for path, index in both:
            if index is not None and index.written < len(index):
                position, content = index.unwritten()
                self.resources.files.get(path, create=True).write_at(position, [content])
                index.written = len(index)

    def close_indexes(self) -> None:
        """Write the indexes, the newest time as the last entry, as a closed segment has them."""
        self.time_index.add(*self.newest)
        self.write_indexes()
        for path in (self.index_path, self.time_index_path):
            self.resources.files.get(path, create=True)

    def indexes_are_complete(self) -> bool:
        """Whether the index files are as ``close_indexes`` leaves them."""
        index, time_index = self.index, self.time_index
        newest = self.newest
        return (
            index.written == len(index)
            and time_index.written == len(time_index)
            and (newest[0] < 0 or time_index.last() == newest)
            and self._disk.exists(self.index_path)
            and self._disk.exists(self.time_index_path)
        )

    def truncate(self, size: int, end_offset: int) -> None:
        """Cut the segment to ``size`` bytes and ``end_offset``; the indexes follow."""
        self.truncate_indexes(size, end_offset)
        self.open_log().truncate(size)
        self.size = size
        self.next_offset = end_offset
        self.checked = (min(self.checked[0], size), min(self.checked[1], size))
        self._newest = self.unsound = self._first_time = None
        self.room = NO_ROOM
        if not size:
            self._bytes_since_entry = 0

    # Indexes ---------------------------------------------------------------------------------

    @property
    def index(self) -> OffsetIndex:
        """Positions by offset; loaded, or rebuilt from the batches, when not in memory."""
        if self._index is None:
            self._load_indexes()
        elif not self.active:
            self.resources.indexes.used(self)
        assert self._index is not None
        return self._index

    @property
    def entry_count(self) -> int:
        """The entries of the offset index."""
        return len(self.index if self._index is None else self._index)

    @property
    def time_index(self) -> TimeIndex:
        """Offsets by time; loaded and dropped together with ``index``."""
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def elsewhere(self, resources: Resources, directory: str) -> Segment:
        """Return the same segment in another directory that has a copy of its files; of an active
        one, with its entries in memory and a file of the others."""
        segment = Segment(resources, directory, self.base_offset, self.size, self.next_offset)
        segment.created_ms, segment.unsound = self.created_ms, self.unsound
        segment._newest, segment._first_time = self._newest, self._first_time
        segment._bytes_since_entry = self._bytes_since_entry
        if self.active:
            index = self.index.copied(reader_of(resources, segment.index_path))
            times = self.time_index.copied(reader_of(resources, segment.time_index_path))
            index.written, times.written = index.stored.count, times.stored.count
            segment.set_indexes(index, times)
        return segment

    def set_indexes(self, index: OffsetIndex, time_index: TimeIndex) -> None:
        """Set indexes that were opened, or built from the batches."""
        self._index, self._time_index = index, time_index

    def drop_indexes(self) -> None:
        """Free the memory of indexes whose files are complete."""
        both = self._index, self._time_index
        if all(index is not None and index.written == len(index) for index in both):
            self._index = self._time_index = None

    def hold_in_cache(self) -> None:
        """Let the shared cache decide how long the indexes stay in memory."""
        if self._index is not None and self._time_index is not None and not self.active:
            size = self._index.memory_bytes + self._time_index.memory_bytes
            self.resources.indexes.hold(self, size)

    def _load_indexes(self) -> None:
        both = open_indexes(self.resources, self.base_offset, *self.index_paths)
        if both is None:
            self.rebuild_indexes()
        else:
            self.set_indexes(*both)
        self.hold_in_cache()

    def rebuild_indexes(self, interval: int = 4096) -> bool:
        """Rebuild both indexes from the headers of all batches, and write them; False when the
        batches end before the file does. What a full disk has no room for stays in memory.
        """
        try:
            self.restart_indexes()
            batches = scan(self.open_log(), 0, self.size, check=False, chunk_bytes=HEADERS_BYTES)
            built = indexes_of(indexable(batches, self.base_offset), self.base_offset, interval)
        except OSError:
            self._index = self._time_index = self._newest = None  # a part of them would mislead
            self.room = NO_ROOM
            raise
        self.set_indexes(built.offsets, built.times)
        self._newest, self._first_time = built.newest, built.first_time
        self._bytes_since_entry = built.bytes_since_entry
        try:
            self.close_indexes()
        except OSError as error:
            if not self.resources.is_full(error):
                raise
        if built.end != self.size:
            self.unsound = Unsound(f"{self.log_path} has no batch at position {built.end}")
        return built.end == self.size

    def restart_indexes(self) -> None:
        """Empty both indexes and the newest time, in memory and on disk."""
        self.start_indexes()
        # The index files of a fresh segment are created with their first entries: creating costs.
        for path in self.index_paths:
            if self.resources.files.exists(path):
                self.resources.files.get(path).truncate(0)

    def start_indexes(self) -> None:
        """Empty both indexes and the newest time, in memory."""
        self._index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._newest = (UNKNOWN_TIME, self.base_offset)
        self.unsound = None
        self._first_time = None
        self._bytes_since_entry = 0

    def truncate_indexes(self, size: int, end_offset: int) -> None:
        """Drop the entries of batches at or after a position, in memory and on disk.

        The newest time is then that of the last entry: the caller notes later batches again.
        """
        index, time_index = self.index, self.time_index
        index.truncate(size)
        time_index.truncate(end_offset)
        for path, written in (
            (self.index_path, index.written * OFFSET_ENTRY_BYTES),
            (self.time_index_path, time_index.written * TIME_ENTRY_BYTES),
        ):
            # A missing file has no entries, and a full disk may have no room for it.
            if self._disk.exists(path):
                self.resources.files.get(path).truncate(written)
        self._newest = self.time_index.last() or (UNKNOWN_TIME, self.base_offset)

    # Times -----------------------------------------------------------------------------------

    @property
    def newest(self) -> tuple[int, int]:
        """The greatest timestamp (-1: none) and the last offset of the batch that has it."""
        if self._newest is None:
            self._check_newest_entry()
            index, time_index = self.index, self.time_index
            self._newest = time_index.last() or (UNKNOWN_TIME, self.base_offset)
            # Batches after the last entry may be newer.
            end = index.last_position()
            file = self.open_log()
            for position, header in scan(
                file, end, self.size, check=False, chunk_bytes=HEADERS_BYTES
            ):
                end = position + header.size
                if header.newest_time > self._newest[0]:
                    self._newest = (header.newest_time, header.last_offset)
            if end != self.size:
                self.rebuild_indexes()  # the last entry may be wrong; a bad batch makes it unsound
        return self._newest

    @property
    def sound_newest(self) -> tuple[int, int]:
        """``newest``, or Unsound where a bad batch may make it wrong."""
        newest = self.newest
        if self.unsound is not None:
            raise self.unsound
        return newest

    def _check_newest_entry(self) -> None:
        """Compare the last entry of the time index, which retention goes by, with its batch."""
        try:
            self.true_time_entry(TimeIndex.last)
        except Unsound as error:
            self.unsound = error  # the next read of these batches reports it

    def true_time_entry(
        self, pick: Callable[[TimeIndex], tuple[int, int] | None]
    ) -> tuple[int, int] | None:
        """Return an entry of the time index that agrees with its batch; if it does not, rebuild the
        indexes first. Unsound for a bad batch."""
        entry = pick(self.time_index)
        located = None if entry is None else self.locate(entry[1])
        if entry is None or (
            located is not None and (located[1].newest_time, located[1].last_offset) == entry
        ):
            return entry
        self.remake_indexes()
        return pick(self.time_index)

    @property
    def first_timestamp(self) -> int | None:
        """The greatest timestamp of the first batch, None in an empty segment."""
        if self._first_time is None and self.size:
            self._first_time = self.header_at(0).max_timestamp
        return self._first_time

    # Reading ---------------------------------------------------------------------------------

    def open_log(self) -> File:
        """Return the open log file, created if new; valid until another file is opened."""
        return self.resources.files.get(self.log_path, create=not self.size)

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at ``position``. Unsound when the file ends before."""
        data = self.read_bytes(position, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            raise Unsound(f"{self.log_path} has no whole header at {position}")
        return read_header(data)

    def read_bytes(self, position: int, size: int) -> bytes:
        """Return bytes of the log file; fewer only at its end."""
        return self.open_log().read_at(position, size)

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return position and header of the first batch that ends at or after ``offset``.

        None when all end before it. An index that disagrees with the batches is rebuilt; Unsound
        when the batches themselves cannot be walked.
        """
        if not self.size:
            return None
        entry = self.index.entry_for(offset)
        batch, is_true = self._walk_to(offset, entry)
        if not is_true and entry is not None:
            self.remake_indexes()
            batch, is_true = self._walk_to(offset, self.index.entry_for(offset))
        if not is_true:
            raise Unsound(f"{self.log_path} has no batch that ends at or after {offset}")
        return batch

    def cut_for(self, offset: int) -> tuple[int, int]:
        """Return the position and the offset where the segment ends once the batches from
        ``offset`` on are cut off; a batch across it goes as a whole.

        In a gap the end is that of the batch before it, as a start would find it. Unsound when the
        batches cannot be walked.
        """
        located = self.locate(offset)
        position = self.size if located is None else located[0]
        self.locate(offset - 1)  # makes sure that the entry agrees with its batch
        entry = self.index.entry_for(offset - 1)
        start, end = (0, self.base_offset) if entry is None else (entry[0], entry[1] + 1)
        for _, header in scan(self.open_log(), start, position, check=False):
            end = header.next_offset
        return position, end

    def _walk_to(
        self, offset: int, entry: tuple[int, int] | None
    ) -> tuple[tuple[int, BatchHeader] | None, bool]:
        """Walk from an index entry on; return the batch, and whether the entry can be right."""
        start, last_offset = (0, None) if entry is None else entry
        end = start
        file = self.open_log()
        for position, header in scan(file, start, self.size, check=False, chunk_bytes=8192):
            if last_offset is None:
                if position == 0 and header.base_offset < self.base_offset:
                    return None, False
            elif header.last_offset != last_offset:
                return None, False
            last_offset = None
            if header.last_offset >= offset:
                return (position, header), True
            end = position + header.size
        return None, end == self.size

    def remake_indexes(self) -> None:
        """Rebuild both indexes, whose files were wrong. Unsound for a bad batch."""
        if not self.rebuild_indexes():
            raise Unsound(f"{self.log_path} has a damaged batch")
