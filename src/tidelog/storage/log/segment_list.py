"""The segments of one log, the oldest first, and where in them an offset is.

Owns the list, its active (last) segment and the positions where readers continue. Not the files of
a segment: see `segments.segment`. Not the order in which segments come and go: see `rolling` and
`segment_removal`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from tidelog.records.batch import BatchHeader
from tidelog.storage.segments.segment import Segment

MOST_POSITIONS = 64
"""Positions of readers that a log remembers; the oldest makes way."""


class SegmentList(Sequence[Segment]):
    """The segments of one log. There is always one, and the last one is ``active``."""

    __slots__ = ("_positions", "_segments", "active")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(segments)
        self.active = self._segments[-1]
        """The segment that appends go to."""
        self.active.active = True
        self._positions: dict[int, tuple[Segment, int]] = {}
        """By offset: the segment and the position where a reader continues."""

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __reversed__(self) -> Iterator[Segment]:
        return reversed(self._segments)

    # Finding ---------------------------------------------------------------------------------

    def segment_at(self, offset: int) -> int:
        """Return the index of the segment whose range holds ``offset``."""
        if offset >= self.active.base_offset:
            return len(self._segments) - 1
        place = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset)
        return max(0, place - 1)

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the segment and the position of the first batch that ends at or after ``offset``.

        None after the last batch. Unsound when the batches cannot be walked.
        """
        place = self.segment_at(offset)
        while place < len(self._segments):
            segment = self._segments[place]
            located = segment.locate(offset)
            if located is not None:
                return segment, located[0]
            # The rest of this segment was compacted away: the next batch is in a later one.
            place += 1
        return None

    def beginning_at(self, offset: int) -> tuple[Segment, int] | None:
        """Return the segment that begins with an offset, and position 0; None if none does.

        For a read from the start of a log or of a segment, which needs no walk.
        """
        segment = self._segments[self.segment_at(offset)]
        return (segment, 0) if segment.base_offset == offset and segment.size else None

    def header_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the batch that holds an offset, or of the batch after it.

        None after the last batch. Unsound when the batches cannot be walked.
        """
        located = self.locate(offset)
        return None if located is None else located[0].header_at(located[1])

    def bytes_between(self, begin: int, end: int) -> int:
        """Return the size of the batches from the one that holds ``begin`` to the one before
        ``end``. Two look-ups; Unsound when the batches cannot be walked."""
        first, last = self.locate(begin), self.locate(end)
        if first is None or begin >= end:
            return 0
        until, stop = (self.active, self.active.size) if last is None else last
        between = self._segments[self._segments.index(first[0]) : self._segments.index(until)]
        return sum(segment.size for segment in between) + stop - first[1]

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Note where a read of ``offset`` begins: a reader continues there."""
        if len(self._positions) >= MOST_POSITIONS:
            del self._positions[next(iter(self._positions))]
        self._positions[offset] = (segment, position)

    def remembered(self, offset: int) -> tuple[Segment, int] | None:
        """Return where a read of ``offset`` begins, if that was noted and there are bytes."""
        place = self._positions.get(offset)
        return place if place is not None and place[1] < place[0].size else None

    def forget_positions(self) -> None:
        """Forget where readers continue: segments were cut or replaced."""
        self._positions.clear()

    # Changes ---------------------------------------------------------------------------------

    def append(self, segment: Segment) -> None:
        """Add an empty segment at the end; it becomes the active one."""
        self._segments.append(segment)
        self.activate(segment)

    def activate(self, segment: Segment) -> None:
        """Make the last segment the active one."""
        segment.active = True
        self.active = segment

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove segments. If the active one is among them, ``activate`` or ``begin_with`` another
        before anything else happens."""
        gone = set(segments)
        self._segments = [segment for segment in self._segments if segment not in gone]

    def begin_with(self, segment: Segment) -> None:
        """Let the list be this one segment, which becomes the active one."""
        self._segments = [segment]
        self.activate(segment)

    def exchange(self, former: Sequence[Segment], fresh: Segment) -> None:
        """Replace some neighbouring segments by one segment."""
        place = self._segments.index(former[0])
        self._segments[place : place + len(former)] = [fresh]
