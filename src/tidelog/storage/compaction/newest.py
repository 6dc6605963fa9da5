"""The newest offset of each key, in a table of a fixed number of bytes, as Apache Kafka's cleaner.

Owns the table, a flat array: an entry has 24 bytes whatever the length of its key, 16 for the key's
digest (`digests`) and 8 for the offset. Many keys are looked up at once: each step of the search is
one of numpy over those that are not found yet. Not which records go into it: see `rewriting`.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from tidelog.records.varints import Positions
from tidelog.storage.compaction.digests import Digests
from tidelog.storage.compaction.plan import ENTRY_BYTES, Share

MOST_FULL = 0.95
"""The greatest part of the table that is used: in a fuller one searches take hundreds of steps."""

_OFFSET = 2
"""The column of the offset, stored one higher: 0 is that of an empty entry."""


class NewestOffsets:
    """Key -> newest offset, for at most ``limit`` keys in at least so many entries."""

    def __init__(self, limit: int, entries: int) -> None:
        self.limit = limit
        self.count = 0
        # A prime number: then every stride visits all entries.
        self._entries = _prime_from(max(entries, int(limit / MOST_FULL) + 1))
        # The operating system gives the pages when they are written to.
        self._table = np.zeros((self._entries, 3), dtype=np.uint64)
        # The same memory, so that an entry is written in one piece.
        self._rows = self._table.view(f"V{ENTRY_BYTES}").reshape(-1)

    def has_room(self, records: int) -> bool:
        """Whether so many records with a new key each fit."""
        return self.count + records <= self.limit

    def put(self, digests: Digests, offsets: Positions) -> None:
        """Note offsets of keys; they rise, and are above all of before. Only while there is
        room."""
        rows = np.empty((len(digests), 3), dtype=np.uint64)
        rows[:, :_OFFSET] = digests
        rows[:, _OFFSET] = offsets + 1
        places, strides = self._search(digests)
        while len(rows):
            there = self._table.take(places, axis=0, mode="wrap")
            is_empty = there[:, _OFFSET] == 0
            done = ~is_empty & _same_key(there, rows)
            written = np.flatnonzero(done | is_empty)
            # Of several that have one place the last one stays: the newest of the winning key.
            self._rows[places[written]] = _in_one_piece(rows[written])
            claimed = np.flatnonzero(is_empty)
            if len(claimed):
                now = self._table.take(places[claimed], axis=0, mode="wrap")
                won = _same_key(now, rows[claimed])
                is_last = now[:, _OFFSET] == rows[claimed, _OFFSET]
                self.count += int(np.count_nonzero(won & is_last))
                done[claimed[won]] = True
            rest = np.flatnonzero(~done)
            rows, strides = rows[rest], strides[rest]
            places = (places[rest] + strides) % self._entries

    def get(self, digests: Digests) -> Positions:
        """Return the newest offset of each key, -1 without one."""
        newest = np.full(len(digests), -1, dtype=np.int64)
        left = np.arange(len(digests))
        places, strides = self._search(digests)
        while len(left):
            there = self._table.take(places, axis=0, mode="wrap")
            same = _same_key(there, digests[left])
            newest[left[same]] = there[same, _OFFSET].astype(np.int64) - 1
            rest = np.flatnonzero(~same & (there[:, _OFFSET] != 0))
            left, strides = left[rest], strides[rest]
            places = (places[rest] + strides) % self._entries
        return newest

    def _search(self, digests: Digests) -> tuple[Positions, Positions]:
        """Return where the search for each key begins, and by how much it goes on."""
        entries = np.uint64(self._entries)
        places = (digests[:, 0] % entries).astype(np.int64)
        strides = (digests[:, 1] % (entries - np.uint64(1))).astype(np.int64) + 1
        return places, strides


def table_for(share: Share, offsets: int) -> NewestOffsets:
    """Return a table that has room for so many keys, or for as many as the share allows."""
    entries = share.buffer_bytes // ENTRY_BYTES
    limit = int(entries * min(share.load_factor, MOST_FULL))
    # Twice as many as keys: searches are short, and a small log takes no large table.
    return NewestOffsets(min(limit, offsets), min(entries, 2 * offsets))


def _same_key(rows: Digests, others: Digests) -> np.ndarray:
    same: np.ndarray = (rows[:, 0] == others[:, 0]) & (rows[:, 1] == others[:, 1])
    return same


def _in_one_piece(rows: Digests) -> np.ndarray:
    return rows.view(f"V{ENTRY_BYTES}").reshape(-1)


def _prime_from(number: int) -> int:
    number = max(number, 3)
    while any(number % divisor == 0 for divisor in range(2, isqrt(number) + 1)):
        number += 1
    return number
