"""Rolling: closing the active segment and beginning the next one.

Owns the steps, and the sync that must come before them. Not when a roll is due: see `retention`.
Ordering: a segment's end is known before its successor exists.
"""

from __future__ import annotations

from tidelog.model.work import Work, finish
from tidelog.records.batch import Rejected
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.service import out_of_service, write_failed
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.fresh_segments import new_segment
from tidelog.storage.segments.segment import Segment


def roll(log: LogState, now_ms: int) -> Rejected | None:
    """Begin a new segment at the end of the log; a refusal (disk full) changes nothing.

    Blocks where a sync must come before: ``syncing_before_roll`` spares that.
    """
    if log.failed or log.closed:
        return out_of_service(log)
    active = log.segments.active
    if active.size == 0 and active.base_offset == log.end_offset:
        return None
    try:
        if log.waits_to_roll:
            finish(sync_before_roll(log))
        active.close_indexes()
        fresh = new_segment(log.resources, log.path, log.end_offset, now_ms)
    except OSError as error:
        return write_failed(log, error)
    log.take_snapshot()
    # Its bytes may be synced, or about to be by a thread: no sync of bytes to come covers them.
    log.dirty.files |= set(active.index_paths)
    log.dirty.note_names()
    active.active = False
    active.hold_in_cache()
    _activate(log, fresh)
    return None


def puts_roll_off(log: LogState) -> bool:
    """Whether a roll waits: a thread will sync what must be durable before it."""
    return log.waits_to_roll and log.resources.asks_for_sync(log.partition)


def syncing_before_roll(log: LogState) -> Work[Rejected | None]:
    """Make durable, in pieces, what the next roll needs; a refusal if that fails."""
    if log.failed or log.closed:
        return out_of_service(log)
    try:
        yield from sync_before_roll(log)
    except OSError as error:
        return write_failed(log, error)
    return out_of_service(log) if log.failed or log.closed else None


def sync_before_roll(log: LogState) -> Work[None]:
    """Do as ``syncing_before_roll``; OSError instead of a refusal."""
    files, undone = log.resources.files, log.undone_writes
    if log.undone_writes_synced < undone:
        yield from files.syncing(files.pin(log.segments.active.log_path))
        log.undone_are_synced(undone)
    if len(log.segments) == 1 and log.dirty.names_unsynced:
        yield from log.dirty.syncing_names(files)


def roll_overdue(log: LogState, now_ms: int) -> None:
    """Begin a new segment where the active one has waited for ``max.compaction.lag.ms``.

    An append does it in time; this is for a log that nothing is appended to.
    """
    if log.configs.compacted and not (log.failed or log.closed or log.change is LogChange.CUT):
        first = log.segments.active.first_timestamp
        due = first is not None and 0 <= first < now_ms - log.configs.max_compaction_lag_ms
        if due and not puts_roll_off(log):
            roll(log, now_ms)


def _activate(log: LogState, segment: Segment) -> None:
    log.resources.indexes.forget(segment)
    log.segments.append(segment)
    log.snapshot_covers(segment.size)
    log.configure(log.configs)  # a new jitter for each segment
