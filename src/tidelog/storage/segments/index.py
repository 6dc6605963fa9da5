"""The two sparse indexes of a segment: offset -> position, and time -> offset.

Owns the entries and their bytes, in Kafka's formats: ``.index`` has (relative offset int32,
position int32), ``.timeindex`` (timestamp int64, relative offset int32), big-endian. An entry's
offset is the last offset of a batch, its position that batch's first byte. The first entries of an
index are those that its file had when it was opened; they are read from there (``stored_entries``).
Entries that were added since are in memory, in two sorted arrays, and are written in groups
(``unwritten``): a start after a crash rebuilds the missing ones from the log. A look-up changes
nothing. Not the repair of index files: see `index_files`.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import le, lt
from struct import Struct
from typing import ClassVar, Self

from tidelog.storage.segments.stored_entries import Read, StoredEntries

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_FIRST, _SECOND = 0, 1
"""The columns of an entry."""


class SparseIndex:
    """The common part of both indexes: the stored entries, then two arrays of added entries."""

    __slots__ = ("base_offset", "first", "second", "stored", "written")

    ENTRY: ClassVar[Struct]
    FIRST_TYPE: ClassVar[str]

    def __init__(self, base_offset: int, read: Read | None = None, count: int = 0) -> None:
        self.base_offset = base_offset
        self.first = array(self.FIRST_TYPE)
        self.second = array("i")
        self.stored = StoredEntries(read or _nothing, self.ENTRY, count)
        self.written = count
        """How many entries the file has."""

    def __len__(self) -> int:
        return self.stored.count + len(self.first)

    def copied(self, read: Read) -> Self:
        """Return an index with the same entries; it reads the stored ones with ``read``."""
        index = type(self)(self.base_offset, read, self.stored.count)
        index.first, index.second = self.first[:], self.second[:]
        index.written = self.written
        return index

    @property
    def memory_bytes(self) -> int:
        """Return about how much memory the entries take."""
        both = self.first.itemsize + self.second.itemsize
        return both * len(self.first) + 4096

    def fields(self, place: int) -> tuple[int, int]:
        """Return the two fields of an entry. OSError as the file's reads raise it."""
        stored = self.stored.count
        if place < stored:
            first, second = self.stored[place]
            return first, second
        return self.first[place - stored], self.second[place - stored]

    def _below(self, column: int, value: int, *, or_equal: bool = False) -> int:
        """Return how many entries are below ``value`` (or equal to it) in a column."""
        added = self.first if column == _FIRST else self.second
        stored = self.stored
        if added and (not stored.count or added[0] < value or (or_equal and added[0] == value)):
            bisect = bisect_right if or_equal else bisect_left
            return stored.count + bisect(added, value)
        return stored.below(column, value, or_equal=or_equal)

    def _keep(self, count: int) -> None:
        """Keep the first ``count`` entries only."""
        added = max(0, count - self.stored.count)
        del self.first[added:], self.second[added:]
        self.stored.count = min(self.stored.count, count)
        self.written = min(self.written, count)


class OffsetIndex(SparseIndex):
    """Positions by last offset. A look-up grows with the logarithm of the entries."""

    __slots__ = ()

    ENTRY = Struct(">ii")
    FIRST_TYPE = "i"

    @classmethod
    def parse(cls, base_offset: int, content: bytes, log_size: int) -> OffsetIndex | None:
        """Return the index in a file's bytes, None when they cannot be an index of this log.

        Checks every entry: for a start that does not trust the file.
        """
        if len(content) % OFFSET_ENTRY_BYTES:
            return None
        fields = array("i", content)
        if sys.byteorder == "little":
            fields.byteswap()
        offsets, positions = fields[0::2], fields[1::2]
        sane = not offsets or (
            offsets[0] >= 0
            and positions[0] >= 0
            and positions[-1] < log_size
            and all(map(lt, offsets, offsets[1:]))
            and all(map(lt, positions, positions[1:]))
        )
        return cls(base_offset, _reader(content), len(offsets)) if sane else None

    def add(self, last_offset: int, position: int) -> None:
        self.first.append(last_offset - self.base_offset)
        self.second.append(position)

    def extend(self, first: array[int], second: array[int]) -> None:
        """Add the entries of an index that was built of later batches of the same segment."""
        self.first.extend(first)
        self.second.extend(second)

    def entry(self, place: int) -> tuple[int, int]:
        """Return (position, last offset) of an entry."""
        offset, position = self.fields(place)
        return max(0, position), offset + self.base_offset  # a damaged file may say anything

    def last_position(self) -> int:
        """Return the position of the last known batch, 0 when there is none."""
        return self.entry(len(self) - 1)[0] if len(self) else 0

    def position_for(self, offset: int) -> int:
        """Return the position of a batch at or before the one that holds ``offset``."""
        place = self._below(_FIRST, offset - self.base_offset, or_equal=True)
        return self.entry(place - 1)[0] if place else 0

    def entry_for(self, offset: int) -> tuple[int, int] | None:
        """Return (position, last offset) of the batch that ``position_for`` names; None for 0."""
        place = self._below(_FIRST, offset - self.base_offset, or_equal=True)
        return self.entry(place - 1) if place else None

    def entry_before(self, position: int) -> tuple[int, int]:
        """Return (position, last offset) of the last known batch that begins at or before
        ``position``; (0, -1) when there is none."""
        if not self.stored.count:
            # All entries were added since the file was opened, as in every busy segment.
            place = bisect_right(self.second, position)
            return (
                (self.second[place - 1], self.first[place - 1] + self.base_offset)
                if place
                else (0, -1)
            )
        place = self._below(_SECOND, position, or_equal=True)
        return self.entry(place - 1) if place else (0, -1)

    def truncate(self, log_size: int) -> None:
        """Drop the entries of batches at or after position ``log_size``."""
        self._keep(self._below(_SECOND, log_size))

    def unwritten(self) -> tuple[int, bytes]:
        """Return (file position, bytes) of the entries that the file does not have yet."""
        start = self.written - self.stored.count
        fields = array("i", bytes(8 * (len(self) - self.written)))
        fields[0::2] = self.first[start:]
        fields[1::2] = self.second[start:]
        if sys.byteorder == "little":
            fields.byteswap()
        return self.written * OFFSET_ENTRY_BYTES, fields.tobytes()


class TimeIndex(SparseIndex):
    """Offsets by the greatest timestamp so far; both columns rise."""

    __slots__ = ()

    ENTRY = Struct(">qi")
    FIRST_TYPE = "q"

    @classmethod
    def parse(cls, base_offset: int, content: bytes) -> TimeIndex | None:
        """Return the index in a file's bytes, None when they cannot be a time index.

        Checks every entry, as ``OffsetIndex.parse`` does.
        """
        if len(content) % TIME_ENTRY_BYTES:
            return None
        timestamps = array("q", _column(content, 0, 8))
        offsets = array("i", _column(content, 8, 4))
        if sys.byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        sane = not offsets or (
            offsets[0] >= 0
            and all(map(lt, timestamps, timestamps[1:]))
            and all(map(le, offsets, offsets[1:]))
        )
        return cls(base_offset, _reader(content), len(offsets)) if sane else None

    def add(self, timestamp: int, offset: int) -> None:
        """Add the greatest timestamp so far and its batch's last offset, if it is greater than the
        last."""
        if timestamp < 0:
            return
        newest = self.first[-1] if self.first else (self.last() or (-1, 0))[0]
        if timestamp <= newest:
            return
        self.first.append(timestamp)
        self.second.append(offset - self.base_offset)

    def extend(self, first: array[int], second: array[int]) -> None:
        """Add the entries of an index that was built of later batches of the same segment."""
        last = self.last()
        # The other index began with the newest time before it, which this one may have.
        repeated = 1 if first and last is not None and first[0] <= last[0] else 0
        self.first.extend(first[repeated:])
        self.second.extend(second[repeated:])

    def last(self) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the last entry."""
        return self._entry(len(self) - 1)

    def entry_below(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry with a time below ``timestamp``: all batches before it are older
        than ``timestamp``, too."""
        return self._entry(self._below(_FIRST, timestamp) - 1)

    def entry_before(self, offset: int) -> tuple[int, int] | None:
        """Return the last entry before ``offset``: no batch before it is newer than it is."""
        return self._entry(self._below(_SECOND, offset - self.base_offset) - 1)

    def _entry(self, place: int) -> tuple[int, int] | None:
        if place < 0:
            return None
        timestamp, offset = self.fields(place)
        return timestamp, offset + self.base_offset

    def truncate(self, end_offset: int) -> None:
        """Drop the entries at or after ``end_offset``."""
        self._keep(self._below(_SECOND, end_offset - self.base_offset))

    def unwritten(self) -> tuple[int, bytes]:
        """Return (file position, bytes) of the entries that the file does not have yet."""
        start = self.written - self.stored.count
        timestamps, offsets = self.first[start:], self.second[start:]
        if sys.byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        content = bytearray(TIME_ENTRY_BYTES * len(offsets))
        for first, column in ((0, timestamps.tobytes()), (8, offsets.tobytes())):
            width = 8 - first // 2
            for byte in range(width):
                content[first + byte :: TIME_ENTRY_BYTES] = column[byte::width]
        return self.written * TIME_ENTRY_BYTES, bytes(content)


def _nothing(_position: int, _size: int) -> bytes:
    return b""


def _reader(content: bytes) -> Read:
    return lambda position, size: content[position : position + size]


def _column(content: bytes, first: int, width: int) -> bytes:
    """Return the bytes of one field of all time entries: twelve strides, not a loop over entries.

    An index of a large segment has 262,144 entries.
    """
    column = bytearray(len(content) // TIME_ENTRY_BYTES * width)
    for byte in range(width):
        column[byte::width] = content[first + byte :: TIME_ENTRY_BYTES]
    return bytes(column)
