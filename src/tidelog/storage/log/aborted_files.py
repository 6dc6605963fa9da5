"""The aborted transactions of one log: which segments have some, and what their files lack.

Owns both, and the two files of a segment (docs/decisions/0119): its ``.txnindex``, and the check of
that. Not when they are written: see `aborted_writing`. Not their bytes: see `aborted`.

| the segment has               | aborted transactions with markers below the recovery point |
|-------------------------------|------------------------------------------------------------|
| neither file                  | none                                                       |
| both, and the check fits      | what the file says                                         |
| one, a check that is wrong,   | what the batches say: the file is written again            |
| or entries after its own      |                                                            |

What a segment has at or above the recovery point is known from batches, and kept in memory until it
is written. So the active segment's stays in memory, 34 bytes for each transaction. Of a file that a
look-up has read and checked it is known that it is right, until it is written again or goes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.records.batch import MAX_INT64
from tidelog.runtime.disk import Disk
from tidelog.storage import names
from tidelog.storage.log.aborted import (
    ENTRY_BYTES,
    AbortedTransaction,
    add_first,
    bytes_below,
    checked_entries,
    crc_of_entries,
    encode_aborted,
    lowest_firsts,
)

MOST_OF_SEGMENT = 100_000
"""A segment is closed when so many transactions were aborted in it: 3.4 MB."""

FROM_ITS_BEGINNING = -1


@dataclass(slots=True)
class HeldEntries:
    """The entries of one segment that are in memory."""

    entries: bytearray
    written: int
    """So many bytes are in the file; or ``FROM_ITS_BEGINNING``: it has others, or is missing."""
    crc: int
    """Of the bytes that are in the file: the next sync hashes only what it adds."""
    lowest: array[int]
    """The lowest first offset of each block of the entries."""


class ProvedFile(NamedTuple):
    """What a check has proved of one file: so many bytes of entries, with these lowest first
    offsets of its blocks."""

    size: int
    lowest: array[int]


class AbortedFiles:
    """The aborted transactions of one log, by the base offsets of their segments."""

    __slots__ = ("bases", "changes", "held", "proved")

    def __init__(self) -> None:
        self.bases: list[int] = []
        """Rising: the segments that may have some. Of all others it is known that they have
        none."""
        self.held: dict[int, HeldEntries] = {}
        """Of the active segment, and of those whose files lack something."""
        self.proved: dict[int, ProvedFile] = {}
        """Of others, as far as look-ups have read them."""
        self.changes = 0
        """+1 when a segment gets or loses files, or others: what a thread has read is old then."""

    def begin_with(self, bases: Iterable[int]) -> None:
        """These segments have files."""
        self.bases = sorted(bases)

    def has(self, base: int) -> bool:
        """Whether a segment may have aborted transactions."""
        place = bisect_left(self.bases, base)
        return place < len(self.bases) and self.bases[place] == base

    def since(self, base: int) -> list[int]:
        """Return the segments from one on that may have some."""
        return self.bases[bisect_left(self.bases, base) :]

    def note(self, base: int) -> None:
        """A segment has files."""
        self.changes += 1
        if not self.has(base):
            insort(self.bases, base)

    def add(self, base: int, entry: AbortedTransaction) -> None:
        """A marker in a segment, after all others of it, has aborted a transaction."""
        held = self.held.get(base)
        if held is None:
            self.hold(base, b"")
            held = self.held[base]
        add_first(held.lowest, len(held.entries) // ENTRY_BYTES, entry.first_offset)
        held.entries += encode_aborted([entry])

    def fills(self, base: int) -> bool:
        """Whether a segment has as many as it takes."""
        held = self.held.get(base)
        return held is not None and len(held.entries) >= MOST_OF_SEGMENT * ENTRY_BYTES

    def hold(
        self,
        base: int,
        entries: bytes,
        *,
        are_written: bool = False,
        lowest: array[int] | None = None,
    ) -> None:
        """Keep the entries of a segment in memory; unless they ``are_written``, its file is to be
        written. ``lowest``: the lowest first offsets of its blocks, where they are known."""
        self.note(base)
        written, crc = FROM_ITS_BEGINNING, 0
        if are_written:
            written, crc = len(entries), crc_of_entries(entries)
        lowest = lowest_firsts(entries) if lowest is None else lowest
        self.held[base] = HeldEntries(bytearray(entries), written, crc, lowest)
        self.proved.pop(base, None)

    def prove(self, base: int, entries: bytes) -> ProvedFile:
        """A check has proved these entries of a segment that is not held."""
        proved = self.proved[base] = ProvedFile(len(entries), lowest_firsts(entries))
        return proved

    def cut(self, base: int, end: int) -> None:
        """Drop the entries of markers from ``end`` on of a segment that is held."""
        held = self.held[base]
        self.hold(base, bytes(held.entries[: bytes_below(held.entries, end)]))

    def forget(self, base: int) -> None:
        """A segment is gone, and its files with it. A search compares few of the others."""
        self.changes += 1
        place = bisect_left(self.bases, base)
        if place < len(self.bases) and self.bases[place] == base:
            del self.bases[place]
            self.held.pop(base, None)
            self.proved.pop(base, None)

    def elsewhere(self) -> AbortedFiles:
        """Return the same of a log whose files were copied: what is held is written again."""
        moved = AbortedFiles()
        moved.begin_with(self.bases)
        for base, held in self.held.items():
            moved.hold(base, bytes(held.entries))
        return moved


def paths_of(directory: str, base: int) -> tuple[str, str]:
    """Return the paths of a segment's file and of its check."""
    file, check = names.ABORTED_SUFFIXES
    stem = f"{directory}/{names.file_name(base, '')}"
    return stem + file, stem + check


def bases_in(listed: Iterable[str]) -> set[int]:
    """Return the segments of which a directory has a file or a check."""
    return {
        base
        for name in listed
        for suffix in names.ABORTED_SUFFIXES
        if (base := names.offset_of(name, suffix)) is not None
    }


def read_entries(
    disk: Disk, directory: str, base: int, claimed: int = MAX_INT64
) -> tuple[bytes | None, bool]:
    """Return the entries that a segment's check proves, None when it does not prove all with
    markers below ``claimed``; and whether the file has these only. Blocks. OSError of the reads."""
    content, check = (
        disk.read(path) if disk.exists(path) else None for path in paths_of(directory, base)
    )
    entries = checked_entries(content, check, claimed)
    return entries, entries is not None and content is not None and len(entries) == len(content)
