"""Expiry: what a log loses by retention and DeleteRecords, and its silent producers.

Owns the steps, in pieces (``model.work``): the log's owner decides, a thread renames and syncs.
Batches that are appended in the meantime stay. Not which segments go: see `retention`.

| step | where |
|---|---|
| if all segments go: what a roll would sync | a thread |
| which segments go; a roll if all do | the owner, in one turn |
| a durable snapshot of the producers of what goes | a thread |
| the log begins after them, readers find them no longer | the owner |
| their files are renamed, each durably before the next; older snapshots go | a thread |
"""

from __future__ import annotations

from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.records.batch import Rejected
from tidelog.storage.log.changes import LogChange, during
from tidelog.storage.log.epoch_writing import write_epochs
from tidelog.storage.log.fence_writing import writing_fences
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.retention import Expiry, expired
from tidelog.storage.log.rolling import roll, sync_before_roll
from tidelog.storage.log.segment_removal import take_out, taken_out
from tidelog.storage.log.service import out_of_service, write_failed
from tidelog.storage.log.snapshots import remove_snapshots
from tidelog.storage.log.state import LogState


def advance_start(log: LogState, offset: int, *, later: bool = False) -> Rejected | None:
    """Begin the log at ``offset`` (DeleteRecords, a leader's log start): older records go.

    OFFSET_OUT_OF_RANGE above the high watermark; below the present start nothing happens. The
    leader epochs that this ends are written now, or ``later``: before the next sync.
    """
    if log.damaged or log.closed:
        return out_of_service(log)
    if offset > log.high_watermark:
        return Rejected(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is above the high watermark {log.high_watermark}",
        )
    if offset > log.start_offset:
        log.raise_start(offset)
        if log.epochs.truncate_start(offset):
            write_epochs(log, later=later)
    return None


def housekeeping(log: LogState, now_ms: int, *, at_most: int | None = None) -> Work[str | None]:
    """Apply retention, forget silent producers, in pieces; nothing while the log is changed.

    Returns a sentence for the log when segments went: ``at_most`` so many, each of which costs
    a sync of the directory. Grows with the number of segments. Their files are removed when
    their renaming is durable and ``file.delete.delay.ms`` is over (``Resources.removals``).
    """
    if log.failed or log.closed or log.change is not None:
        return None
    with during(log, LogChange.REMOVAL):
        try:
            # From its producer the next start knows that there is such a marker.
            silent_since = log.producers.transactions.before_uncommitted(
                now_ms - log.producer_expiration_ms, log.high_watermark
            )
            yield from forgotten(log.producers, silent_since)
            return (yield from _apply_retention(log, now_ms, at_most))
        except OSError as error:
            write_failed(log, error)
            return None


def keeping_producers(log: LogState, before: int) -> Work[bool]:
    """Whether the producers of all before an offset are known without its batches, durably.

    Their retries must be recognised when those are gone. OSError if the disk fails.
    """
    return (
        yield from log.snapshots.keep(
            before,
            log.synced_end_offset,
            lambda: (log.end_offset, log.producers),
            log.dirty.note_names,
        )
    )


def _expired(log: LogState, now_ms: int) -> Expiry:
    return expired(
        log.segments,
        log.configs,
        start_offset=log.start_offset,
        high_watermark=log.high_watermark,
        now_ms=now_ms,
    )


def _apply_retention(log: LogState, now_ms: int, at_most: int | None) -> Work[str | None]:
    expiry = _expired(log, now_ms)
    if expiry.count == len(log.segments):
        while log.waits_to_roll:
            yield from sync_before_roll(log)
        # What was appended meanwhile does not go with what was old before.
        expiry = _expired(log, now_ms)
    count = expiry.count if at_most is None else min(expiry.count, at_most)
    if count and count == len(log.segments) and roll(log, now_ms) is not None:
        # A full disk has no room for a new segment: the others are removed all the same.
        count -= 1
    while count and not (yield from keeping_producers(log, log.segments[count].base_offset)):
        count -= 1
    if not count or log.failed or log.closed:
        return None
    start = log.segments[count].base_offset
    unwritten = log.first_unwritten_fence
    if unwritten is not None and unwritten < start and not (yield from writing_fences(log)):
        return None  # no room: a fence must not go with its batch
    leaving = log.segments[:count]
    # First: if the removal stops half-way (no descriptor left), readers must not skip the removed
    # records as if they had never been.
    advance_start(log, start, later=True)
    removal = take_out(log, leaving)
    disk, directory = log.resources.disk, log.path

    def remove() -> list[str]:
        removal.run()
        return remove_snapshots(disk, directory, below=start)

    try:
        for path in (yield remove):
            log.resources.files.forget(path)
    finally:
        taken_out(log, removal, now_ms)
    log.raise_recovery_point(start)
    removed = sum(segment.size for segment in leaving)
    return (
        f"{log.partition}: {count} segments with {removed} bytes removed "
        f"({expiry.reason}), the log begins at offset {log.start_offset}"
    )


def forgotten(producers: ProducerState, silent_since_ms: int) -> Work[None]:
    """Forget silent producers: even giving up the memory of many takes long."""
    while producers.expire(silent_since_ms, 1):
        yield None
