"""The fences that a start takes from their file and from the batches (docs/decisions/0063).

Owns which of them counts. The file is written before the recovery point passes a fence, so it has
all below; what it has above is of a sync that did not end, and the batches there are checked.

| the file | what counts |
|---|---|
| it agrees with the batches | its entries below the recovery point, then those of the batches |
| it is missing, no first fence is on record | the batches that were checked: there was no file |
| it is missing, and one is on record | all batches; damage, if the first fence was removed |
| it cannot be read, or a batch contradicts it | the same; none on record: if any one is gone |

Retention may have removed a fence's batch, and then only the file knew it. A leader without it
would append the fence again, so such a replica is damaged: it is fetched again from its leader.
The first fence is on record in the log directory (docs/decisions/0157). One at or above the end of
the log was cut since then, and counts as none.
"""

from __future__ import annotations

from tidelog.records.control_records import FenceRecord, changes_in
from tidelog.storage import names
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.log.checking import CheckedBatches
from tidelog.storage.log.fence_writing import data_end_before, note_fences, take_fences
from tidelog.storage.log.fences import FenceEntry, Fences, decode_fences
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.scan import HEADERS_BYTES, scan
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound

Found = list[tuple[int, FenceRecord]]


def find_fences(log: LogState, recovery_point: int, checked: CheckedBatches | None) -> None:
    """Give a log that is being opened its fences.

    ``checked``: from the batches after the recovery point. A file that is lost, or could not be
    believed, is named in ``log.recovered.mended``. One look-up for each fence; grows with the
    batches of the log only where the file is not there to be believed. Unsound where they do not
    say enough.
    """
    first = log.fence_file.first_on_record
    first = None if first is None or first >= log.end_offset else first
    path = f"{log.path}/{names.FENCE_CHECKPOINT}"
    try:
        decoded = decode_fences(log.resources.disk.read(path))
        log.fence_file.written = log.fence_file.durable = decoded
        take_fences(log, decoded)
        if checked is not None and decoded.entries:
            # An earlier process may not have made the name durable, but for those below the start.
            log.fence_file.durable = decoded.below(log.start_offset)
            log.fence_file.change = log.dirty.note_names()
        _agree(log, recovery_point, checked)
    except FileNotFoundError:
        if first is None:
            _add(log, [] if checked is None else checked.fences)
        else:
            _take_from_batches(log, path, "the file is missing", first)
    except DamagedFile as error:
        _take_from_batches(log, path, str(error), first)


def _take_from_batches(log: LogState, path: str, why: str, first: int | None) -> None:
    """Give a log whose file does not count the fences of its batches; Unsound if those of some
    were removed. ``first``: the offset of the oldest one, None if that is not on record."""
    log.fence_file.written = Fences()
    take_fences(log, Fences())  # another one: the file is written again
    begins = log.segments[0].base_offset
    if begins > (first or 0):
        gone = "batches with fences may have been" if first is None else f"the one at {first} was"
        raise Unsound(f"{path}: {why}; {gone} removed: put a copy of the file back")
    log.recovered.mended.append(f"{path}: {why}: taken from the log instead")
    _add(log, _of_batches(log))


def _agree(log: LogState, recovery_point: int, checked: CheckedBatches | None) -> None:
    """Let the fences of the file be what the batches allow; DamagedFile if one contradicts them."""
    kept = log.fences.below(log.end_offset)
    if checked is not None:
        # What is above is in the batches that were checked. A log that begins higher got the fences
        # below its beginning from its leader.
        kept = kept.below(max(recovery_point, log.segments[0].base_offset))
    for entry in kept.entries:
        if entry.offset >= log.start_offset and not _says(log, entry):
            raise DamagedFile(f"offset {entry.offset} is not the fence of epoch {entry[0]}")
    take_fences(log, kept)
    for offset, fence in () if checked is None else checked.fences:
        newest = kept.below(offset + 1).newest
        is_known = newest is not None and newest.resize_epoch >= fence.resize_epoch
        if offset < recovery_point and not is_known:
            raise DamagedFile(f"it lacks the fence of epoch {fence.resize_epoch} at {offset}")
    _add(log, [] if checked is None else checked.fences)


def _says(log: LogState, entry: FenceEntry) -> bool:
    """Whether the batch at the offset of an entry is its fence or seal."""
    located = log.segments.locate(entry.offset)
    if located is None:
        return False
    segment, position = located
    expected = FenceRecord(entry.kind, entry.resize_epoch, entry.undeleted_count)
    return (entry.offset, expected) in _changes(segment, position)


def _add(log: LogState, fences: Found) -> None:
    for offset, fence in fences:
        data_end = data_end_before(log, offset)
        entry = FenceEntry(fence.resize_epoch, fence.undeleted_count, fence.kind, offset, data_end)
        note_fences(log, [entry])


def _of_batches(log: LogState) -> Found:
    """Return the fences in all batches of a log that has lost none. Grows with the batches."""
    fences: Found = []
    for segment in log.segments:
        file = segment.open_log()
        for position, header in scan(file, 0, segment.size, check=False, chunk_bytes=HEADERS_BYTES):
            if header.control:
                fences += _changes(segment, position)
    return fences


def _changes(segment: Segment, position: int) -> Found:
    header = segment.header_at(position)
    if not header.control:
        return []
    return changes_in(header, segment.read_bytes(position, header.size))
