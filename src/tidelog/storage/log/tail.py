"""The tail of a log: one checked batch is written to the active segment.

Owns the end offset, the room that is left there for a batch as it was sent, and the flat write of
it. Checks
nothing: the caller has (`broker.partitions.plain_append`). Not what needs a roll, another
configuration or several batches: see `appending`, which writes the same bytes.
"""

from __future__ import annotations

from tidelog.records.batch import HeaderFields, Rejected, pack_prefix_into
from tidelog.storage.log.service import undo_write
from tidelog.storage.log.state import LogState


def has_room(log: LogState, header: HeaderFields, size: int) -> bool:
    """Whether a batch of ``size`` bytes goes into the active segment, as it was sent.

    False where a roll may be due, the topic wants batches in another form, or their records are
    to be checked: all of them, or those of a batch whose times do not fit each other.
    """
    active = log.segments.active
    most_bytes, newest, last_offset = active.room
    return (
        active.size + size <= most_bytes
        and 0 <= header[7] <= header[8] <= newest
        and log.end_offset + header[6] <= last_offset
        and log.keeps_batches
    )


def write_one(
    log: LogState, header: HeaderFields, batch: memoryview, leader_epoch: int, now_ms: int
) -> Rejected | None:
    """Write a batch for which ``has_room`` is true; a refusal leaves no trace.

    The batch gets the log's end as its offset, and the leader epoch, in its own bytes. A refusal
    gives it back as it was sent: the request is served again, by the general path.
    """
    first = log.end_offset
    size = len(batch)
    _, length, _, _, _, _, delta, _, newest, producer_id, _, _, _ = header
    if batch.readonly:
        batch = memoryview(bytearray(batch))
    active = log.segments.active
    # In the request's own bytes: no second buffer, no copy. Nothing reads them later.
    pack_prefix_into(batch, 0, first, length, leader_epoch)
    try:
        position = active.write((batch,), size)
    except OSError as error:
        pack_prefix_into(batch, 0, header[0], length, header[2])
        return undo_write(log, error)
    last = first + delta
    active.note(position, size, last, newest, log.configs.index_interval_bytes)
    if producer_id >= 0:
        log.producers.note(header, first, now_ms)
    log.end_offset = last + 1
    return None


def end_at(log: LogState, offset: int) -> None:
    """Let the log end at ``offset``: batches up to there were written, or those after it cut."""
    log.end_offset = offset
