"""The copy of a log's segments in another log directory: its files, and how far they are copied.

Owns both. Not which bytes come next: see `steps`. Not the rest of the directory, nor when it takes
the place of the log: see `moving`. The owner of the log plans (``plan``), any thread runs the plan
(``run``), one at a time. A plan is run while the log changes, so after it the owner checks again:

| event during a run | what follows |
|---|---|
| batches were appended | the next plan has them |
| segments were removed (retention) | the next plan removes them from the copy |
| the log was cut | what was copied after the cut is compared again |
| a file of the log is gone, or shorter | ``Overtaken``; the next plan knows |

Whole batches are copied, as they are, and each one's CRC is checked. Bytes that the copy has
already are compared, not written: so a copy of an earlier process is continued, whatever a kill or
a power loss has left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tidelog.model.work import Work
from tidelog.records.batch import (
    HEADER_SIZE,
    MAX_INT64,
    BatchHeader,
    crc_is_right,
    read_header,
    walk,
)
from tidelog.runtime.disk import Disk, File
from tidelog.storage import names
from tidelog.storage.future.steps import (
    Close,
    Copied,
    Copy,
    Part,
    RemoveSegment,
    Step,
    bytes_left,
    next_steps,
)
from tidelog.storage.log.state import LogState
from tidelog.storage.log.whole_files import write_whole
from tidelog.storage.segments.soundness import Unsound

LONGEST_BATCH = 128 * 1024 * 1024
"""A longer one is damage: no request has one (``socket.request.max.bytes`` is 100 MiB)."""

Result = TypeVar("Result")


class Overtaken(Exception):
    """The log, or the directory of the copy, has changed meanwhile; nothing is wrong."""


class SourceFailed(Exception):
    """The disk of the log fails, or a shortage that passes keeps it from being read."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Mirror:
    """The copy of one log's segments, in the directory ``path``."""

    def __init__(self, disk: Disk, log: LogState, path: str) -> None:
        self.path = path
        self.end_offset = log.segments[0].base_offset
        """Where the copied batches end."""
        self._disk = disk
        self._log = log
        self._copied: dict[int, Copied] = {}
        self._files: dict[int, tuple[str, ...]] = {}
        """The files of the log's segments, when the last plan was made."""
        self._open: tuple[int, File, File, int] | None = None
        """Base offset, the segment's file, its copy, and the size that the copy had."""
        self._is_tidy = False
        self._is_busy = self._is_over = False

    # The owner of the log ---------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes that were copied, or found there."""
        return sum(segment.size for segment in list(self._copied.values()))

    def left(self) -> int:
        """Return how many bytes of the log are not copied. O(segments)."""
        return bytes_left(self._parts(), self._copied)

    def plan(self, most_bytes: int) -> list[Step]:
        """Return the next steps; none when all is copied. O(segments)."""
        log = self._log
        if (uncut_end := log.take_uncut_end()) < MAX_INT64:
            self._forget_from(uncut_end)
        self._files = {s.base_offset: (s.log_path, *s.index_paths) for s in log.segments}
        return next_steps(self._parts(), self._copied, most_bytes)

    def in_thread(self, call: Callable[[], None]) -> Work[None]:
        """Have a thread make a call (``run`` and what follows), in pieces. Its files are closed
        after it at the earliest."""
        self._is_busy = True
        try:
            yield call
        finally:
            self._is_busy = False
            if self._is_over:
                self.close()

    def let_go(self) -> None:
        """Close the files, now or when the thread has finished: this copy goes no further."""
        self._is_over = True
        if not self._is_busy:
            self.close()

    def _parts(self) -> list[Part]:
        active = self._log.segments.active
        return [Part(s.base_offset, s.size, s is not active) for s in self._log.segments]

    def _forget_from(self, offset: int) -> None:
        self.close()  # a file of that name may be another one by now
        bases = sorted(self._copied)
        for place, base in enumerate(bases):
            if place + 1 == len(bases) or bases[place + 1] > offset:
                self._copied[base] = Copied()
                self.end_offset = min(self.end_offset, base)

    # Any thread -------------------------------------------------------------------------------

    def run(self, steps: Sequence[Step]) -> None:
        """Run a plan. Blocks. OSError of the copy's disk, SourceFailed, Overtaken, Unsound."""
        if not self._is_tidy:
            self._tidy()
        for step in steps:
            if isinstance(step, Copy):
                self._copy(step)
            elif isinstance(step, Close):
                self._close(step)
            else:
                self._remove(step)

    def finish(self, base_offset: int) -> None:
        """Cut the copy of the active segment to what was copied, and make it durable. Blocks."""
        size = self._copied.setdefault(base_offset, Copied()).size
        self.close()  # an empty segment may have no file
        copy = self._disk.open(self._path(base_offset, names.LOG), create=True)
        try:
            _cut_to(copy, size)
            copy.sync()
        finally:
            copy.close()

    def flush(self) -> None:
        """Write out what was copied last. Blocks: the last sync then has little to do."""
        if self._open is not None:
            self._open[2].sync()

    def close(self) -> None:
        """Close the files."""
        if self._open is not None:
            _, file, copy, _ = self._open
            file.close()
            copy.close()
        self._open = None

    def _tidy(self) -> None:
        # What an earlier process left: its segments are compared, all others are made again.
        for name in self._disk.list(self.path):
            base = names.offset_of(name, names.LOG)
            if base is not None:
                self._copied.setdefault(base, Copied())
            elif name != names.PARTITION_METADATA:
                self._disk.remove(f"{self.path}/{name}")
        self._is_tidy = True

    def _copy(self, step: Copy) -> None:
        file, copy, there = self._opened(step.base_offset)
        rest = step.size - step.position
        # At least a header: what is left of a slice may be less, and a batch is read whole.
        size = max(step.end - step.position, min(HEADER_SIZE, rest))
        data = _read(file, step.position, size)
        if HEADER_SIZE <= size < rest and size < read_header(data).size <= LONGEST_BATCH:
            data = _read(file, step.position, min(read_header(data).size, rest))
        whole, end_offset = _whole_batches(data, file.path, step.position)
        if not whole or (step.position + len(data) == step.size and whole < len(data)):
            raise Unsound(f"{file.path} has no whole batch at position {step.position + whole}")
        part = memoryview(data)[:whole]
        is_there = step.position + whole <= there
        if not (is_there and copy.read_at(step.position, whole) == part):
            copy.write_at(step.position, [part])
        self._copied[step.base_offset] = Copied(step.position + whole)
        self.end_offset = end_offset

    def _opened(self, base: int) -> tuple[File, File, int]:
        """Return the file of a segment and its copy, and how long that was. Overtaken."""
        if self._open is None or self._open[0] != base:
            self.close()
            path = self._files[base][0]
            file = _of_log(lambda: self._disk.open(path, read_only=True))
            try:
                copy = self._disk.open(self._path(base, names.LOG), create=True)
            except OSError:
                file.close()
                raise
            self._open = base, file, copy, copy.size()
        return self._open[1:]

    def _close(self, step: Close) -> None:
        _, copy, _ = self._opened(step.base_offset)
        _cut_to(copy, step.size)
        copy.sync()
        self.close()
        paths = self._files[step.base_offset][1:]
        for suffix, path in zip(names.INDEX_SUFFIXES, paths, strict=True):
            self.copy_file(path, self._path(step.base_offset, suffix))
        self._copied[step.base_offset] = Copied(step.size, is_closed=True)

    def copy_file(self, path: str, target: str, size: int | None = None) -> None:
        """Copy a small file of the log durably, or its first ``size`` bytes; without the file there
        is none. Blocks; errors as ``run``."""
        disk = self._disk
        if _of_log(lambda: disk.exists(path)):
            content = _of_log(lambda: disk.read(path))
            write_whole(disk, target, content if size is None else content[:size], synced=True)
        elif disk.exists(target):
            disk.remove(target)

    def _remove(self, step: RemoveSegment) -> None:
        if self._open is not None and self._open[0] == step.base_offset:
            self.close()
        for suffix in names.SEGMENT_SUFFIXES:
            path = self._path(step.base_offset, suffix)
            if self._disk.exists(path):
                self._disk.remove(path)
        del self._copied[step.base_offset]

    def _path(self, base: int, suffix: str) -> str:
        return f"{self.path}/{names.file_name(base, suffix)}"


def _read(file: File, position: int, size: int) -> bytes:
    data = _of_log(lambda: file.read_at(position, size))
    if len(data) < size:
        raise Overtaken  # it was cut
    return data


def _whole_batches(data: bytes, path: str, position: int) -> tuple[int, int]:
    """Return the size of the whole batches, and their end offset. Unsound for a bad one."""
    view, end, last = memoryview(data), 0, None
    for begin, header in walk(data):
        end, last = begin + header.size, header
        if not crc_is_right(view[begin:end], header.crc):
            raise Unsound(f"{path} has a damaged batch at position {position + begin}")
    return end, _end_of(last)


def _end_of(last: BatchHeader | None) -> int:
    return -1 if last is None else last.next_offset


def _cut_to(file: File, size: int) -> None:
    if file.size() != size:
        file.truncate(size)


def _of_log(call: Callable[[], Result]) -> Result:
    try:
        return call()
    except FileNotFoundError as error:
        raise Overtaken from error
    except OSError as error:
        raise SourceFailed(error) from error
