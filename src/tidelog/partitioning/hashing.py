"""Key -> hash -> partition: murmur2 as Kafka computes it, then linear hashing.

Owns the functions that every producer of a topic must share. Which counts are current is the
caller's. Pure. Source: KIP-253 and docs/design/elastic.md, "Hash".

``hashes_of_keys`` computes murmur2 for all keys of one length at a time, in one Python integer that
has a lane of 64 bits for each key: a product of 32 bits with 32 bits fits into its lane, so one
multiplication of the integer is one of every key. The base install has no numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidelog.partitioning.lineage import level_of

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF

_WORD_BYTES = 4
_LANE_BYTES = 8
_FEWEST_TOGETHER = 8
"""Fewer keys of one length than this are hashed one by one: it takes as long."""
_MOST_TOGETHER = 4_096
"""Keys of one integer: more would not stay in a core's cache."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash that Kafka's clients use, as an unsigned number.

    Grows with the bytes.
    """
    length = len(data)
    whole = length // 4
    result = _SEED ^ length
    for word in struct.unpack_from(f"<{whole}I", data):
        word = (word * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
        result = ((result * _MULTIPLIER) & _MASK) ^ word
    if length % 4:
        tail = int.from_bytes(data[whole * 4 :], "little")
        result = ((result ^ tail) * _MULTIPLIER) & _MASK
    result = ((result ^ (result >> 13)) * _MULTIPLIER) & _MASK
    return result ^ (result >> 15)


def hash_of_key(key: bytes) -> int:
    """Return the hash of a key, made positive as Kafka does."""
    return murmur2(key) & _POSITIVE


def hashes_of_keys(keys: Sequence[bytes]) -> list[int]:
    """Return what ``hash_of_key`` returns for each key.

    Grows with the bytes; where many keys have one length it takes a tenth of the time.
    """
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(map(len, keys)):
        by_length.setdefault(length, []).append(index)
    if len(by_length) == 1:
        return _hashes_of_one_length(keys)
    found = [0] * len(keys)
    for indexes in by_length.values():
        hashes = _hashes_of_one_length([keys[index] for index in indexes])
        for index, key_hash in zip(indexes, hashes, strict=True):
            found[index] = key_hash
    return found


def _hashes_of_one_length(keys: Sequence[bytes]) -> list[int]:
    found: list[int] = []
    for begin in range(0, len(keys), _MOST_TOGETHER):
        part = keys[begin : begin + _MOST_TOGETHER]
        if len(part) < _FEWEST_TOGETHER:
            found += map(hash_of_key, part)
        else:
            found += _hashes_in_lanes(part)
    return found


def _hashes_in_lanes(keys: Sequence[bytes]) -> list[int]:
    """Compute ``murmur2`` step by step, each step for the lanes of all keys."""
    count, length = len(keys), len(keys[0])
    data = b"".join(keys)
    one = int.from_bytes((1).to_bytes(_LANE_BYTES, "little") * count, "little")
    mask = one * _MASK
    # What a shift takes over from the next lane is above the 32 - n bits that stay.
    below_24, below_13, below_15 = (one * (_MASK >> bits) for bits in (24, 13, 15))

    def lanes(first: int, end: int) -> int:
        """Bytes ``first`` to ``end`` of each key as a little-endian number in its lane."""
        cells = bytearray(_LANE_BYTES * count)
        for place in range(first, end):
            cells[place - first :: _LANE_BYTES] = data[place::length]
        return int.from_bytes(cells, "little")

    whole = length - length % _WORD_BYTES
    result = one * (_SEED ^ length)
    for first in range(0, whole, _WORD_BYTES):
        word = (lanes(first, first + _WORD_BYTES) * _MULTIPLIER) & mask
        word = ((word ^ ((word >> 24) & below_24)) * _MULTIPLIER) & mask
        result = ((result * _MULTIPLIER) & mask) ^ word
    if whole < length:
        result = ((result ^ lanes(whole, length)) * _MULTIPLIER) & mask
    result = ((result ^ ((result >> 13) & below_13)) * _MULTIPLIER) & mask
    result = (result ^ ((result >> 15) & below_15)) & (one * _POSITIVE)
    return list(struct.unpack(f"<{count}Q", result.to_bytes(_LANE_BYTES * count, "little")))


def partition_of(key_hash: int, initial_count: int, count: int) -> int:
    """Return the partition of a key by linear hashing, from 0 to ``count`` - 1.

    ``initial_count`` is the topic's count at its creation, ``count`` the present one and not
    smaller. When ``count`` is ``initial_count`` times a power of two this is ``hash % count``,
    Kafka's own.
    """
    level = level_of(initial_count, count)
    partition = key_hash % level
    if partition < count - level:
        partition = key_hash % (2 * level)
    return partition
