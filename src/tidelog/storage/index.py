"""The two sparse indexes of a segment: offset -> position, and time -> offset.

Owns the entries in memory (two sorted arrays each) and their bytes; Kafka's formats: ``.index``
has (relative offset int32, position int32), ``.timeindex`` (timestamp int64, relative offset
int32), big-endian. An entry's offset is the last offset of the batch it names, the position that
batch's first byte. Entries reach the file in groups (``unwritten``), not one by one: what is
missing after a crash is rebuilt from the log.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import le, lt

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12


class OffsetIndex:
    """Positions by last offset. Lookups grow with the logarithm of the entries."""

    __slots__ = ("base_offset", "offsets", "positions", "written")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offsets = array("i")
        self.positions = array("i")
        self.written = 0
        """Entries that the file has already."""

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def parse(cls, base_offset: int, content: bytes, log_size: int) -> OffsetIndex | None:
        """Return the index of a file's bytes, None when they are no sane index of this log."""
        if len(content) % OFFSET_ENTRY_BYTES:
            return None
        index = cls(base_offset)
        fields = array("i", content)
        if sys.byteorder == "little":
            fields.byteswap()
        index.offsets, index.positions = fields[0::2], fields[1::2]
        index.written = len(index.offsets)
        if not index.offsets:
            return index
        sane = (
            index.offsets[0] >= 0
            and index.positions[0] >= 0
            and index.positions[-1] < log_size
            and all(map(lt, index.offsets, index.offsets[1:]))
            and all(map(lt, index.positions, index.positions[1:]))
        )
        return index if sane else None

    def add(self, last_offset: int, position: int) -> None:
        self.offsets.append(last_offset - self.base_offset)
        self.positions.append(position)

    def position_for(self, offset: int) -> int:
        """Return the position of a batch at or before the one that holds ``offset``."""
        at = bisect_right(self.offsets, offset - self.base_offset)
        return self.positions[at - 1] if at else 0

    def entry_for(self, offset: int) -> tuple[int, int] | None:
        """Return (position, last offset) of the batch that ``position_for`` names; None for 0."""
        at = bisect_right(self.offsets, offset - self.base_offset)
        return (self.positions[at - 1], self.offsets[at - 1] + self.base_offset) if at else None

    def entry_before(self, position: int) -> tuple[int, int]:
        """Return (position, last offset) of the last known batch that begins not above
        ``position``; (0, -1) when there is none."""
        at = bisect_right(self.positions, position)
        return (self.positions[at - 1], self.offsets[at - 1] + self.base_offset) if at else (0, -1)

    def boundary_from(self, position: int) -> int | None:
        """Return the smallest known batch position that is not below ``position``."""
        at = bisect_left(self.positions, position)
        return self.positions[at] if at < len(self.positions) else None

    def truncate(self, log_size: int) -> None:
        """Drop the entries of batches at or behind ``log_size``."""
        keep = bisect_left(self.positions, log_size)
        del self.offsets[keep:], self.positions[keep:]
        self.written = min(self.written, keep)

    def unwritten(self) -> tuple[int, bytes]:
        """Return (file position, bytes) of the entries that the file does not have yet."""
        fields = array("i", bytes(8 * (len(self.offsets) - self.written)))
        fields[0::2] = self.offsets[self.written :]
        fields[1::2] = self.positions[self.written :]
        if sys.byteorder == "little":
            fields.byteswap()
        return self.written * OFFSET_ENTRY_BYTES, fields.tobytes()


class TimeIndex:
    """Offsets by the greatest timestamp so far; both columns only grow."""

    __slots__ = ("base_offset", "offsets", "timestamps", "written")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps = array("q")
        self.offsets = array("i")
        self.written = 0

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def parse(cls, base_offset: int, content: bytes) -> TimeIndex | None:
        """Return the index of a file's bytes, None when they are no sane time index."""
        if len(content) % TIME_ENTRY_BYTES:
            return None
        index = cls(base_offset)
        index.timestamps = array("q", _column(content, 0, 8))
        index.offsets = array("i", _column(content, 8, 4))
        if sys.byteorder == "little":
            index.timestamps.byteswap()
            index.offsets.byteswap()
        index.written = len(index.offsets)
        if not index.offsets:
            return index
        sane = (
            index.offsets[0] >= 0
            and all(map(lt, index.timestamps, index.timestamps[1:]))
            and all(map(le, index.offsets, index.offsets[1:]))
        )
        return index if sane else None

    def add(self, timestamp: int, offset: int) -> None:
        """Note the greatest timestamp so far and its batch's last offset, if it is news."""
        if timestamp < 0 or (self.timestamps and timestamp <= self.timestamps[-1]):
            return
        self.timestamps.append(timestamp)
        self.offsets.append(offset - self.base_offset)

    def last(self) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the last entry."""
        if not self.offsets:
            return None
        return self.timestamps[-1], self.offsets[-1] + self.base_offset

    def entry_below(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry with a time below ``timestamp``: no batch before it has one that
        is not below it, too."""
        return self._entry(bisect_left(self.timestamps, timestamp) - 1)

    def entry_before(self, offset: int) -> tuple[int, int] | None:
        """Return the last entry before ``offset``: no batch before it is newer than it is."""
        return self._entry(bisect_left(self.offsets, offset - self.base_offset) - 1)

    def _entry(self, at: int) -> tuple[int, int] | None:
        return None if at < 0 else (self.timestamps[at], self.offsets[at] + self.base_offset)

    def truncate(self, end_offset: int) -> None:
        """Drop the entries at or behind ``end_offset``."""
        keep = bisect_left(self.offsets, end_offset - self.base_offset)
        del self.offsets[keep:], self.timestamps[keep:]
        self.written = min(self.written, keep)

    def unwritten(self) -> tuple[int, bytes]:
        """Return (file position, bytes) of the entries that the file does not have yet."""
        timestamps, offsets = self.timestamps[self.written :], self.offsets[self.written :]
        if sys.byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        content = bytearray(TIME_ENTRY_BYTES * len(offsets))
        for first, column in ((0, timestamps.tobytes()), (8, offsets.tobytes())):
            width = 8 - first // 2
            for at in range(width):
                content[first + at :: TIME_ENTRY_BYTES] = column[at::width]
        return self.written * TIME_ENTRY_BYTES, bytes(content)


def _column(content: bytes, first: int, width: int) -> bytes:
    """Return the bytes of one field of all time entries: twelve strides, not a loop over entries.

    An index of a large segment has 100,000 entries, and the event loop waits for it at a roll.
    """
    column = bytearray(len(content) // TIME_ENTRY_BYTES * width)
    for at in range(width):
        column[at::width] = content[first + at :: TIME_ENTRY_BYTES]
    return bytes(column)
