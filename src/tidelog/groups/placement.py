"""The partition of ``__consumer_offsets`` of a group; its leader is the coordinator."""

from __future__ import annotations

_INT32_MASK = 0xFFFF_FFFF


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: a signed 32-bit number over the UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for position in range(0, len(units), 2):
        result = (31 * result + (units[position] << 8 | units[position + 1])) & _INT32_MASK
    return result - (1 << 32) if result >= 1 << 31 else result


def partition_for(group_id: str, partition_count: int) -> int:
    """Return the partition of ``__consumer_offsets`` that keeps ``group_id``.

    Kafka takes the absolute value, and 0 for the one hash that has none (-2**31).
    """
    hashed = java_hash(group_id)
    if hashed == -(1 << 31):
        return 0
    return abs(hashed) % partition_count
