"""Binary search in the sorted entries of an index file, without parsing the file.

Owns the search; a read-only view. A look-up reads one entry of each of a few leaves, then one leaf
of 256 entries, which it keeps: in a full index (262,144 entries) that is 10 entries and 3 kB. The
result is an entry of the file, whatever the file holds; the caller compares it with its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

LEAF_ENTRIES = 256

Read = Callable[[int, int], bytes]
"""Given a position and a size, returns bytes of the file; fewer only at its end."""


class StoredEntries:
    """The first ``count`` entries of a file. OSError as the file's reads raise it."""

    __slots__ = ("_entry", "_kept", "_read", "count")

    def __init__(self, read: Read, entry: Struct, count: int) -> None:
        self.count = count
        self._read = read
        self._entry = entry
        self._kept = (-1, b"")
        """The leaf that was read last. One value: threads may look entries up at the same time."""

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        """Return an entry's fields."""
        number, within = divmod(place, LEAF_ENTRIES)
        return self._entry.unpack_from(self._leaf_of(number), within * self._entry.size)

    def below(self, column: int, value: int, *, or_equal: bool) -> int:
        """Return how many entries are below ``value`` (or equal to it) in a column that rises."""
        if not self.count:
            return 0
        limit = value + 1 if or_equal else value
        number = self._leaf_with(column, limit)
        leaf, unpack, size = self._leaf_of(number), self._entry.unpack_from, self._entry.size
        start = number * LEAF_ENTRIES
        low, high = 0, min(LEAF_ENTRIES, self.count - start)
        while low < high:
            middle = (low + high) // 2
            if unpack(leaf, middle * size)[column] < limit:
                low = middle + 1
            else:
                high = middle
        return start + low

    def _leaf_with(self, column: int, limit: int) -> int:
        """Return the last leaf that begins below ``limit``, 0 if none does."""
        number, leaf = self._kept
        size, unpack = self._entry.size, self._entry.unpack_from
        last = min(LEAF_ENTRIES, self.count - number * LEAF_ENTRIES) - 1
        if (
            leaf
            and last >= 0
            and unpack(leaf, 0)[column] < limit <= unpack(leaf, last * size)[column]
        ):
            return number
        low, high = 0, (self.count - 1) // LEAF_ENTRIES
        while low < high:
            middle = (low + high + 1) // 2
            if unpack(self._bytes(middle * LEAF_ENTRIES, 1))[column] < limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _leaf_of(self, number: int) -> bytes:
        kept, leaf = self._kept
        if number != kept:
            first = number * LEAF_ENTRIES
            leaf = self._bytes(first, min(LEAF_ENTRIES, self.count - first))
            self._kept = number, leaf
        return leaf

    def _bytes(self, first: int, count: int) -> bytes:
        size = self._entry.size
        # A file that was cut since then reads as zeros there: the entry is wrong, in most cases.
        return self._read(first * size, count * size).ljust(count * size, b"\0")
