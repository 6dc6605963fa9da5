"""The leader epochs of one log: their beginnings and ends, and writing them to their file.

Owns the changes, and when the files of epochs and fences are written. Not the rules of the list:
see `storage.epochs`. Not the files: see `epoch_file`. Not the changes of fences: `fence_writing`.
"""

from __future__ import annotations

from tidelog.storage import names
from tidelog.storage.checkpoints import encode_checksums, encode_epochs
from tidelog.storage.log.changes import HOLDS_SYNCS
from tidelog.storage.log.epoch_file import PendingEpochs
from tidelog.storage.log.fences import encode_fences
from tidelog.storage.log.service import write_failed
from tidelog.storage.log.state import LogState
from tidelog.storage.log.whole_files import write_whole


def begin_epoch(log: LogState, leader_epoch: int) -> None:
    """Note that this epoch begins at the log's end (becoming leader; its first batch)."""
    if log.epochs.begin(leader_epoch, log.end_offset):
        # The very first epoch fences nothing, and its records have it: the first sync writes it.
        write_epochs(log, later=leader_epoch == log.end_offset == 0)


def forget_empty_epoch(log: LogState) -> None:
    """Drop an epoch that began at the log's end and got no record (becoming a follower).

    Otherwise records of an older epoch that the next leader has there would count for that epoch.
    """
    if log.epochs.truncate_end(log.end_offset):
        write_epochs(log)


def end_offset_for_epoch(log: LogState, epoch: int) -> tuple[int, int]:
    """Return (epoch, end offset) of the greatest epoch not above ``epoch``; -1, -1 if none."""
    return log.epochs.end_of(epoch, log.end_offset)


def write_epochs(log: LogState, *, later: bool = False) -> None:
    """Write the leader epochs; what a full disk refuses is written before the next sync.

    ``later``: before the next sync in any case.
    """
    call_off_epochs(log)
    log.epoch_file.unwritten = True
    if later:
        return
    try:
        write_missing_epochs(log)
    except OSError as error:
        write_failed(log, error)


def epochs_content(log: LogState) -> bytes:
    """Return the content of the file. A kill may take the log's start back to its checkpoint, as
    far as there are segments: the file has the epochs from the first segment on."""
    return encode_epochs(log.epochs.all_from(log.segments[0].base_offset))


def write_missing_epochs(log: LogState) -> None:
    """Write the leader epochs if their file does not say what is in memory. OSError."""
    call_off_epochs(log)
    if not log.epoch_file.unwritten:
        return
    content = epochs_content(log)
    beside = f"{log.path}/{names.EPOCH_CHECKSUM}"
    checksums, crc = encode_checksums(content, log.epoch_file.crc)
    log.resources.files.get(beside, create=True).write_at(0, [checksums])
    log.dirty.files.add(beside)
    log.write_file(names.EPOCH_CHECKPOINT, content)
    log.epoch_file.crc = crc
    log.epoch_file.unwritten = False


def write_missing_fences(log: LogState) -> None:
    """Write the fences if their file does not say what is in memory. Blocks. OSError.

    ``epochs_to_write`` spares a sync from it.
    """
    if log.fence_file.written is log.fences:
        return
    call_off_epochs(log)
    path = f"{log.path}/{names.FENCE_CHECKPOINT}"
    content = encode_fences(log.fences.entries)
    # With a sync of its own: it replaces what no batch may have any longer.
    write_whole(log.resources.disk, path + names.TEMPORARY, content, synced=True)
    log.resources.disk.rename(path + names.TEMPORARY, path)
    log.fence_file.was_written(log.fences, log.dirty.note_names())


def epochs_to_write(log: LogState) -> PendingEpochs | None:
    """Return a write of the leader epochs and fences that spares the next sync from it, or None.

    ``run`` it anywhere, then give it to ``epochs_written``, always.
    """
    if not log.epoch_file.unwritten and log.fence_file.written is log.fences:
        return None
    if log.failed or log.closed or log.change in HOLDS_SYNCS:
        return None
    return pending_epochs(log, epochs=log.epoch_file.unwritten)


def pending_epochs(log: LogState, *, epochs: bool = True) -> PendingEpochs:
    """Return a write of the leader epochs, and of the fences that are not in their file; give it to
    ``epochs_written``, always."""
    call_off_epochs(log)
    log.epoch_file.unwritten |= epochs
    log.epoch_file.pending = PendingEpochs(
        log.resources,
        log.path,
        epochs_content(log) if epochs else None,
        log.epoch_file.crc,
        log.fences if log.fence_file.written is not log.fences else None,
    )
    return log.epoch_file.pending


def epochs_written(log: LogState, pending: PendingEpochs) -> None:
    """Take back a write of the leader epochs; one that failed on a full disk is repeated before the
    next sync."""
    if log.closed:
        return
    if isinstance(pending.error, OSError):
        write_failed(log, pending.error)
    elif pending.error is not None:
        log.resources.fail(f"a write to {log.path} failed: {pending.error!r}")
    if pending is log.epoch_file.pending:
        log.epoch_file.pending = None
        _note_epochs(log, pending)


def call_off_epochs(log: LogState) -> None:
    """Call off a write that another thread may be at: only the caller writes after that."""
    pending, log.epoch_file.pending = log.epoch_file.pending, None
    if pending is not None:
        pending.call_off()
        _note_epochs(log, pending)


def _note_epochs(log: LogState, pending: PendingEpochs) -> None:
    for name in (names.EPOCH_CHECKPOINT, names.EPOCH_CHECKSUM):
        # A file that is open is the former one.
        log.resources.files.forget(f"{log.path}/{name}")
    if pending.is_written:
        change = log.dirty.note_names()
        if pending.fences is not None:
            log.fence_file.was_written(pending.fences, change)
        if pending.crc is not None:
            log.epoch_file.crc = pending.crc
            log.epoch_file.unwritten = False
