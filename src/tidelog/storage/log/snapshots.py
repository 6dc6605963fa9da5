"""The producer snapshot files of a partition: written at roll and stop, read at start.

Owns finding, writing, reading and removing them. A torn one is removed and an older one used; the
rest is rebuilt from the headers of the batches after it. The log's owner takes a snapshot as a
value (``PendingSnapshot``), which a thread encodes and writes with the next sync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from tidelog.model.work import Work
from tidelog.runtime.disk import Disk
from tidelog.storage import names
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.log.checking import CheckedBatches
from tidelog.storage.log.joining import NONE
from tidelog.storage.log.producers import ProducerEntry, ProducerState, encode
from tidelog.storage.log.whole_files import write_whole
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.scan import HEADERS_BYTES, scan
from tidelog.storage.segments.segment import Segment

SNAPSHOTS_KEPT = 2
"""Beside those at the base offset of a segment."""

SNAPSHOTS_WAITING = 8
"""Most snapshots that wait for a sync: after more rolls the oldest are dropped."""


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """Return the offsets of the snapshot files in a directory, rising."""
    return sorted(
        offset
        for name in disk.list(directory)
        if (offset := names.offset_of(name, names.SNAPSHOT)) is not None
    )


def snapshot_path(directory: str, offset: int) -> str:
    """Return the path of the snapshot of what was before ``offset``."""
    return f"{directory}/{names.file_name(offset, names.SNAPSHOT)}"


class PendingSnapshot:
    """The producers of one partition as they were before ``offset``, still to be written.

    ``write`` runs in any thread; ``cancel`` (before a cut below ``offset``) has it write nothing.
    """

    __slots__ = (
        "_disk",
        "_entries",
        "_lock",
        "_temporary",
        "bases",
        "cancelled",
        "directory",
        "error",
        "offset",
        "thinned_out",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        offset: int,
        entries: Sequence[ProducerEntry],
        number: int = 0,
    ) -> None:
        """``number``: no two of a log directory have the same: the write may be late, and another
        replica have this path by then."""
        self.directory = directory
        self.offset = offset
        self.error: OSError | None = None
        self.bases: Collection[int] = ()
        """Where the log's segments begin: snapshots there stay."""
        self.thinned_out: list[str] = []
        """The paths of older snapshots that were removed, because they are no longer needed."""
        self._disk = disk
        self._entries = entries
        # Not by the offset alone: another of the same offset, by another thread, would fill it too.
        stem = f"{directory}/{names.file_name(offset, '')}"
        self._temporary = f"{stem}.{number}{names.SNAPSHOT}{names.TEMPORARY}"
        self._lock = threading.Lock()
        self.cancelled = False

    @property
    def path(self) -> str:
        return snapshot_path(self.directory, self.offset)

    def write(self) -> None:
        """Write and sync the file; its name becomes durable with the directory. Blocks.

        A failure is kept in ``error``: the same snapshot may be written again.
        """
        self.error = None
        try:
            self._write()
        except OSError as error:
            self.error = error

    def _write(self) -> None:
        if self.cancelled:
            return
        write_whole(self._disk, self._temporary, encode(self._entries), synced=True)
        with self._lock:
            if not self.cancelled:
                # In turn with a cancel: after that no file of records that are cut comes up.
                self._disk.rename(self._temporary, self.path)
                return
        with suppress(OSError):
            self._disk.remove(self._temporary)

    def thin_out(self) -> None:
        """Remove older ones that this one makes needless, once its name is durable. Blocks."""
        if self.error is None:
            with self._lock:
                if not self.cancelled:
                    self.thinned_out = thin_out(self._disk, self.directory, self.bases)

    def cancel(self) -> None:
        """Write nothing that is not written yet: its records are about to be cut."""
        with self._lock:
            self.cancelled = True


class WaitingSnapshots:
    """The snapshots of one log that no sync has written yet. Used by one thread."""

    def __init__(self, resources: Resources, directory: str) -> None:
        self._resources = resources
        self._disk = resources.disk
        self._directory = directory
        self._waiting: list[PendingSnapshot] = []
        """The oldest first."""
        self._in_flight: list[PendingSnapshot] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, offset: int, producers: ProducerState) -> None:
        """Have the next sync write the producers as they are at ``offset``."""
        if not any(snapshot.offset == offset for snapshot in self._waiting):
            number = next(self._resources.numbers)
            self._waiting.append(
                PendingSnapshot(self._disk, self._directory, offset, producers.copied(), number)
            )
            del self._waiting[:-SNAPSHOTS_WAITING]

    def for_sync(self, bases: Collection[int] = ()) -> list[PendingSnapshot]:
        """Return those that wait; give them back with ``written``. ``bases``: where the segments
        of the log begin."""
        taken, self._waiting = self._waiting, []
        for snapshot in taken:
            snapshot.bases = bases
        self._in_flight += taken
        return taken

    def written(self, taken: Sequence[PendingSnapshot]) -> list[OSError]:
        """Take back what a sync has tried to write; failed ones wait again. Return their errors."""
        self._in_flight = [one for one in self._in_flight if one not in taken]
        failed = [one for one in taken if one.error is not None and not one.cancelled]
        self._waiting = (failed + self._waiting)[-SNAPSHOTS_WAITING:]
        return [one.error for one in failed if one.error is not None]

    def cancel(self, *, above: int = -1) -> None:
        """Let no thread write one of more than ``above``: its records are gone."""
        for snapshot in self._waiting + self._in_flight:
            if snapshot.offset > above:
                snapshot.cancel()
        self._waiting = [snapshot for snapshot in self._waiting if snapshot.offset <= above]

    def keep(
        self,
        start: int,
        synced_end: int,
        present: Callable[[], tuple[int, ProducerState]],
        when_written: Callable[[], object],
    ) -> Work[bool]:
        """Whether a durable snapshot has the producers of all before ``start``, or there are none,
        in pieces; OSError if the disk fails.

        One of records that are not synced does not count: a power loss would take it along. One
        that is missing (a roll, and then a kill) is written, unless there is no room for it; one
        that has to wait for its records is left to the next sync. ``present`` returns the log's end
        and its producers, which appends change while a thread reads. ``when_written``: called for
        the new name, which no sync has covered yet.
        """
        if not present()[1].entries:
            return True
        limit = max(start, synced_end)
        if (yield partial(_keep_one, self._resources, self._directory, start, limit)):
            return True
        if self._resources.failed:
            return False
        if any(start <= one.offset <= limit for one in self._in_flight):
            return False
        if not any(start <= one.offset <= limit for one in self._waiting):
            self.take(*present())
        waiting = next(one for one in self._waiting if one.offset >= start)
        if waiting.offset > limit:
            return False
        # No sync takes it meanwhile: two would write one file.
        self._waiting.remove(waiting)
        self._in_flight.append(waiting)
        yield partial(_write_unless_failed, self._resources, waiting)
        for error in self.written([waiting]):
            if not self._resources.is_full(error):
                raise error
        if waiting.error is not None or waiting.cancelled:
            return False
        when_written()
        return True


def _keep_one(resources: Resources, directory: str, start: int, limit: int) -> bool:
    """Make a snapshot of what is between two offsets durable, if there is one. In any thread."""
    for offset in snapshot_offsets(resources.disk, directory):
        if start <= offset <= limit:
            try:
                file = resources.disk.open(snapshot_path(directory, offset))
            except FileNotFoundError:
                continue  # a sync has thinned them out
            try:
                if resources.failed:
                    # Since this was asked for: a later sync proves nothing (promise 25).
                    return False
                file.sync()
            finally:
                file.close()
            return True
    return False


def _write_unless_failed(resources: Resources, snapshot: PendingSnapshot) -> None:
    """Write a snapshot if its directory has not failed since that was asked for. In any thread."""
    if resources.failed:
        snapshot.cancel()
    snapshot.write()


def remove_snapshots(
    disk: Disk, directory: str, *, below: int = 0, above: int | None = None
) -> list[str]:
    """Remove snapshots below one offset or above another; return their paths. In any thread."""
    return _remove(
        disk,
        directory,
        [
            offset
            for offset in snapshot_offsets(disk, directory)
            if offset < below or (above is not None and offset > above)
        ],
    )


def thin_out(disk: Disk, directory: str, bases: Collection[int]) -> list[str]:
    """Keep the newest snapshots and those where a segment begins; return the paths of the removed
    ones. In any thread."""
    old = snapshot_offsets(disk, directory)[:-SNAPSHOTS_KEPT]
    return _remove(disk, directory, [offset for offset in old if offset not in bases])


def _remove(disk: Disk, directory: str, offsets: Sequence[int]) -> list[str]:
    paths = [snapshot_path(directory, offset) for offset in offsets]
    for path in paths:
        # Another thread may be removing it.
        with suppress(FileNotFoundError):
            disk.remove(path)
    return paths


def load_producers(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    now_ms: int,
    checked: CheckedBatches | None = None,
    *,
    high_watermark: int,
) -> ProducerState:
    """Return the producers as of ``end_offset``: the newest usable snapshot and what follows it.

    Time grows with the batches after that snapshot that are not in ``checked``, memory with the
    producers and with the transactions that are open, or whose markers may not be committed. A
    batch found in the log counts as appended now: its own timestamp may be years old, and must not
    make its producer expire. No snapshot has a transaction that has ended: where its marker may be
    at or above ``high_watermark``, the batches after an older snapshot are read, too.
    """
    offsets = snapshot_offsets(disk, directory)
    if offsets and offsets[-1] > end_offset:
        remove_snapshots(disk, directory, above=end_offset)
        # Durable at once: what they describe is not in the log. If a power loss brought one back
        # when the log is as long again, a batch would be taken for a duplicate of what is lost.
        disk.sync_directory(directory)
    state, start = newest_snapshot(disk, directory, segments, offsets, end_offset)
    if start > high_watermark and any(map(_had_marker, state.entries.values())):
        older, begin = newest_snapshot(disk, directory, segments, offsets, high_watermark)
        _note_from(older, segments, begin, start, now_ms, None, high_watermark)
        state.transactions.precede(older.transactions.ended)
    if checked is not None and checked.producers.forgotten:
        # Not from what the check has of producers: it has met more than a log remembers.
        checked = None
    _note_from(state, segments, start, end_offset, now_ms, checked, high_watermark)
    return state


def _had_marker(entry: ProducerEntry) -> bool:
    return entry.coordinator_epoch != NONE


def newest_snapshot(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    offsets: Sequence[int],
    at_most: int,
) -> tuple[ProducerState, int]:
    """Return the newest usable snapshot up to an offset, and its offset: without one, that where
    the log begins."""
    start = segments[0].base_offset
    for offset in reversed(offsets):
        path = snapshot_path(directory, offset)
        if offset > at_most:
            continue
        if offset < start:
            break
        try:
            return ProducerState.decode(disk.read(path)), offset
        except DamagedFile:
            # If it comes back, it is as damaged as it is now.
            disk.remove(path)
        except FileNotFoundError:
            pass  # a sync has thinned them out
    return ProducerState(), start


def _note_from(
    state: ProducerState,
    segments: Sequence[Segment],
    start: int,
    end_offset: int,
    now_ms: int,
    checked: CheckedBatches | None,
    high_watermark: int,
) -> None:
    for segment in segments:
        if segment.next_offset <= start:
            continue
        limit = (
            segment.size if checked is None else checked.limit(segment.base_offset, segment.size)
        )
        if not limit:
            continue
        located = segment.locate(start) if start > segment.base_offset else None
        position = 0 if located is None else located[0]
        for place, header in scan(
            segment.open_log(), position, limit, check=False, chunk_bytes=HEADERS_BYTES
        ):
            if header.base_offset >= end_offset:
                return
            if header.base_offset >= start and header.producer_id >= 0:
                batch = segment.read_bytes(place, header.size) if header.control else b""
                state.note(header, header.base_offset, now_ms, batch)
                if header.control:
                    state.transactions.first_unstable(high_watermark)
    if checked is not None:
        state.follow(checked.producers, start)
    state.transactions.first_unstable(high_watermark)
