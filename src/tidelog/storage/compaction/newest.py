"""The newest offset of each key, in a table of a fixed number of bytes, as Apache Kafka's cleaner.

Owns the table. Not which records go into it: see `cleaner`. An entry has 24 bytes whatever the
length of its key: 16 for the key, 8 for the offset. Keys below 16 bytes are stored as they are,
closed by a byte and zeros, so that no two are alike; of longer ones a BLAKE2b digest of 128 bits. A
record would be lost with two keys of the same digest: among the five million of a run's table, with
a probability below 10^-25. Python's ``hash`` only says where the search for an entry begins.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from math import isqrt

ENTRY_BYTES = 24

MOST_FULL = 0.95
"""The greatest part of the table that is used: in a fuller one searches take hundreds of steps."""

_KEY_BYTES = 16

_read = struct.Struct("<16sq").unpack_from
_write = struct.Struct("<16sq").pack_into


class NewestOffsets:
    """Key -> newest offset, for at most ``limit`` keys in at least so many entries."""

    def __init__(self, limit: int, entries: int) -> None:
        self.limit = limit
        self.count = 0
        # A prime number: then every stride visits all entries.
        self._entries = _prime_from(max(entries, int(limit / MOST_FULL) + 1))
        self._table = bytearray(self._entries * ENTRY_BYTES)

    def has_room(self, records: int) -> bool:
        """Whether so many records with a new key each fit."""
        return self.count + records <= self.limit

    def put(self, key: bytes, offset: int) -> None:
        """Note an offset of a key; offsets rise. Call it only while there is room."""
        stored = short(key)
        start = hash(stored)
        position = start % self._entries * ENTRY_BYTES
        # An offset of 0 is that of an empty entry: offsets are stored one higher.
        there, higher = _read(self._table, position)
        if higher and there != stored:
            position, higher = self._search(stored, start, position)
        if not higher:
            self.count += 1
        _write(self._table, position, stored, offset + 1)

    def get(self, key: bytes) -> int:
        """Return the newest offset of a key, -1 without one."""
        stored = short(key)
        start = hash(stored)
        position = start % self._entries * ENTRY_BYTES
        there, higher = _read(self._table, position)
        if higher and there != stored:
            _, higher = self._search(stored, start, position)
        offset: int = higher
        return offset - 1

    def _search(self, stored: bytes, start: int, position: int) -> tuple[int, int]:
        """Return the position of a key's entry, or an empty one, and the offset there."""
        table, size = self._table, self._entries * ENTRY_BYTES
        stride = (1 + (start >> 32) % (self._entries - 1)) * ENTRY_BYTES
        while True:
            position = (position + stride) % size
            there, higher = _read(table, position)
            if not higher or there == stored:
                return position, higher


def short(key: bytes) -> bytes:
    """Return what is stored of a key: 16 bytes."""
    if len(key) < _KEY_BYTES:
        return (key + b"\x80").ljust(_KEY_BYTES, b"\0")
    return blake2b(key, digest_size=_KEY_BYTES).digest()


def _prime_from(number: int) -> int:
    number = max(number, 2)
    while any(number % divisor == 0 for divisor in range(2, isqrt(number) + 1)):
        number += 1
    return number
