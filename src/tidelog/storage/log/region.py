"""File regions: whole batches of a segment's file that go to the network by sendfile.

Owns finding a region by the index only, and keeping its file open while it is in use. Not how far
a reader may read: the caller says it. Not other reads (the bytes after the last index entry below
the limit): see `reading`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidelog.records.batch import HEADER_SIZE, MAX_INT64, read_header
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.checked_reads import checked_until, sound_until
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound

LEAST_BYTES = 65_536
"""Below this a copy costs less than the system call and the bookkeeping that it saves."""

UNCHECKED_BYTES = 1024 * 1024
"""Most that is checked for one region; of what was checked before it may have any size."""


class FileRegion:
    """``size`` bytes of an open file from ``position`` on; the file stays open until it is gone.

    The bytes never change: a log is only appended to, and what retention or compaction replaces
    stays in the open file. A truncation may cut them short. ``more_follows``: committed batches
    come after them. ``bound``: an offset above all of them.
    """

    __slots__ = ("_release", "bound", "fileno", "more_follows", "position", "size")

    def __init__(
        self,
        fileno: int,
        position: int,
        size: int,
        release: Callable[[], None],
        *,
        more_follows: bool = False,
        bound: int = MAX_INT64,
    ) -> None:
        self.fileno = fileno
        self.position = position
        self.size = size
        self.more_follows = more_follows
        self.bound = bound
        self._release = release

    def __len__(self) -> int:
        return self.size

    def __del__(self) -> None:
        # The garbage collector calls this in any thread and at any moment.
        self._release()


def find_region(
    log: LogState,
    offset: int,
    max_bytes: int,
    up_to_offset: int,
    remembered: tuple[Segment, int] | None = None,
) -> FileRegion | None:
    """Return at most ``max_bytes`` of batches from the one that holds ``offset``, all below
    ``up_to_offset``, which is at most the high watermark.

    None when it is to be read instead: fewer than ``LEAST_BYTES`` up to the last index entry below
    the limit, an offset that is not there, a disk whose files are not the system's. ``remembered``
    is what ``log.segments.remembered`` said of the offset.
    """
    if max_bytes < LEAST_BYTES or log.damaged or log.closed or offset < log.start_offset:
        return None
    remembered = remembered or log.segments.remembered(offset)
    segment = log.segments[log.segments.segment_at(offset)] if remembered is None else remembered[0]
    if offset >= min(segment.next_offset, up_to_offset):
        return None
    last_offset = -1
    try:
        start = _start_of(segment, offset) if remembered is None else remembered[1]
        end = segment.size
        is_limited = segment.next_offset > up_to_offset
        if is_limited:
            # All batches before this one are below the limit.
            end, last_offset = segment.index.entry_for(up_to_offset) or (0, -1)
        most = min(start + max_bytes, checked_until(segment, start) + UNCHECKED_BYTES)
        if end > most:
            end, last_offset = segment.index.entry_before(most)
        if end - start < LEAST_BYTES:
            return None
        boundary, end = end, sound_until(segment, start, end, log.epochs)
        if end - start < LEAST_BYTES:
            return None
        if (
            last_offset >= 0
            and (is_limited or end == boundary)
            and not _remember(log, segment, boundary, last_offset)
        ):
            segment.remake_indexes()
            return None
        files = log.resources.files
        file = files.pin(segment.log_path)
    except (OSError, Unsound):
        # The ordinary read meets the same error and handles it.
        return None
    fileno = getattr(file, "fileno", None)
    if fileno is None:
        files.release(file)
        return None
    # Of what follows at the boundary only the last offset is known; before it all is readable.
    following = segment.next_offset if last_offset < 0 else last_offset
    more, bound = end < boundary or following < up_to_offset, min(following, up_to_offset)
    size, release = end - start, partial(files.let_go, file)
    return FileRegion(fileno(), start, size, release, more_follows=more, bound=bound)


def _start_of(segment: Segment, offset: int) -> int:
    """Return where the batch that holds ``offset`` begins; the segment's end when it is not to be
    looked for: too near to it, or not there."""
    if segment.size - segment.index.position_for(offset) < LEAST_BYTES:
        return segment.size  # near the end: seen without touching the file
    located = segment.locate(offset)
    return segment.size if located is None else located[0]


def _remember(log: LogState, segment: Segment, position: int, last_offset: int) -> bool:
    """Note where whoever reads on will begin; False when the batch there is not the one that the
    index names: then no batch need end there.

    One read of a header in place of a look-up and a walk from the index entry on.
    """
    data = segment.read_bytes(position, HEADER_SIZE)
    if len(data) < HEADER_SIZE:
        return False
    header = read_header(data)
    if header.magic != 2 or header.last_offset != last_offset:
        return False
    log.segments.remember(header.base_offset, segment, position)
    return True
