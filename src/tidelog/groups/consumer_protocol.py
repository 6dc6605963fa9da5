"""Subscriptions and assignments of consumers: the part of them that is read here.

Owns the common prefix of all versions of ConsumerProtocolSubscription (version, topics) and of
ConsumerProtocolAssignment (version, partitions by topic), and nothing after it: later versions only
append. Source: the published protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator

from tidelog.groups.primitives import FieldReader, Malformed

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose metadata this module can read."""

AWARE_PREFIX = "tidelog."
"""Prefix of the names under which members that know of resizes offer their assignors."""

MOST_TOPICS_READ = 20_000
"""Most entries of a topic, over all members, that are read in the assignments of a generation: some
15 ms."""

_HEAD, _LENGTH, _COUNT = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")

MOST_PARTITIONS = 2**31 - 1
"""The greatest count that a record of a first sight can have."""


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Return the topics of one member's subscription, or None when the bytes are none."""
    reader = FieldReader(subscription)
    try:
        if reader.int16() < 0:
            return None
        count = reader.int32()
        # A topic takes two bytes at least, so a wrong count ends here and not in a long loop.
        if not 0 <= count <= len(subscription) // 2:
            return None
        return frozenset(reader.string() for _ in range(count))
    except Malformed:
        return None


def assigned_partitions(assignment: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the topics and partitions of one member's assignment; Malformed when it is none.

    A member without partitions may have an empty assignment. A topic may be named repeatedly.
    """
    if not assignment:
        return
    try:
        version, count = _HEAD.unpack_from(assignment)
        # An entry takes six bytes at least, as above.
        if version < 0 or not 0 <= count <= len(assignment) // 6:
            raise Malformed(f"{count} topics in an assignment of {len(assignment)} bytes")
        at = _HEAD.size
        # Without a FieldReader: a group may have very many entries, and this takes a third.
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(assignment, at)
            end = at + _LENGTH.size + length
            (given,) = _COUNT.unpack_from(assignment, end)
            if length < 0 or not 0 <= given <= len(assignment) // 4:
                raise Malformed(f"{given} partitions of a topic, its name in {length} bytes")
            topic = str(assignment[at + _LENGTH.size : end], "utf-8")
            at = end + _COUNT.size + 4 * given
            yield topic, struct.unpack_from(f">{given}i", assignment, end + _COUNT.size)
    except (struct.error, UnicodeDecodeError) as error:
        raise Malformed(f"an assignment is damaged: {error}") from None


def partition_counts(
    assignments: Iterable[bytes], topics: Container[str], most: int = MOST_TOPICS_READ
) -> dict[str, int] | None:
    """Return how many partitions of each of ``topics`` the assignments of all members name: the
    greatest index and one. None when they cannot be read, or have ``most`` entries or more."""
    counts: dict[str, int] = {}
    try:
        for assignment in assignments:
            for topic, partitions in assigned_partitions(assignment):
                most -= 1
                if not most:
                    return None
                if topic in topics and partitions:
                    counts[topic] = max(counts.get(topic, 0), max(partitions) + 1)
    except Malformed:
        return None
    return {topic: min(count, MOST_PARTITIONS) for topic, count in counts.items() if count > 0}
