"""Subscriptions and assignments of consumers as bytes (ConsumerProtocol), user data included. Pure.

Owns the encoding of both. Not what follows from them: see ``assignors``. Source: the published
protocol; user data of the sticky assignors as in Kafka's.

| assignor | version | user data of the subscription |
|---|---|---|
| range, roundrobin | 0 | none |
| sticky | 0 | the previous assignment, and its generation |
| cooperative-sticky | 2: the owned partitions, and their generation | the generation |
| ``tidelog.`` and one of these names | 2 | the resize epochs that the member knows |

The group's leader assigns by metadata that are as new as those of any member, and a member reads
with metadata that are as new as the leader's: the assignment has the leader's resize epochs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.client.errors import ClientError
from tidelog.model.topics import TopicPartition, by_topic

PROTOCOL_TYPE = "consumer"
AWARE_PREFIX = "tidelog."
"""Before the name of an assignor: the member knows of resizes (KIP-253)."""

STICKY = "sticky"
COOPERATIVE_STICKY = "cooperative-sticky"
NO_GENERATION = -1

_EPOCHS_VERSION = 0
"""The version of our user data; another one is not read."""

_OWNED_VERSION = 1
_GENERATION_VERSION = 2


class Subscription(NamedTuple):
    """What one member says when it joins.

    ``owned``: the partitions that it has, or had, in ``generation``. ``epochs``: the resize epochs
    that an aware member knows. ``instance_id`` is not among the bytes.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    epochs: Mapping[str, int] = {}
    instance_id: str | None = None


def encode_subscription(subscription: Subscription, assignor: str) -> bytes:
    """Return a member's metadata for one assignor."""
    names = sorted(set(subscription.topics))
    body = struct.pack(">i", len(names)) + b"".join(_string(name) for name in names)
    generation = struct.pack(">i", subscription.generation)
    if assignor.startswith(AWARE_PREFIX):
        user_data = _epochs(subscription.epochs)
    elif assignor == STICKY:
        if not subscription.owned:
            return struct.pack(">h", 0) + body + _bytes(None)
        user_data = _partitions(subscription.owned) + generation
    elif assignor == COOPERATIVE_STICKY:
        user_data = generation
    else:
        return struct.pack(">h", 0) + body + _bytes(None)
    if assignor == STICKY:
        return struct.pack(">h", 0) + body + _bytes(user_data)
    owned = _partitions(subscription.owned)
    return struct.pack(">h", _GENERATION_VERSION) + body + _bytes(user_data) + owned + generation


def decode_subscription(data: bytes, assignor: str = "") -> Subscription:
    """Return what a member's metadata of any version say. Raises ClientError.

    User data that are damaged, or of another client, say nothing.
    """
    try:
        (version,) = struct.unpack_from(">h", data)
        topics, position = _read_topics(data)
    except (struct.error, UnicodeDecodeError):
        raise ClientError("a member's subscription cannot be read") from None
    owned: tuple[TopicPartition, ...] = ()
    generation, epochs = NO_GENERATION, {}
    try:
        user_data, position = _read_bytes(data, position)
        if assignor.startswith(AWARE_PREFIX):
            epochs = _read_epochs(user_data)
        if version >= _OWNED_VERSION:
            partitions, position = _read_partitions(data, position)
            owned = tuple(partitions)
        if version >= _GENERATION_VERSION:
            (generation,) = struct.unpack_from(">i", data, position)
        elif assignor == COOPERATIVE_STICKY and len(user_data) >= 4:
            (generation,) = struct.unpack_from(">i", user_data)
        if assignor == STICKY and user_data:
            partitions, position = _read_partitions(user_data, 0)
            owned = tuple(partitions)
            if len(user_data) >= position + 4:
                (generation,) = struct.unpack_from(">i", user_data, position)
    except (struct.error, UnicodeDecodeError):
        pass
    return Subscription(tuple(topics), owned, generation, epochs)


def encode_assignment(
    partitions: Iterable[TopicPartition], epochs: Mapping[str, int] | None = None
) -> bytes:
    """Return the bytes of one member's assignment, and the resize epochs it was made with."""
    user_data = _epochs(epochs) if epochs else None
    return struct.pack(">h", 0) + _partitions(partitions) + _bytes(user_data)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment of any version; none if empty. Raises ClientError."""
    if not data:
        return []
    try:
        assigned, _ = _read_partitions(data, 2)
    except (struct.error, UnicodeDecodeError):
        raise ClientError("a member's assignment cannot be read") from None
    return assigned


def epochs_of_assignment(data: bytes) -> dict[str, int]:
    """Return the resize epochs that an assignment was made with; none by another client."""
    try:
        _, position = _read_partitions(data, 2)
        return _read_epochs(_read_bytes(data, position)[0])
    except (struct.error, UnicodeDecodeError):
        return {}


def _read_topics(data: bytes) -> tuple[list[str], int]:
    (count,) = struct.unpack_from(">i", data, 2)
    topics = []
    position = 6
    for _ in range(count):
        name, position = _read_string(data, position)
        topics.append(name)
    return topics, position


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = by_topic(partitions)
    out = bytearray(struct.pack(">i", len(topics)))
    for name, some in topics.items():
        indexes = [tp.partition for tp in some]
        out += _string(name)
        out += struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return bytes(out)


def _read_partitions(data: bytes, position: int) -> tuple[list[TopicPartition], int]:
    (count,) = struct.unpack_from(">i", data, position)
    position += 4
    partitions = []
    for _ in range(count):
        name, position = _read_string(data, position)
        (size,) = struct.unpack_from(">i", data, position)
        if not 0 <= size <= len(data) // 4:
            raise struct.error("a list ends after its message")
        indexes = struct.unpack_from(f">{size}i", data, position + 4)
        position += 4 + 4 * size
        partitions += [TopicPartition(name, index) for index in indexes]
    return partitions, position


def _epochs(epochs: Mapping[str, int]) -> bytes:
    body = b"".join(_string(name) + struct.pack(">i", epoch) for name, epoch in epochs.items())
    return struct.pack(">hi", _EPOCHS_VERSION, len(epochs)) + body


def _read_epochs(data: bytes) -> dict[str, int]:
    if not data:
        return {}
    version, count = struct.unpack_from(">hi", data)
    position = 6
    epochs = {}
    for _ in range(count if version == _EPOCHS_VERSION else 0):
        name, position = _read_string(data, position)
        (epochs[name],) = struct.unpack_from(">i", data, position)
        position += 4
    return epochs


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">i", data, position)
    start = position + 4
    if start + max(size, 0) > len(data):
        raise struct.error("bytes end after their message")
    return data[start : start + max(size, 0)], start + max(size, 0)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, position)
    start = position + 2
    if size < 0 or start + size > len(data):
        raise struct.error("a string ends after its message")
    return data[start : start + size].decode(), start + size
