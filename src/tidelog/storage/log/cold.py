"""Cold reads: bytes outside the page cache, detected before the read and read by a thread.

Owns the test whether a read would wait for the disk. The newest bytes of a log count as in memory,
which costs two comparisons. For others one byte in each 128 KiB is tested (``in_memory``: the
kernel reads ahead in such pieces), which costs some microseconds; a file without that test (in a
simulation) counts as in memory. A ``ColdRead`` lets a thread read the bytes; after it the reader
tries again, and then reads whether they are in memory or not, so that no reader waits twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidelog.runtime.disk import File
from tidelog.storage import names
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.open_files import OpenFiles
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound

HOT_BYTES = 16 * 1024 * 1024
"""So many bytes at the end of a log count as in memory, if this process wrote them."""

WARMED_BYTES = 8 * 1024 * 1024
"""The most that a thread reads for one read; the kernel reads further ahead."""

PIECE_BYTES = 1024 * 1024
CHECK_BYTES = 16 * 1024
"""What a look-up of an offset reads of the batches after an index entry."""


class Runs(Protocol):
    """What a thread does before records are read."""

    def run(self) -> None:
        """Do it; raise nothing."""


class ColdRead:
    """A part of a file that any thread may ``run``; then ``done`` on the owner's thread, always."""

    __slots__ = ("_file", "_files", "position", "size")

    def __init__(self, files: OpenFiles, path: str, position: int, size: int) -> None:
        self._files = files
        self._file = files.pin(path)
        self.position = position
        self.size = size

    def run(self) -> None:
        """Read it into the page cache. Blocks; the reader that comes afterwards meets the
        errors."""
        position, end = self.position, self.position + self.size
        try:
            while position < end:
                if not self._file.read_at(position, min(PIECE_BYTES, end - position)):
                    break
                position += PIECE_BYTES
        except OSError:
            pass

    def done(self) -> None:
        """Release the file."""
        self._files.release(self._file)


def run_all(reads: Sequence[Runs]) -> None:
    """Run many, in any thread."""
    for read in reads:
        read.run()


def cold_read(
    log: LogState, offset: int, max_bytes: int, remembered: tuple[Segment, int] | None = None
) -> ColdRead | None:
    """Return what a thread should read before the log is read from ``offset`` on; None: nothing.
    ``remembered``: the result of ``log.segments.remembered``.

    First the bytes that locate the offset (the index, the batches after its entry), then, once
    these are in memory, the bytes to read.
    """
    if log.damaged or log.closed or not log.start_offset <= offset < log.end_offset:
        return None
    remembered = remembered or log.segments.remembered(offset)
    segment = log.segments[log.segments.segment_at(offset)] if remembered is None else remembered[0]
    try:
        if remembered is not None:
            position = remembered[1]
        elif segment.active:
            position = segment.index.position_for(offset)
        else:
            size = segment.resources.files.size(segment.index_path)
            cold = _unless_in_memory(segment, segment.index_path, 0, size)
            if cold is not None:
                return cold
            position = segment.index.position_for(offset)
        size = segment.size - position
        if segment.active and size <= HOT_BYTES and position >= segment.opened_size:
            return None
        if remembered is None:
            checked = _unless_in_memory(segment, segment.log_path, position, min(size, CHECK_BYTES))
            if checked is not None:
                return checked
        # The read also checks the header after the last batch.
        wanted = min(size, max_bytes + CHECK_BYTES, WARMED_BYTES)
        return _unless_in_memory(segment, segment.log_path, position, wanted)
    except (OSError, Unsound):
        return None  # the read meets the same error and handles it


def cold_aborted(log: LogState, offset: int) -> ColdRead | None:
    """Return what a thread should read before aborted transactions are looked up from ``offset`` on
    (`aborted_reading`); None: nothing.

    Tests the files of two segments, which nearly every look-up ends in.
    """
    first = log.segments[log.segments.segment_at(offset)].base_offset
    for base in log.aborted.since(first)[:2]:
        if base in log.aborted.held:
            continue
        segment = log.segments[log.segments.segment_at(base)]
        for suffix in names.ABORTED_SUFFIXES:
            path = segment.path(suffix)
            try:
                size = min(segment.resources.files.size(path), WARMED_BYTES)
                cold = _unless_in_memory(segment, path, 0, size)
            except OSError:
                continue  # the look-up meets the same error and handles it
            if cold is not None:
                return cold
    return None


def _unless_in_memory(segment: Segment, path: str, position: int, size: int) -> ColdRead | None:
    if size <= 0:
        return None
    files = segment.resources.files
    file: File = files.get(path)
    in_memory = getattr(file, "in_memory", None)
    if in_memory is None or in_memory(position, size):
        return None
    return ColdRead(files, path, position, size)
