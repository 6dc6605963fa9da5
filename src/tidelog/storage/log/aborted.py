"""The aborted transactions of one segment: their order, their look-up, their file's content.

Owns the content of a ``.txnindex``, which is Kafka's: 34 bytes for each transaction whose marker is
in the segment, by the markers; and its check, which is ours (docs/decisions/0119). Pure. Not what
is open: see `transactions`. Not the files: see `aborted_files`.

An entry has the last stable offset after its marker, as ``OpenTransactions.end`` returns it: these
rise, too. A look-up ends at the first entry whose stable offset is at or above the limit of the
read: whatever ends after it began at or above that, too. The lowest first offset is known for each
block of entries, and a look-up reads no block whose entries all began at or above its limit. So a
transaction that stays open does not make it read all that end meanwhile.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from tidelog.records.batch import Buffer
from tidelog.records.crc import crc32c
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.log.transactions import EndedTransaction

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_FIELDS = struct.Struct(">2xqqqq")
_FIRST = struct.Struct(">10xq16x")

BLOCK = 512
"""Entries of which one lowest first offset is known."""

_CHECK_HEAD = struct.Struct(">hi")
_CRC = struct.Struct(">I")


class AbortedTransaction(NamedTuple):
    """``last_offset`` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


_MARKER = attrgetter("last_offset")
_STABLE = attrgetter("last_stable_offset")


class Entries(Protocol):
    """Entries of one segment, by their markers."""

    @property
    def lowest(self) -> Sequence[int]:
        """The lowest first offset of each block of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> AbortedTransaction: ...

    def packed(self, begin: int, end: int) -> Buffer:
        """Return the bytes of some of them."""


class PackedAborted:
    """Entries as their file has them: each one is unpacked when it is asked for."""

    __slots__ = ("_content", "lowest")

    def __init__(self, content: Buffer, lowest: Sequence[int] = ()) -> None:
        """``lowest``: as `lowest_firsts` returns it, for a look-up."""
        self._content = content
        self.lowest = lowest

    def __len__(self) -> int:
        return len(self._content) // ENTRY_BYTES

    def __getitem__(self, place: int, /) -> AbortedTransaction:
        return unpacked(self._content, place)

    def packed(self, begin: int, end: int) -> Buffer:
        """Return the bytes of some of them."""
        return self._content[begin * ENTRY_BYTES : end * ENTRY_BYTES]


def unpacked(content: Buffer, place: int) -> AbortedTransaction:
    """Return one entry."""
    return AbortedTransaction(*_FIELDS.unpack_from(content, place * ENTRY_BYTES))


def lowest_firsts(content: Buffer) -> array[int]:
    """Return the lowest first offset of each block of entries. Grows with all of them: some
    milliseconds for those of a whole segment."""
    size = BLOCK * ENTRY_BYTES
    blocks = (content[place : place + size] for place in range(0, len(content), size))
    return array("q", [min(_FIRST.iter_unpack(block))[0] for block in blocks])


def add_first(lowest: array[int], count: int, first_offset: int) -> None:
    """Account in ``lowest`` for one more entry, which comes after ``count`` others."""
    if count % BLOCK:
        lowest[-1] = min(lowest[-1], first_offset)
    else:
        lowest.append(first_offset)


class AbortedBelow(NamedTuple):
    """What was found in one segment; if ``is_complete``, no later segment has any of the range."""

    transactions: list[AbortedTransaction]
    is_complete: bool


def aborted(ended: EndedTransaction) -> AbortedTransaction | None:
    """Return the entry of a transaction that has ended; None for one that was committed."""
    if ended.committed:
        return None
    return AbortedTransaction(
        ended.producer_id, ended.first_offset, ended.marker, ended.last_stable_offset
    )


def aborted_in(transactions: Entries, offset: int, limit: int) -> AbortedBelow:
    """Return those with records or a marker from ``offset`` up to (not including) ``limit``.

    ``transactions``: of one segment, by their markers. Grows with the blocks that have some of the
    result, and very little with those in between.
    """
    first = bisect_left(transactions, offset, key=_MARKER)
    last = bisect_left(transactions, limit, lo=first, key=_STABLE)
    end = min(last + 1, len(transactions))
    overlapping: list[AbortedTransaction] = []
    for place in range(first - first % BLOCK, end, BLOCK):
        if transactions.lowest[place // BLOCK] < limit:
            some = transactions.packed(max(first, place), min(end, place + BLOCK))
            fields = [entry for entry in _FIELDS.iter_unpack(some) if entry[1] < limit]
            overlapping += map(AbortedTransaction._make, fields)
    return AbortedBelow(overlapping, is_complete=last < len(transactions))


def bytes_below(content: Buffer, offset: int) -> int:
    """Return how many bytes of entries have their markers below ``offset``."""
    return bisect_left(PackedAborted(content), offset, key=_MARKER) * ENTRY_BYTES


def crc_of_entries(content: Buffer, before: int = 0) -> int:
    """Return the CRC of entries that follow others, whose CRC is ``before``."""
    return crc32c(content, before)


def check_with(size: int, crc: int) -> bytes:
    """Return the check of a file of so many bytes of entries, which have this CRC.

    The entries are hashed first, the head last: so a file that grows is not hashed again.
    """
    head = _CHECK_HEAD.pack(VERSION, size // ENTRY_BYTES)
    return head + _CRC.pack(crc32c(head, crc))


def encode_check(content: Buffer) -> bytes:
    """Return the check of a file with these entries. Grows with all of them."""
    return check_with(len(content), crc_of_entries(content))


def checked_entries(content: bytes | None, check: bytes | None, claimed: int) -> bytes | None:
    """Return the entries that the check of a file proves; None when it proves none, or not all with
    markers below ``claimed``, or either is missing (None).

    A sync writes the check of its entries before their markers are claimed. So entries after those
    of the check, from a marker below that on, are of another program that had the log meanwhile.
    """
    if content is None or check is None or len(check) != _CHECK_HEAD.size + _CRC.size:
        return None
    version, count = _CHECK_HEAD.unpack_from(check)
    size = count * ENTRY_BYTES
    if version != VERSION or not 0 <= size <= len(content):
        return None
    entries = content[:size]
    if encode_check(entries) != check or not _begins_at(content[size:], claimed):
        return None
    return entries


def _begins_at(added: bytes, claimed: int) -> bool:
    """Whether entries have no marker below ``claimed``; part of one is not known to have none."""
    if len(added) < ENTRY_BYTES:
        return not added
    return PackedAborted(added)[0].last_offset >= claimed


def encode_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    """Return the content of a segment's file."""
    return b"".join([_ENTRY.pack(VERSION, *transaction) for transaction in transactions])


def decode_aborted(content: bytes, base_offset: int, next_offset: int) -> list[AbortedTransaction]:
    """Return the entries of a segment from ``base_offset`` up to (not including) ``next_offset``.

    DamagedFile for a part of an entry, a version that is not known, and entries that cannot be
    true. Not for one that is missing: only the batches show that.
    """
    if len(content) % ENTRY_BYTES:
        raise DamagedFile("it has a part of an entry")
    entries: list[AbortedTransaction] = []
    least = base_offset
    for version, *fields in _ENTRY.iter_unpack(content):
        entry = AbortedTransaction(*fields)
        if version != VERSION:
            raise DamagedFile(f"it has an entry of version {version}")
        is_ordered = least <= entry.last_offset < next_offset
        is_true = 0 <= entry.first_offset < entry.last_offset and entry.producer_id >= 0
        if not (is_ordered and is_true and entry.last_stable_offset <= entry.last_offset + 1):
            raise DamagedFile(f"it has an entry that cannot be true: {tuple(entry)}")
        least = entry.last_offset + 1
        entries.append(entry)
    return entries
