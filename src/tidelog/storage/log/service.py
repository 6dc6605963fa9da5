"""Whether a log is in service: damage, failed writes and reads, and the refusals that follow.

Owns the judgement of an error, and the note of damage beside the log. Not the table of what a log
does in each state: see `partition_log`.
"""

from __future__ import annotations

from functools import partial

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected
from tidelog.records.record import CorruptRecords
from tidelog.storage import names
from tidelog.storage.log.state import LogState
from tidelog.storage.log.whole_files import replace
from tidelog.storage.segments.resources import Resources
from tidelog.storage.segments.soundness import Unsound


def found_damaged(log: LogState, reason: str) -> Rejected:
    """Take the log out of service: its bytes are not what was written (promise 26).

    A note beside the log makes the next start check all of it, however this process ends. A broker
    does not wait for the note here: the next sync makes it durable.
    """
    if log.damaged is None and not log.closed:
        log.damaged = reason
        on_damage = log.resources.on_damage
        try:
            note_damage(log.resources, log.path, reason, durable=on_damage is None)
            log.damage_unsynced = on_damage is not None
        except OSError as error:
            write_failed(log, error)
        if on_damage is not None:
            on_damage(log.partition)
    return out_of_service(log)


def begins_damaged(log: LogState, reason: str) -> None:
    """Take a log out of service that its start found damaged; an earlier reason stays."""
    log.damaged = log.damaged or reason


def damage_is_noted(log: LogState) -> None:
    """The note of the damage is durable."""
    log.damage_unsynced = False


def write_failed(log: LogState, error: OSError) -> Rejected:
    """A full disk heals (promise 28); any other failed write is final (promise 25)."""
    if is_overtaken(log, error):
        return out_of_service(log)
    passing = log.resources.refused_for(error)
    if passing is not None:
        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {log.path}")
    log.resources.fail(f"a write to {log.path} failed: {error}")
    return out_of_service(log)


def is_overtaken(log: LogState, error: OSError) -> bool:
    """Whether work in pieces met a log that was deleted, quarantined or moved meanwhile: its
    directory has another name, and no disk failed."""
    return log.closed and isinstance(error, FileNotFoundError)


def undo_write(log: LogState, error: OSError) -> Rejected:
    """Undo a partial write on a full disk; anything else is final (promises 25 and 28)."""
    log.undone_writes += 1
    log.dirty.files.add(log.segments.active.log_path)
    try:
        log.segments.active.open_log().truncate(log.segments.active.size)
    except OSError as second:
        return write_failed(log, second)
    return write_failed(log, error)


def out_of_service(log: LogState) -> Rejected:
    """Return the refusal of a log that is damaged, failed, closed or being changed."""
    reason = log.failed or f"{log.path} is {'closed' if log.closed else 'being changed'}"
    return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, reason)


def unreadable(log: LogState, error: OSError | CorruptRecords) -> Rejected:
    """Return the refusal for a read that failed: damage, a refusal that heals, or a failed disk."""
    if isinstance(error, Unsound):
        return found_damaged(log, f"{log.path}: {error}")
    if isinstance(error, CorruptRecords):
        # As its producer sent it: no byte was damaged here.
        return Rejected(ErrorCode.CORRUPT_MESSAGE, f"{log.partition}: {error}")
    if is_overtaken(log, error):
        return out_of_service(log)
    passing = log.resources.refused_for(error)
    if passing is not None:
        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {log.path}")
    log.resources.fail(f"a read of {log.path} failed: {error}")
    return out_of_service(log)


def note_damage(resources: Resources, directory: str, reason: str, *, durable: bool) -> None:
    """Make the next start check all of a log, however this process ends. OSError if it fails.

    A full disk has room for the note's name, which is enough: without it the damage would be
    forgotten in a kill.
    """
    path = f"{directory}/{names.DAMAGED}"
    replacing = resources.disk.replace if durable else partial(replace, resources.disk)
    try:
        replacing(path, f"{reason}\n".encode())
    except OSError as error:
        if not resources.is_full(error):
            raise
        replacing(path, b"")
