"""Making a log durable: a pending sync as a value that a thread can run.

Owns what the sync covers (files, directories, snapshots), and the claim that follows: the recovery
point. The owner of the log takes a pending sync (`unsynced`), has it run anywhere, and gives it
back (`synced`); many logs' pending syncs in one call of a thread are the group commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from tidelog.runtime.disk import Directory, File
from tidelog.storage import names
from tidelog.storage.log.aborted_writing import write_missing_aborted
from tidelog.storage.log.changes import HOLDS_SYNCS, LogChange
from tidelog.storage.log.epoch_file import PendingEpochs
from tidelog.storage.log.epoch_writing import write_missing_epochs, write_missing_fences
from tidelog.storage.log.service import damage_is_noted, found_damaged, write_failed
from tidelog.storage.log.snapshots import PendingSnapshot
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound

SNAPSHOT_INTERVAL_BYTES = 64 * 1024 * 1024
"""After so many bytes a sync writes a producer snapshot too, so that a start after a crash need
not walk the headers of the whole active segment."""

INDEX_ENTRIES_UNWRITTEN = 1024
INDEX_BYTES_UNWRITTEN = 4 * 1024 * 1024
"""A sync writes the indexes of the active segment when they have so many new entries, or lag by so
many bytes: a start after a crash trusts what is below the recovery point only as far as they
go."""


@dataclass(slots=True, eq=False)
class PendingSync:
    """What must reach the disk so that everything below ``end_offset`` survives a power loss."""

    log_directory: str
    """A failure is final for this directory."""
    files: Sequence[File]
    directories: Sequence[Directory]
    """Open directories: a shortage of descriptors shows before, and fails no sync."""
    names: int
    """How many changes of names in the log's directory this covers."""
    end_offset: int
    generation: int
    """The log's generation when this was taken: a truncation since then voids the claim."""
    snapshots: Sequence[PendingSnapshot] = ()
    """Snapshots of producers, written before the directories are synced; each keeps its own
    error."""
    undone: int = 0
    """How many partial writes of the log, cut off again, this covers."""
    notes_damage: bool = False
    """Whether this is the note that the log was found damaged, and nothing else."""
    leaves_rest: bool = False
    """Whether there were more closed segments than ``most``."""
    error: Exception | None = None
    """Anything but an OSError is a bug; no less final."""

    @property
    def overtaken(self) -> bool:
        """Whether the log's directory was renamed meanwhile (deleted, stray): no disk failed."""
        return isinstance(self.error, FileNotFoundError)

    def run(self) -> None:
        """Sync all. Blocks; a failure is kept in ``error`` and not tried again (promise 25)."""
        try:
            for file in self.files:
                file.sync()
            for snapshot in self.snapshots:
                # After the records that it covers.
                snapshot.write()
            for directory in self.directories:
                directory.sync()
            for newest in self.snapshots[-1:]:
                # Older ones are not needed once its name is durable.
                newest.thin_out()
        except Exception as error:
            self.error = error


def closed_unsynced(
    segments: Sequence[Segment], synced: int, most: int
) -> tuple[list[Segment], list[Segment]]:
    """Return the closed segments that reach above ``synced``: the ``most`` oldest, and the others.

    The claim covers all below an offset, so it begins with the oldest. Grows with the result.
    """
    closed: list[Segment] = []
    for segment in islice(reversed(segments), 1, None):
        if segment.next_offset <= synced:
            break
        closed.append(segment)
    closed.reverse()
    return closed[:most], closed[most:]


def run_all(pendings: Sequence[PendingSync]) -> None:
    """Run many, in any thread; after a failure nothing else of its log directory is synced."""
    failed: dict[str, Exception] = {}
    for pending in pendings:
        pending.error = failed.get(pending.log_directory)
        if pending.error is None:
            pending.run()
        if pending.error is not None and not pending.overtaken:
            failed[pending.log_directory] = pending.error


def write_all_epochs(epochs: Sequence[PendingEpochs], synced: Sequence[PendingSync] = ()) -> None:
    """Write the leader epochs and fences of many logs, in any thread, after the syncs of others.

    After a failure nothing else of its log directory is written: each of these files has a sync.
    That the directory of one log is gone says nothing of the others.
    """
    failed: dict[str, Exception] = {}
    for sync in synced:
        if sync.error is not None and not sync.overtaken:
            failed.setdefault(sync.log_directory, sync.error)
    for pending in epochs:
        pending.error = failed.get(pending.log_directory)
        if pending.error is None:
            pending.run()
            if pending.error is not None and not (pending.is_refused or pending.overtaken):
                failed[pending.log_directory] = pending.error


def unsynced(log: LogState, *, closed_only: bool = False, most: int = 2**31) -> PendingSync | None:
    """Return what to sync so that all (or all closed segments) is durable; None if nothing.

    Of more than ``most`` closed segments only the oldest: then it ``leaves_rest``.
    ``run`` it anywhere, then give it to ``synced`` on the log's own thread, always. An OSError
    (too many open files, a full disk) leaves everything to the next call; others are final.
    """
    if log.resources.failed or log.closed or log.change in HOLDS_SYNCS:
        return None  # promise 25: nothing is synced after a failure
    if log.damaged is not None and not log.damage_unsynced:
        return None
    try:
        if log.damaged is not None:
            return _note_to_sync(log, log.synced_end_offset, log.generation)
        return _take_unsynced(log, closed_only, most)
    except Unsound as error:
        found_damaged(log, f"{log.path}: {error}")
        return None
    except OSError as error:
        write_failed(log, error)
        if log.failed:
            return None
        raise


def _take_unsynced(log: LogState, closed_only: bool, most: int) -> PendingSync | None:
    if log.write_again is not None:
        # On the event loop, where no cut can interfere: bytes above the recovery point of a crash.
        log.write_again(log)
    # Once the recovery point is above an epoch's first batch, only its file has the epoch.
    write_missing_fences(log)
    write_missing_epochs(log)
    # Nor is a marker read again below it.
    write_missing_aborted(log)
    synced = log.synced_end_offset
    grown = log.segments.active.size - log.snapshot_size
    if not closed_only and not log.failed:
        if grown > SNAPSHOT_INTERVAL_BYTES:
            log.take_snapshot()
        _write_index_of_active(log)
    part, left = closed_unsynced(log.segments, synced, most)
    paths = [path for segment in part for path in (segment.log_path, *segment.index_paths)]
    end = log.segments.active.base_offset if closed_only else log.end_offset
    if left:
        end = left[0].base_offset
    elif not closed_only and end > synced:
        paths.append(log.segments.active.log_path)
    left_files = log.dirty.files & {path for segment in left for path in segment.index_paths}
    if not (paths or log.dirty.files or log.dirty.directories or log.snapshots):
        return None
    # A snapshot is written after the records that it covers: with the last part.
    with_them = bool(log.snapshots) and not left
    dirty = log.dirty.directories | ({log.path} if with_them else set())
    pinned, directories = log.resources.files.pin_all(
        paths + sorted(log.dirty.files.difference(paths, left_files)), sorted(dirty)
    )
    bases = frozenset(segment.base_offset for segment in log.segments) if with_them else ()
    snapshots = log.snapshots.for_sync(bases) if with_them else []
    names_changed = log.dirty.names_changed if log.path in dirty else 0
    # Before the sync: what is written during it needs another one.
    log.dirty.files, log.dirty.directories = left_files, set()
    above = log.path.rpartition("/")[0]
    pending = PendingSync(above, pinned, directories, names_changed, end, log.generation, snapshots)
    pending.undone = log.undone_writes
    pending.leaves_rest = bool(left)
    return pending


def _write_index_of_active(log: LogState) -> None:
    index, written = log.segments.active.index, log.segments.active.index.written
    new = len(index) - written
    lag = log.segments.active.size - (index.entry(written - 1)[0] if written else 0)
    if new >= INDEX_ENTRIES_UNWRITTEN or (new and lag >= INDEX_BYTES_UNWRITTEN):
        try:
            log.segments.active.write_indexes()
        except OSError as error:
            write_failed(log, error)  # without room, the next sync tries again


def _snapshots_written(log: LogState, pending: PendingSync) -> None:
    for error in log.snapshots.written(pending.snapshots):
        write_failed(log, error)  # without room, the next sync tries again
    for snapshot in pending.snapshots:
        for path in snapshot.thinned_out:
            log.resources.files.forget(path)


def synced(log: LogState, pending: PendingSync) -> None:
    """Take back a pending sync that was run: the recovery point moves, or the log fails."""
    for file in (*pending.files, *pending.directories):
        log.resources.files.release(file)
    if pending.notes_damage:
        log.resources.files.forget(f"{log.path}/{names.DAMAGED}")
    if pending.snapshots:
        _snapshots_written(log, pending)
    if pending.overtaken and log.closed:
        return
    if pending.error is not None:
        why = pending.error if isinstance(pending.error, OSError) else repr(pending.error)
        log.resources.fail(f"fsync in {log.path} failed: {why}")
        return
    if pending.notes_damage:
        damage_is_noted(log)
        return
    log.undone_are_synced(pending.undone)
    if not log.closed:
        log.dirty.names_are_durable(pending.names)
    if log.change is LogChange.CUT or pending.generation != log.generation:
        return  # what is cut may be given out again
    log.raise_recovery_point(pending.end_offset)


def sync(log: LogState) -> None:
    """Make everything durable now. Blocks; check ``failed`` afterwards.

    Without file descriptors or room nothing is synced, and ``synced_end_offset`` stays.
    """
    try:
        pending = unsynced(log)
    except OSError as error:
        write_failed(log, error)
        return
    if pending is not None:
        pending.run()
        synced(log, pending)


def _note_to_sync(log: LogState, end_offset: int, generation: int) -> PendingSync:
    """Return what syncs the note of damage, and nothing else of the log."""
    note = f"{log.path}/{names.DAMAGED}"
    files, directories = log.resources.files.pin_all([note], [log.path])
    above = log.path.rpartition("/")[0]
    pending = PendingSync(above, files, directories, 0, end_offset, generation)
    pending.notes_damage = True
    return pending
