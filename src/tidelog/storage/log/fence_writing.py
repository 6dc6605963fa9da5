"""The fences and seals of one log: found in what is appended, and noted.

Owns the changes of the list. Not its look-ups: see `fences`. Not when the file is written: see
`epoch_writing`. Ordering: what can fail comes before the bytes are in the file, the note after.
"""

from __future__ import annotations

from tidelog.model.work import Work
from tidelog.records.batch import CONTROL_BIT
from tidelog.records.control_records import changes_in
from tidelog.storage.log.epoch_writing import epochs_written, pending_epochs
from tidelog.storage.log.fences import FenceEntry, Fences
from tidelog.storage.log.inspecting import Batches
from tidelog.storage.log.state import LogState


def fences_in(log: LogState, batches: Batches, *, assigned: bool) -> list[FenceEntry]:
    """Return the fences and seals in batches that are to be written at the log's end.

    Only control batches are decoded. OSError and CorruptRecords of reads of the log.
    """
    fences: list[FenceEntry] = []
    end, data_end = log.end_offset, -1
    for header, batch in batches:
        first = header.base_offset if assigned else end
        if first > end:
            data_end = first  # the leader's compaction left a gap, and it keeps control batches
        end = first + header.last_offset_delta + 1
        if not header.attributes & CONTROL_BIT:
            data_end = end
            continue
        for offset, change in changes_in(header, batch):
            if data_end < 0:
                data_end = data_end_before(log, log.end_offset)
            fence_offset = first + offset - header.base_offset
            fences.append(
                FenceEntry(
                    change.resize_epoch, change.undeleted_count, change.kind, fence_offset, data_end
                )
            )
    return fences


def note_fences(log: LogState, entries: list[FenceEntry]) -> None:
    """Note fences and seals whose batches were written; the next sync writes the file."""
    for entry in entries:
        take_fences(log, log.fences.with_one(entry))


def take_fences(log: LogState, fences: Fences) -> None:
    """Let the log have these fences, whatever their file says."""
    log.fences = fences


def data_end_before(log: LogState, offset: int) -> int:
    """Return the end of the data before an offset: control batches in front of it do not count.

    Not below what the log still has: a reader that is below goes on there. Grows with the control
    batches since the last fence. OSError and CorruptRecords of the reads.
    """
    first = log.segments[log.segments.segment_at(log.start_offset)].base_offset
    end = offset
    while True:
        former = log.fences.below(end).newest
        if former is not None and former.offset == end - 1:
            return former.data_end
        if end <= first:
            return end
        before = log.segments.header_at(end - 1)
        if before is None or not before.control or not before.base_offset < end:
            return end
        end = before.base_offset


def writing_fences(log: LogState) -> Work[bool]:
    """Write the fences that are not in their file, in pieces, durably; whether it has them all."""
    if log.fence_file.written is not log.fences:
        pending = pending_epochs(log, epochs=False)
        try:
            yield pending.run
        finally:
            epochs_written(log, pending)
        if not pending.is_written or log.closed:
            return False
    yield from log.dirty.syncing_names(log.resources.files)
    return log.first_unwritten_fence is None
