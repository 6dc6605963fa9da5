"""The aborted transactions that a start, a cut, or a file that is wrong takes from the batches.

Owns which of both counts, the files or the batches (docs/decisions/0119): the files below the
recovery point, if their checks fit, and the batches for all else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.runtime.disk import Disk
from tidelog.storage.log.aborted import AbortedTransaction, aborted, bytes_below, encode_aborted
from tidelog.storage.log.aborted_files import read_entries
from tidelog.storage.log.checking import CheckedBatches
from tidelog.storage.log.snapshots import newest_snapshot, snapshot_offsets
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.scan import HEADERS_BYTES, scan
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.soundness import Unsound


def find_aborted(log: LogState, checked: CheckedBatches | None) -> None:
    """Give a log that is being opened its aborted transactions.

    ``checked``: of all batches above the recovery point, or None without any. Reads the files of
    the segment with the recovery point, and batches only where their check is wrong, or where a
    transaction was aborted above that: once, however many segments there are. OSError, Unsound.
    """
    claimed, end = log.synced_end_offset, log.end_offset
    segments = log.segments
    bases = log.recovered.aborted & {segment.base_offset for segment in segments}
    log.aborted.begin_with(bases)
    place = segments.segment_at(claimed)
    # What files say above the recovery point does not count, so they are not read.
    for later in segments[place + 1 :]:
        if later.base_offset in bases:
            log.aborted.hold(later.base_offset, b"")
    begin, base = claimed, segments[place].base_offset
    if base in bases:
        entries, is_all = b"", False
        if base < claimed:
            proved, is_all = read_entries(log.resources.disk, log.path, base, claimed)
            if proved is None:
                begin = base
            else:
                entries = proved
        kept = entries[: bytes_below(entries, claimed)]
        log.aborted.hold(base, kept, are_written=is_all and len(kept) == len(entries))
    if checked is None or not _has_aborted(checked, claimed):
        end = claimed
    if begin < end:
        disk, path = log.resources.disk, log.path
        for entry in aborted_by_batches(disk, path, segments, begin, end):
            log.aborted.add(segments[segments.segment_at(entry.last_offset)].base_offset, entry)


def _has_aborted(checked: CheckedBatches, claimed: int) -> bool:
    events = checked.producers.events
    return events is not None and events.newest_abort >= claimed


def entries_below(disk: Disk, directory: str, segments: Sequence[Segment], end: int) -> bytes:
    """Return the entries of the last one of ``segments``, of markers below ``end``. In any thread;
    OSError, Unsound."""
    base = segments[-1].base_offset
    entries, _ = read_entries(disk, directory, base, end)
    if entries is None:
        return encode_aborted(aborted_by_batches(disk, directory, segments, base, end))
    return entries[: bytes_below(entries, end)]


def aborted_by_batches(
    disk: Disk, directory: str, segments: Sequence[Segment], begin: int, end: int
) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions with markers from ``begin`` up to ``end``, as batches have
    them.

    One whose first records are gone begins at the first that is left; one without records is none.
    Reads the headers up to ``end`` from the newest snapshot of producers up to ``begin`` on, which
    has what was open there; without one, from the first batch of the log on. OSError, Unsound when
    batches of that range cannot be walked.
    """
    offsets = snapshot_offsets(disk, directory)
    state, start = newest_snapshot(disk, directory, segments, offsets, begin)
    for segment in segments:
        if segment.next_offset <= start or segment.base_offset >= end:
            continue
        located = segment.locate(start) if start > segment.base_offset else None
        walked = 0 if located is None else located[0]
        file = segment.open_log()
        for place, header in scan(
            file, walked, segment.size, check=False, chunk_bytes=HEADERS_BYTES
        ):
            if header.base_offset >= end:
                return
            walked = place + header.size
            if header.base_offset < start or header.producer_id < 0:
                continue
            batch = segment.read_bytes(place, header.size) if header.control else b""
            ended = state.note(header, header.base_offset, 0, batch)
            if header.control:
                state.transactions.first_unstable(end)  # no reader asks this one
            entry = None if ended is None else aborted(ended)
            if entry is not None and entry.last_offset >= begin:
                yield entry
        if walked != segment.size and segment.next_offset > begin:
            raise Unsound(f"{segment.log_path} has no batch at position {walked}")
