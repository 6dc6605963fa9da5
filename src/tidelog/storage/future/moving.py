"""The last part of a move: a complete copy of a log takes its place, in one step.

Owns the order, in pieces (``model.work``). Appends go on throughout: only the turn that copies
the last bytes and renames the directory has none in between. Syncs of the log wait until the end,
so that the log has no synced record that the copy could lose.

| step | where | a power loss or a kill after it finds |
|---|---|---|
| the log gets a name that the copy can refer to (``created``) | a thread | the log, and a copy |
| the small files of the copy; all of it is synced | a thread | the same |
| the checkpoints of the other directory name the log | a thread | the same |
| what was appended meanwhile is copied | a thread | the same |
| the last bytes; the copy gets the replica's name; its log serves | the owner | see below |
| the names of the other directory are synced; until then the checkpoints | a thread | the copy is |
| of both directories name the log | | the log, whole |
| the former directory becomes ``-delete``, durably | a thread | the same |

The ``partition.metadata`` of the copy says of what it is one (``copy_of``), so a start that finds
both takes the copy, and removes the other (`directory.copies`). If a power loss undoes the rename,
the log is where it was, and has all that was ever acknowledged as synced. A log in two directories
is cut in neither before the rename is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tidelog.model.work import Work
from tidelog.runtime.disk import Disk
from tidelog.storage import names
from tidelog.storage.checkpoints import (
    Created,
    encode_checksums,
    encode_partition_metadata,
)
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.future.mirror import Mirror, SourceFailed
from tidelog.storage.future.steps import Copy, Step
from tidelog.storage.log import changes
from tidelog.storage.log.aborted_files import bases_in, paths_of
from tidelog.storage.log.changes import LogChange, during
from tidelog.storage.log.elsewhere import elsewhere
from tidelog.storage.log.epoch_writing import epochs_content
from tidelog.storage.log.fences import Fences, encode_fences
from tidelog.storage.log.metadata_file import naming
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import encode
from tidelog.storage.log.snapshots import snapshot_offsets, snapshot_path
from tidelog.storage.log.watermark_note import FILE as WATERMARK_NOTE
from tidelog.storage.log.whole_files import write_whole
from tidelog.storage.segments.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES

SLICE_BYTES = 4 * 1024 * 1024
"""What one trip of a thread copies."""

LAST_BYTES = 1024 * 1024
"""At most so many bytes are copied in the turn of the rename: about a millisecond."""

MOST_ROUNDS = 64
"""Trips of a thread before the seal, and after it; a log that grows faster is tried again later."""


@dataclass(frozen=True, slots=True)
class Move:
    """A copy that is nearly complete."""

    mirror: Mirror
    log: PartitionLog
    origin: LogDirectory
    target: LogDirectory
    new_created: Callable[[], Created]
    """Returns what names one more directory, in ``partition.metadata``."""
    is_wanted: Callable[[], bool]
    """Asked in the turn of the rename."""
    installed: Callable[[PartitionLog], None]
    """Called in that turn, with the log that serves after it."""


def taking_place(move: Move) -> Work[PartitionLog | None]:
    """Let the copy take the log's place, in pieces; None when it must be tried again later.

    OSError: the copy's directory refuses. SourceFailed, Overtaken and Unsound as ``Mirror.run``.
    After the rename nothing is raised: a failure takes its directory out of service.
    """
    log, target = move.log, move.target
    if log.failed or log.closed or log.change is not None or log.write_again is not None:
        return None
    try:
        with during(log, LogChange.MOVE):
            moved = yield from _until_renamed(move)
    finally:
        target.moving.pop(log.partition, None)
    if moved is not None:
        yield from _clear_up(move, moved)
    return moved


def _until_renamed(move: Move) -> Work[PartitionLog | None]:
    log, mirror, target = move.log, move.mirror, move.target
    try:
        if not (yield from naming(log, move.new_created)):
            return None
    except OSError as error:
        raise SourceFailed(error) from error
    if not (yield from _near(mirror, SLICE_BYTES)):
        return None
    seal = _Seal(move, mirror.plan(SLICE_BYTES))
    yield from mirror.in_thread(seal.run)
    target.moving[log.partition] = log
    yield from target.writing_checkpoint()
    if not (yield from _near(mirror, LAST_BYTES)) or not move.is_wanted() or not seal.fits(log):
        return None
    return _rename(move, seal)


def _near(mirror: Mirror, most_bytes: int) -> Work[bool]:
    """Copy until ``most_bytes`` of the active segment at most are left; False if they do not
    become fewer."""
    for _ in range(MOST_ROUNDS):
        steps = mirror.plan(SLICE_BYTES)
        is_one_copy = not steps or (len(steps) == 1 and isinstance(steps[0], Copy))
        if is_one_copy and mirror.left() <= most_bytes:
            return True
        yield from mirror.in_thread(partial(mirror.run, steps))
    return False


def _rename(move: Move, seal: _Seal) -> PartitionLog:
    """Copy the last bytes, and let the copy be the log. OSError: nothing has changed."""
    log, mirror, target = move.log, move.mirror, move.target
    mirror.run(mirror.plan(LAST_BYTES))
    seal.note_again(log.watermark_note.content)
    path = f"{target.path}/{names.directory_name(log.partition)}"
    moved = elsewhere(log, target.resources, path, seal.metadata, seal.epochs_crc)
    target.take_over(mirror.path, path)
    log.forget_files()
    # Without its claims there a log that a power loss puts back would begin at its first file.
    move.origin.moving[log.partition] = moved
    del move.origin.logs[log.partition]
    target.logs[log.partition] = moved
    changes.begin(moved, LogChange.ARRIVAL)
    move.installed(moved)
    return moved


def _clear_up(move: Move, moved: PartitionLog) -> Work[None]:
    """Make the rename durable, then remove the former directory."""
    origin, target, former = move.origin, move.target, move.log.path
    try:
        yield from target.syncing_names(always=True)
        del origin.moving[moved.partition]
    except OSError as error:
        target.resources.fail(f"the name of {moved.path} cannot be made durable: {error}")
        return
    finally:
        changes.end(moved)
    if origin.failed is not None:
        return  # the next start removes it
    try:
        # No file that was opened since is that of the next log of this path.
        origin.resources.files.forget_below(former)
        path = origin.mark(former, moved.partition, names.DELETE_DIRECTORY)
        yield from origin.syncing_names(always=True)
    except OSError as error:
        origin.resources.fail(f"{former} cannot be removed after its move: {error}")
        return
    origin.remove_later(path, moved.configs.file_delete_delay_ms)


def _fences_content(fences: Fences) -> bytes:
    # A partition without fences has no file.
    return encode_fences(fences.entries) if fences.entries else b""


class _Seal:
    # The rest of the copy as of one moment: ``run`` in any thread copies up to it, writes the small
    # files and syncs all.
    def __init__(self, move: Move, steps: Sequence[Step]) -> None:
        log = move.log
        assert log.metadata is not None
        self.end_offset = log.end_offset
        self.metadata = replace(
            log.metadata, created=move.new_created(), copy_of=log.metadata.created
        )
        self._of = log.metadata
        self._mirror, self._steps = move.mirror, steps
        self._disk: Disk = move.target.resources.disk
        self._epochs = epochs_content(log)
        self._fences = log.fences
        self._checksums, self.epochs_crc = encode_checksums(self._epochs, None)
        self._producers = log.producers.copied()
        self._note = log.watermark_note.content
        self._aborted_of, self._aborted = log.path, tuple(log.aborted.bases)
        active = self._active = log.segments.active
        self._stored = active.index.stored.count, active.time_index.stored.count

    def fits(self, log: PartitionLog) -> bool:
        """Whether it still says what is true of the log, and no synced record is missing."""
        active = log.segments.active
        stored = active.index.stored.count, active.time_index.stored.count
        return (
            not (log.failed or log.closed)
            and log.metadata is self._of
            and log.synced_end_offset <= self.end_offset
            and epochs_content(log) == self._epochs
            and log.fences is self._fences
            and stored == (self._stored if active is self._active else (0, 0))
        )

    def run(self) -> None:
        """Blocks. Errors as ``Mirror.run``."""
        mirror, disk = self._mirror, self._disk
        mirror.run(self._steps)
        mirror.finish(self._active.base_offset)
        for path, entries, entry_bytes in zip(
            self._active.index_paths,
            self._stored,
            (OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES),
            strict=True,
        ):
            target = f"{mirror.path}/{path.rpartition('/')[2]}"
            if entries:
                mirror.copy_file(path, target, entries * entry_bytes)
            elif disk.exists(target):
                disk.remove(target)
        self._copy_aborted()
        for offset in snapshot_offsets(disk, mirror.path):
            disk.remove(snapshot_path(mirror.path, offset))
        files = {
            names.FENCE_CHECKPOINT: _fences_content(self._fences),
            names.EPOCH_CHECKSUM: self._checksums,
            names.EPOCH_CHECKPOINT: self._epochs,
            names.PARTITION_METADATA: encode_partition_metadata(self.metadata),
            WATERMARK_NOTE: self._note,
        }
        if self._producers:
            files[names.file_name(self.end_offset, names.SNAPSHOT)] = encode(self._producers)
        for name, content in files.items():
            if content:
                write_whole(disk, f"{mirror.path}/{name}", content, synced=True)
            elif disk.exists(f"{mirror.path}/{name}"):
                disk.remove(f"{mirror.path}/{name}")
        disk.sync_directory(mirror.path)

    def _copy_aborted(self) -> None:
        # What was synced has them right: nothing is written while the log moves. The rest is in
        # memory, and goes with the log.
        mirror = self._mirror
        for base in bases_in(self._disk.list(mirror.path)).union(self._aborted):
            pairs = zip(paths_of(self._aborted_of, base), paths_of(mirror.path, base), strict=True)
            for path, target in pairs:
                mirror.copy_file(path, target)

    def note_again(self, content: bytes) -> None:
        """Write the note of the watermark as it is now: it is exact after a kill."""
        if content and content != self._note:
            write_whole(self._disk, f"{self._mirror.path}/{WATERMARK_NOTE}", content)
