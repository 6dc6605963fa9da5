"""The range assignor, and the encoding of subscriptions and assignments. Pure.

Owns the assignor and ConsumerProtocol's subscription and assignment (version 0, which every stock
client reads). Source: the published protocol; ranges as in Kafka's RangeAssignor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from tidelog.client.errors import ClientError
from tidelog.model.topics import TopicPartition, by_topic

PROTOCOL_TYPE = "consumer"
RANGE = "range"


def range_assignment(
    subscriptions: Mapping[str, Iterable[str]], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign each member a range of the partitions of each topic; the first members get one more.

    ``subscriptions`` maps member ids to topics, ``counts`` topics to partitions. Members are in
    order of their ids. Grows with partitions and members.
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    by_topic: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in sorted(set(subscriptions[member])):
            by_topic.setdefault(topic, []).append(member)
    for topic, members in sorted(by_topic.items()):
        each, extra = divmod(counts.get(topic, 0), len(members))
        start = 0
        for number, member in enumerate(members):
            end = start + each + (1 if number < extra else 0)
            assigned[member] += [TopicPartition(topic, index) for index in range(start, end)]
            start = end
    return assigned


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Return a member's metadata: the topics it subscribes to."""
    names = sorted(set(topics))
    body = b"".join(_string(name) for name in names)
    return struct.pack(">hi", 0, len(names)) + body + struct.pack(">i", -1)


def decode_subscription(data: bytes) -> list[str]:
    """Return the topics in a member's metadata of any version. Raises ClientError."""
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        topics = []
        position = 6
        for _ in range(count):
            name, position = _read_string(data, position)
            topics.append(name)
    except (struct.error, UnicodeDecodeError):
        raise ClientError("a member's subscription cannot be read") from None
    return topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the bytes of one member's assignment."""
    topics = by_topic(partitions)
    out = bytearray(struct.pack(">hi", 0, len(topics)))
    for name, some in topics.items():
        indexes = [each.partition for each in some]
        out += _string(name)
        out += struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return bytes(out + struct.pack(">i", -1))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment of any version; none if empty. Raises ClientError."""
    if not data:
        return []
    found = []
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        position = 6
        for _ in range(count):
            name, position = _read_string(data, position)
            (size,) = struct.unpack_from(">i", data, position)
            indexes = struct.unpack_from(f">{size}i", data, position + 4)
            position += 4 + 4 * size
            found += [TopicPartition(name, index) for index in indexes]
    except (struct.error, UnicodeDecodeError):
        raise ClientError("a member's assignment cannot be read") from None
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
