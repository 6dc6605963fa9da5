"""Closing logs: what a clean stop writes, and the syncs of many logs side by side.

Owns what a stop leaves of one log, and how many logs are closed at a time. Not the marker of a
clean stop: see `directory.log_directory`.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor

from tidelog.records.batch import Rejected
from tidelog.storage import names
from tidelog.storage.log.epoch_writing import call_off_epochs
from tidelog.storage.log.service import out_of_service, write_failed
from tidelog.storage.log.snapshots import snapshot_path
from tidelog.storage.log.state import LogState
from tidelog.storage.log.syncing import PendingSync, run_all, synced, unsynced

CLOSED_AT_ONCE = 64
"""Logs whose files are synced in one go when the directory is closed; each has up to six open."""

CLOSING_THREADS = 8

WHOLE_FILES = (
    names.EPOCH_CHECKPOINT,
    names.EPOCH_CHECKSUM,
    names.PARTITION_METADATA,
    names.DAMAGED,
)
"""The small files of a log, which a sync opens."""


def close(log: LogState) -> bool:
    """Stop cleanly: indexes and producers written, everything synced, files closed.

    The log refuses everything afterwards. False when something could not be written: then
    the next start must recover.
    """
    if log.closed:
        return True
    pending = write_before_stop(log)
    if isinstance(pending, PendingSync):
        pending.run()
    return finish_stop(log, pending)


def write_before_stop(log: LogState) -> PendingSync | Rejected | None:
    """Write what a clean stop leaves; return what to sync, or why it could not be written.

    Files of an earlier stop that are still up to date are not written again.
    """
    if log.failed and not log.damage_unsynced:
        return out_of_service(log)
    active = log.segments.active
    try:
        if log.damaged is not None:
            return unsynced(log)
        if not log.end_offset and not log.resources.disk.exists(active.log_path):
            return unsynced(log)  # nothing was ever written to it
        for segment in log.segments:
            segment.write_indexes()
        if not active.indexes_are_complete():
            active.close_indexes()
            log.dirty.files |= set(active.index_paths)
            log.dirty.note_names()
        if not log.resources.disk.exists(snapshot_path(log.path, log.end_offset)):
            log.take_snapshot()
        return unsynced(log)
    except OSError as error:
        return write_failed(log, error)


def finish_stop(log: LogState, pending: PendingSync | Rejected | None) -> bool:
    """Take back the sync of ``write_before_stop``; whether all of it worked."""
    if isinstance(pending, PendingSync):
        synced(log, pending)
    unwritten = bool(log.dirty.files or log.snapshots)
    forget_files(log)
    return not (isinstance(pending, Rejected) or log.failed or unwritten)


def forget_files(log: LogState) -> None:
    """Close all files without writing anything (before the directory is renamed)."""
    call_off_epochs(log)
    log.closed = True
    log.snapshots.cancel()
    log.resources.kept_reads.forget(log)
    for segment in log.segments:
        log.resources.indexes.forget(segment)
        for suffix in names.SEGMENT_SUFFIXES:
            log.resources.files.forget(segment.path(suffix))
    for name in WHOLE_FILES:
        log.resources.files.forget(f"{log.path}/{name}")
    log.resources.files.forget_directory(log.path)
    log.resources.removals.forget_below(log.path)
    log.watermark_note.close()


def close_all(open_logs: Iterable[LogState], threads: Executor | None) -> bool:
    """Close the logs; whether all that are sound closed well."""
    clean = True
    logs = [log for log in open_logs if not log.closed]
    for begin in range(0, len(logs), CLOSED_AT_ONCE):
        some = logs[begin : begin + CLOSED_AT_ONCE]
        written = [(log, write_before_stop(log)) for log in some]
        pendings = [pending for _, pending in written if isinstance(pending, PendingSync)]
        if threads is None:
            run_all(pendings)
        else:
            shares = [pendings[first::CLOSING_THREADS] for first in range(CLOSING_THREADS)]
            list(threads.map(run_all, shares))
        for log, pending in written:
            closed_well = finish_stop(log, pending)
            is_noted = log.damaged is not None and not log.damage_unsynced
            clean = (closed_well or is_noted) and clean
    return clean
