"""The range assignors, and the encoding of subscriptions and assignments. Pure.

Owns the assignors and ConsumerProtocol's subscription and assignment (version 0, which every stock
client reads). Source: the published protocol; ranges as in Kafka's RangeAssignor.

A member offers two assignors: ``tidelog.range``, by whose name the coordinator knows members that
keep the order of resized topics (KIP-253), and Kafka's ``range``, for groups with other members.
The first one assigns the retired partitions of a topic apart from those that take records, so that
each member has its share of both. Its user data are the resize epochs that a member knows: the
group's leader assigns by metadata that are as new as those of any member, and a member reads with
metadata that are as new as the leader's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.client.errors import ClientError
from tidelog.model.topics import TopicPartition, by_topic

PROTOCOL_TYPE = "consumer"
RANGE = "range"
AWARE_RANGE = "tidelog.range"
_EPOCHS_VERSION = 0
"""The version of our user data; another one is not read."""


class PartitionCounts(NamedTuple):
    """How many partitions of a topic take records, and how many there are: others are retired."""

    taking: int = 0
    listed: int = 0


def range_assignment(
    subscriptions: Mapping[str, Iterable[str]],
    counts: Mapping[str, PartitionCounts],
    assignor: str = RANGE,
) -> dict[str, list[TopicPartition]]:
    """Assign each member a range of the partitions of each topic; the first members get one more.

    ``subscriptions`` maps member ids to topics. Members are in order of their ids. Grows with
    partitions and members.
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    by_topic: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in sorted(set(subscriptions[member])):
            by_topic.setdefault(topic, []).append(member)
    for topic, members in sorted(by_topic.items()):
        taking, listed = counts.get(topic, PartitionCounts())
        if assignor != AWARE_RANGE:
            taking = listed
        for first, last in ((0, taking), (taking, listed)):
            each, extra = divmod(last - first, len(members))
            start = first
            for number, member in enumerate(members):
                end = start + each + (1 if number < extra else 0)
                assigned[member] += [TopicPartition(topic, index) for index in range(start, end)]
                start = end
    return assigned


def encode_subscription(topics: Iterable[str], epochs: Mapping[str, int] | None = None) -> bytes:
    """Return a member's metadata: the topics it subscribes to, and their resize epochs."""
    names = sorted(set(topics))
    body = b"".join(_string(name) for name in names)
    return struct.pack(">hi", 0, len(names)) + body + _user_data(epochs)


def decode_subscription(data: bytes) -> list[str]:
    """Return the topics in a member's metadata of any version. Raises ClientError."""
    try:
        topics, _ = _read_subscription(data)
    except (struct.error, UnicodeDecodeError):
        raise ClientError("a member's subscription cannot be read") from None
    return topics


def epochs_of_subscription(data: bytes) -> dict[str, int]:
    """Return the resize epochs that a member knows; none from a client of another kind."""
    try:
        _, position = _read_subscription(data)
        return _read_epochs(data, position)
    except (struct.error, UnicodeDecodeError):
        return {}


def encode_assignment(
    partitions: Iterable[TopicPartition], epochs: Mapping[str, int] | None = None
) -> bytes:
    """Return the bytes of one member's assignment, and the resize epochs it was made with."""
    topics = by_topic(partitions)
    out = bytearray(struct.pack(">hi", 0, len(topics)))
    for name, some in topics.items():
        indexes = [each.partition for each in some]
        out += _string(name)
        out += struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return bytes(out + _user_data(epochs))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment of any version; none if empty. Raises ClientError."""
    if not data:
        return []
    try:
        found, _ = _read_assignment(data)
    except (struct.error, UnicodeDecodeError):
        raise ClientError("a member's assignment cannot be read") from None
    return found


def epochs_of_assignment(data: bytes) -> dict[str, int]:
    """Return the resize epochs that an assignment was made with; none by another client."""
    try:
        _, position = _read_assignment(data)
        return _read_epochs(data, position)
    except (struct.error, UnicodeDecodeError):
        return {}


def _read_subscription(data: bytes) -> tuple[list[str], int]:
    (count,) = struct.unpack_from(">i", data, 2)
    topics = []
    position = 6
    for _ in range(count):
        name, position = _read_string(data, position)
        topics.append(name)
    return topics, position


def _read_assignment(data: bytes) -> tuple[list[TopicPartition], int]:
    (count,) = struct.unpack_from(">i", data, 2)
    position = 6
    found = []
    for _ in range(count):
        name, position = _read_string(data, position)
        (size,) = struct.unpack_from(">i", data, position)
        indexes = struct.unpack_from(f">{size}i", data, position + 4)
        position += 4 + 4 * size
        found += [TopicPartition(name, index) for index in indexes]
    return found, position


def _user_data(epochs: Mapping[str, int] | None) -> bytes:
    if not epochs:
        return struct.pack(">i", -1)
    body = b"".join(_string(name) + struct.pack(">i", epoch) for name, epoch in epochs.items())
    body = struct.pack(">hi", _EPOCHS_VERSION, len(epochs)) + body
    return struct.pack(">i", len(body)) + body


def _read_epochs(data: bytes, position: int) -> dict[str, int]:
    (size,) = struct.unpack_from(">i", data, position)
    if size <= 0:
        return {}
    version, count = struct.unpack_from(">hi", data, position + 4)
    position += 10
    found = {}
    for _ in range(count if version == _EPOCHS_VERSION else 0):
        name, position = _read_string(data, position)
        (found[name],) = struct.unpack_from(">i", data, position)
        position += 4
    return found


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, position)
    start = position + 2
    if size < 0 or start + size > len(data):
        raise struct.error("a string ends after its message")
    return data[start : start + size].decode(), start + size
