"""The look-up of aborted transactions in a range of one log's offsets, across its segments.

Owns the look-up and its limit (KIP-98). Not which range a reader gets: that ends at the last stable
offset (`stable`).
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.runtime.disk import File
from tidelog.storage import names
from tidelog.storage.log.aborted import (
    ENTRY_BYTES,
    AbortedBelow,
    AbortedTransaction,
    PackedAborted,
    aborted_in,
    checked_entries,
    encode_aborted,
    lowest_firsts,
    unpacked,
)
from tidelog.storage.log.aborted_files import ProvedFile
from tidelog.storage.log.aborted_proving import CHECKED_AT_ONCE, Unproved
from tidelog.storage.log.aborted_recovery import aborted_by_batches
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.state import LogState
from tidelog.storage.segments.segment import Segment

MOST_OF_READ = 10_000
"""Aborted transactions that one look-up returns, unless more of them cover its first offset."""


class AbortedRange(NamedTuple):
    """The aborted transactions with records or a marker from the offset that was asked for up to
    (not including) ``end``, by their markers."""

    transactions: list[AbortedTransaction]
    end: int


def aborted_between(
    log: LogState, offset: int, limit: int, most: int = MOST_OF_READ, *, soon: bool = False
) -> AbortedRange:
    """Return the aborted transactions of offsets from ``offset`` up to (not including) ``limit``.

    With more than ``most`` the range ends earlier, but never at ``offset``: all that cover that one
    are returned. OSError, Unsound; with ``soon`` also Unproved, where a segment is to be checked in
    a thread first (`aborted_proving`).

    Call it on the event loop's thread alone. It reads what appends, syncs, cuts and removals change
    there, without a lock: the segments, the entries in memory, the open files. Where a file is
    wrong it puts the right entries into memory itself, and asks for the sync that writes them.

    It blocks for some small reads in each closed segment with aborted transactions, from that of
    ``offset`` on up to the first that has none of the range. Without ``soon`` the first look-up of
    a process in a segment grows with all of its entries, for their check: 3.4 MB at most. Where a
    file is wrong, it grows with the headers of its segment and of those before it, from the newest
    snapshot of producers on.
    """
    overlapping: list[AbortedTransaction] = []
    if log.aborted.bases:
        first = log.segments[log.segments.segment_at(offset)].base_offset
        for base in log.aborted.since(first):
            some, is_complete = _in_segment(log, base, offset, limit, soon)
            overlapping += some
            if is_complete:
                break
    return _limited(overlapping, offset, limit, most)


def _limited(
    overlapping: list[AbortedTransaction], offset: int, limit: int, most: int
) -> AbortedRange:
    if len(overlapping) <= most:
        return AbortedRange(overlapping, limit)
    firsts = sorted(one.first_offset for one in overlapping)
    end = next((first for first in firsts[most:] if first > offset), limit)
    return AbortedRange([one for one in overlapping if one.first_offset < end], end)


class _CutShort(Exception):
    """A file has less than its check has proved."""


class _ProvedAborted:
    """Entries of a file that was checked before: what a look-up needs is read."""

    __slots__ = ("_file", "_size", "lowest")

    def __init__(self, file: File, proved: ProvedFile) -> None:
        self._file = file
        self._size, self.lowest = proved

    def __len__(self) -> int:
        return self._size // ENTRY_BYTES

    def __getitem__(self, place: int, /) -> AbortedTransaction:
        return unpacked(self.packed(place, place + 1), 0)

    def packed(self, begin: int, end: int) -> bytes:
        size = (end - begin) * ENTRY_BYTES
        content = self._file.read_at(begin * ENTRY_BYTES, size)
        if len(content) != size:
            raise _CutShort
        return content


def _in_segment(log: LogState, base: int, offset: int, limit: int, soon: bool) -> AbortedBelow:
    proved = log.aborted.proved.get(base)
    if proved is not None:
        segment = log.segments[log.segments.segment_at(base)]
        try:
            file = log.resources.files.get(segment.path(names.ABORTED))
            return aborted_in(_ProvedAborted(file, proved), offset, limit)
        except (FileNotFoundError, _CutShort):
            del log.aborted.proved[base]
    return aborted_in(_entries_of(log, base, soon), offset, limit)


def _entries_of(log: LogState, base: int, soon: bool) -> PackedAborted:
    held = log.aborted.held.get(base)
    if held is not None:
        return PackedAborted(held.entries, held.lowest)
    segment = log.segments[log.segments.segment_at(base)]
    if soon and _size(log, segment.path(names.ABORTED)) > CHECKED_AT_ONCE:
        raise Unproved(base)
    content, check = (_read(log, segment.path(suffix)) for suffix in names.ABORTED_SUFFIXES)
    entries = checked_entries(content, check, segment.next_offset)
    if entries is None:
        if soon:
            raise Unproved(base)
        return _from_batches(log, segment)
    return PackedAborted(entries, log.aborted.prove(base, entries).lowest)


def _size(log: LogState, path: str) -> int:
    try:
        return log.resources.files.get(path).size()
    except FileNotFoundError:
        return 0


def _read(log: LogState, path: str) -> bytes | None:
    try:
        file = log.resources.files.get(path)
        return file.read_at(0, file.size())
    except FileNotFoundError:
        return None


def _from_batches(log: LogState, segment: Segment) -> PackedAborted:
    begin, end = segment.base_offset, segment.next_offset
    entries = encode_aborted(
        aborted_by_batches(log.resources.disk, log.path, log.segments, begin, end)
    )
    if log.change is not LogChange.SWAP:
        # The next sync writes the file again: not while a thread gives it another name.
        log.aborted.hold(begin, entries)
        log.resources.asks_for_sync(log.partition)
    return PackedAborted(entries, lowest_firsts(entries))
