"""The aborted transactions that a start, a cut, or a file that is wrong takes from the batches.

Owns which of both counts, the files or the batches (docs/decisions/0119): the files below the
recovery point, if their checks fit, and the batches for all else.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    the segments that end above that; batches only where a check is wrong, or where a transaction
    was aborted above it. OSError, Unsound.
    """
    claimed = log.synced_end_offset
    bases = log.recovered.aborted & {segment.base_offset for segment in log.segments}
    log.aborted.begin_with(bases)
    disk, active = log.resources.disk, log.segments.active
    later: list[AbortedTransaction] = []
    if checked is not None and _has_aborted(checked, claimed):
        later = aborted_by_batches(disk, log.path, log.segments, claimed, log.end_offset)
    for segment in reversed(log.segments):
        if segment.next_offset <= claimed and segment is not active:
            break
        base, end = segment.base_offset, segment.next_offset
        entries: bytes | None = b""
        is_all = True
        if base in bases:
            entries, is_all = read_entries(disk, log.path, base, claimed)
        if entries is None:
            by_batches = aborted_by_batches(disk, log.path, log.segments, base, end)
            log.aborted.hold(base, encode_aborted(by_batches))
            continue
        kept = entries[: bytes_below(entries, claimed)]
        added = encode_aborted([one for one in later if base <= one.last_offset < end])
        if base in bases or added:
            is_written = is_all and not added and len(kept) == len(entries)
            log.aborted.hold(base, kept + added, are_written=is_written)


def _has_aborted(checked: CheckedBatches, claimed: int) -> bool:
    return any(
        event.marker_epoch is not None and not event.committed and event.offset >= claimed
        for event in checked.producers.events or ()
    )


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
) -> list[AbortedTransaction]:
    """Return the aborted transactions with markers from ``begin`` up to ``end``, as batches have
    them.

    One whose first records are gone begins at the first that is left; one without records is none.
    Grows with the headers from the newest snapshot of producers below ``begin`` on. OSError,
    Unsound when batches of that range cannot be walked.
    """
    offsets = snapshot_offsets(disk, directory)
    state, start = newest_snapshot(disk, directory, segments, offsets, begin)
    transactions: list[AbortedTransaction] = []
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
                return transactions
            walked = place + header.size
            if header.base_offset < start or header.producer_id < 0:
                continue
            batch = segment.read_bytes(place, header.size) if header.control else b""
            ended = state.note(header, header.base_offset, 0, batch)
            entry = None if ended is None else aborted(ended)
            if entry is not None and entry.last_offset >= begin:
                transactions.append(entry)
        if walked != segment.size and segment.next_offset > begin:
            raise Unsound(f"{segment.log_path} has no batch at position {walked}")
    return transactions
