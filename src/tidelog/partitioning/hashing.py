"""Key -> hash -> partition: murmur2 as Kafka computes it, then linear hashing.

Owns the two functions that every producer of a topic must share. Which counts are current is the
caller's. Pure. Source: KIP-253 and design/elastic.md, "Hash".
"""

from __future__ import annotations

import struct

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


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


def partition_of(key_hash: int, initial_count: int, count: int) -> int:
    """Return the partition of a key by linear hashing, from 0 to ``count`` - 1.

    ``initial_count`` is the topic's count at its creation, ``count`` the present one and not
    smaller. When ``count`` is ``initial_count`` times a power of two this is ``hash % count``,
    Kafka's own.
    """
    if not 0 < initial_count <= count:
        raise ValueError(f"a topic of {initial_count} partitions cannot have {count}")
    level = initial_count << ((count // initial_count).bit_length() - 1)
    partition = key_hash % level
    if partition < count - level:
        partition = key_hash % (2 * level)
    return partition
