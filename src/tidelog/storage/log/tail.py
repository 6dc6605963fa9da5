"""The tail of a log: one checked batch is written to the active segment.

Owns the room that is left there for a batch as it was sent, and the flat write of it. Checks
nothing: the caller has (`broker.partitions.plain_append`). Not what needs a roll, another
configuration or several batches: see `appending`, which writes the same bytes.
"""

from __future__ import annotations

from tidelog.records.batch import MAGIC_POSITION, BatchHeader, Rejected, pack_prefix
from tidelog.storage.log.preparing import COPIED_BYTES
from tidelog.storage.log.service import undo_write
from tidelog.storage.log.state import LogState


def has_room(log: LogState, header: BatchHeader, size: int) -> bool:
    """Whether a batch of ``size`` bytes goes into the active segment, as it was sent.

    False where a roll may be due, or the topic wants batches in another form.
    """
    active = log.segments.active
    most_bytes, newest, last_offset = active.room
    return (
        active.size + size <= most_bytes
        and 0 <= header[8] <= newest
        and log.end_offset + header[6] <= last_offset
        and log.keeps_batches
    )


def write_one(
    log: LogState, header: BatchHeader, batch: memoryview, leader_epoch: int, now_ms: int
) -> Rejected | None:
    """Write a batch for which ``has_room`` is true; a refusal leaves no trace.

    The batch gets the log's end as its offset, and the leader epoch; the buffer is not changed.
    """
    first = log.end_offset
    size = len(batch)
    _, length, _, _, _, _, delta, _, newest, producer_id, _, _, _ = header
    rest = batch[MAGIC_POSITION:]
    prefix = pack_prefix(first, length, leader_epoch)
    chunks = (prefix, rest) if size > COPIED_BYTES else (b"".join((prefix, rest)),)
    active = log.segments.active
    try:
        position = active.write(chunks, size)
    except OSError as error:
        return undo_write(log, error)
    last = first + delta
    active.note(position, size, last, newest, log.configs.index_interval_bytes)
    if producer_id >= 0:
        log.producers.note(header, first, now_ms)
    log.end_offset = last + 1
    return None
