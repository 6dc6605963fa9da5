"""Reading one partition's log: by offset, by time.

Owns that nobody gets other bytes than were written (promise 26): what is read is checked, and
damage takes the log out of service. Changes nothing in the files. Large reads of what is committed
may go from the file to the network (``region``); they are checked once in a life of the process.
"""

from __future__ import annotations

from bisect import bisect_right

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader, Rejected, read_header, walk
from tidelog.records.record import CorruptRecords
from tidelog.runtime.turns import Pieces, at_once
from tidelog.storage.log import time_lookup
from tidelog.storage.log.logfiles import LogFiles
from tidelog.storage.log.results import TimeOffset
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.slice import Slice
from tidelog.storage.segments.soundness import Unsound

TimeFound = TimeOffset | Rejected | None

MOST_BYTES = 1024 * 1024
"""Of one read, for all of it is checked; a first batch that is larger is given whole."""

_HINTS = 64
_EMPTY = memoryview(b"")


class LogReading(LogFiles):
    """What a log answers to those who read it."""

    def read(
        self,
        offset: int,
        max_bytes: int,
        up_to_offset: int | None = None,
        *,
        at_least_one: bool = True,
    ) -> memoryview | Rejected:
        """Return whole batches from the one that holds ``offset``, all below ``up_to_offset``.

        Empty at the end. At most ``max_bytes``, but with ``at_least_one`` a larger first batch is
        given whole. OFFSET_OUT_OF_RANGE outside of start and end. Normally one read of the file.
        """
        if self.damaged or self.closed:
            return self._out_of_service()
        end = self.end_offset
        if offset < self.start_offset or offset > end:
            return Rejected(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.start_offset} to {end} of {self.partition}",
            )
        limit = end if up_to_offset is None or up_to_offset > end else up_to_offset
        if offset >= limit:
            return _EMPTY
        try:
            return self._read(offset, min(max_bytes, MOST_BYTES), limit, at_least_one)
        except (OSError, CorruptRecords) as error:
            return self._unreadable(error)

    def _read(
        self, offset: int, max_bytes: int, limit: int, at_least_one: bool
    ) -> memoryview | Rejected:
        located = self.remembered(offset)
        least = offset
        if located is None:
            least = 0
            located = self._locate(offset)
            if located is None:
                return _EMPTY
        segment, position = located
        found = segment.read(position, max_bytes, limit, at_least_one, self.epochs, least)
        if found is None:
            return _EMPTY
        if found.next_position < segment.size or segment is self._active:
            self.remember(found.next_offset, segment, found.next_position)
        if segment is not self._active and not read_header(found.data).record_count:
            return self._on_to_records(found, max_bytes, limit, at_least_one)
        return found.data

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Note where a read of ``offset`` begins: that of a reader who goes on. A few are kept."""
        if len(self._hints) >= _HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[offset] = (segment, position)

    def remembered(self, offset: int) -> tuple[Segment, int] | None:
        """Return where a read of ``offset`` begins, if it was noted and there are bytes."""
        found = self._hints.get(offset)
        return found if found is not None and found[1] < found[0].size else None

    def _on_to_records(
        self, found: Slice, max_bytes: int, limit: int, at_least_one: bool
    ) -> memoryview:
        """Go on behind batches that compaction emptied, until there are records too.

        An answer without records ends the poll of a Java consumer, which looks like the end of
        the log. Grows with the emptied batches, up to ``max_bytes``.
        """
        pieces, size = [found.data], len(found.data)
        while (
            size < max_bytes
            and found.next_offset < limit
            and not any(header.record_count for _, header in walk(pieces[-1]))
        ):
            located = self._locate(found.next_offset)
            more = located and located[0].read(
                located[1], max_bytes - size, limit, at_least_one, self.epochs
            )
            if not more:
                break
            found = more
            pieces.append(found.data)
            size += len(found.data)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _locate(self, offset: int) -> tuple[Segment, int] | None:
        at = self.segment_at(offset)
        while at < len(self.segments):
            segment = self.segments[at]
            located = segment.locate(offset)
            if located is not None:
                return segment, located[0]
            # The rest of this segment was compacted away: the next batch is in a later one.
            at += 1
        return None

    def header_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the batch that holds an offset, or of the one behind it.

        None behind the end. Unsound when the batches cannot be walked.
        """
        located = self._locate(offset)
        return None if located is None else located[0].header_at(located[1])

    def segment_at(self, offset: int) -> int:
        """Return the place in ``segments`` of the one whose range holds ``offset``."""
        if offset >= self._active.base_offset:
            return len(self.segments) - 1
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)
        return max(0, at - 1)

    def offset_for_time(self, timestamp: int) -> TimeOffset | Rejected | None:
        """Return the first record not older than ``timestamp`` (ms), None when all are older."""
        return at_once(self.search_time(timestamp, time_lookup.Allowance()))

    def newest_record(self, limit_offset: int) -> TimeOffset | Rejected | None:
        """Return the first record below ``limit_offset`` with the greatest timestamp there
        (ListOffsets -3)."""
        return at_once(self.search_newest(limit_offset, time_lookup.Allowance()))

    def search_time(self, timestamp: int, allowance: time_lookup.Allowance) -> Pieces[TimeFound]:
        """Do as ``offset_for_time``, in pieces; the log may change between two of them."""
        return self._search(time_lookup.first_at_or_after(self, timestamp, allowance))

    def search_newest(
        self, limit_offset: int, allowance: time_lookup.Allowance
    ) -> Pieces[TimeFound]:
        """Do as ``newest_record``, in pieces; the log may change between two of them."""
        return self._search(time_lookup.newest(self, limit_offset, allowance))

    def _search(self, pieces: Pieces[TimeOffset | None]) -> Pieces[TimeFound]:
        found = None
        if not (self.damaged or self.closed):
            try:
                found = yield from pieces
            except (OSError, CorruptRecords) as error:
                return self._unreadable(error)
        return self._out_of_service() if self.damaged or self.closed else found

    def _unreadable(self, error: OSError | CorruptRecords) -> Rejected:
        if isinstance(error, Unsound):
            return self.found_damaged(f"{self.path}: {error}")
        if isinstance(error, CorruptRecords):
            # As its producer sent it: nothing was harmed here.
            return Rejected(ErrorCode.CORRUPT_MESSAGE, f"{self.partition}: {error}")
        passing = self.resources.refused_for(error)
        if passing is not None:
            return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {self.path}")
        self.resources.fail(f"a read of {self.path} failed: {error}")
        return self._out_of_service()

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the greatest epoch not above ``epoch``; -1, -1 if none."""
        return self.epochs.end_of(epoch, self.end_offset)
