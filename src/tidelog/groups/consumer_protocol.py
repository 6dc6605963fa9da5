"""Subscriptions and assignments of consumers: the part of them that is read here.

Owns the common prefix of all versions of ConsumerProtocolSubscription (version, topics) and of
ConsumerProtocolAssignment (version, partitions by topic), and nothing after it: later versions only
append. Source: the published protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator

from tidelog.protocol.record_fields import Malformed

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose metadata this module can read."""

AWARE_PREFIX = "tidelog."
"""Prefix of the names under which members that know of resizes offer their assignors."""

MOST_TOPICS_READ = 20_000
"""Most entries of a topic, over all members, that are read in the assignments of a generation: some
15 ms."""

MOST_SUBSCRIBED = 200_000
"""Most entries of a topic, over the different subscriptions of a group, that are read: some 60 ms.
"""

MOST_OF_A_TOPIC = 200_000
"""Most partitions of an entry in an assignment: four times what a topic may have."""

_HEAD, _LENGTH, _COUNT = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")

MOST_PARTITIONS = 2**31 - 1
"""The greatest count that a record of a first sight can have."""


def subscribed_topics(subscription: bytes, most: int = MOST_SUBSCRIBED) -> frozenset[str] | None:
    """Return the topics of one member's subscription; None when the bytes are none, or have more
    than ``most`` entries."""
    topics = set()
    try:
        version, count = _HEAD.unpack_from(subscription)
        if version < 0 or not 0 <= count <= most:
            return None
        position = _HEAD.size
        # Without a FieldReader: a group may have very many entries, and this takes a third.
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, position)
            end = position + _LENGTH.size + length
            if length < 0 or end > len(subscription):
                return None
            topics.add(str(subscription[position + _LENGTH.size : end], "utf-8"))
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def all_subscribed(
    subscriptions: Iterable[bytes], most: int = MOST_SUBSCRIBED
) -> frozenset[str] | None:
    """Return the topics of all members' subscriptions, each different one read once; None when one
    cannot be read, or they have more than ``most`` entries together."""
    subscribed: set[str] = set()
    for subscription in set(subscriptions):
        topics = subscribed_topics(subscription, most)
        if topics is None:
            return None
        most -= entries_in(subscription)
        subscribed |= topics
    return frozenset(subscribed)


def entries_in(data: bytes) -> int:
    """Return how many topics a subscription or an assignment says that it names, as far as they
    can be in it."""
    count = int(_HEAD.unpack_from(data)[1]) if len(data) >= _HEAD.size else 0
    return max(0, min(count, len(data) // 2))


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
        position = _HEAD.size
        # Without a FieldReader: a group may have very many entries, and this takes a third.
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(assignment, position)
            end = position + _LENGTH.size + length
            (given,) = _COUNT.unpack_from(assignment, end)
            if length < 0 or not 0 <= given <= min(len(assignment) // 4, MOST_OF_A_TOPIC):
                raise Malformed(f"{given} partitions of a topic, its name in {length} bytes")
            topic = str(assignment[position + _LENGTH.size : end], "utf-8")
            position = end + _COUNT.size + 4 * given
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
