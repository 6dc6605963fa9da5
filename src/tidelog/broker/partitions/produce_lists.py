"""The bytes of a Produce request that names several partitions, as columns (v9-13).

Owns the form of a plain request: no transactional id, acks 1 or all, one payload of more than a
batch header for each partition, no tags or those of counts (KIP-253) on each partition and its
topic. Not what the payloads and numbers mean: see `produce_many`. All else is None, or an error of
``UNREADABLE``, and left to the compiled decoder.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import NamedTuple

from tidelog.broker.partitions.produce_tags import NO_TAGS
from tidelog.protocol.primitives import DecodeError, read_uvarint
from tidelog.records.batch import HEADER_SIZE

BY_ID_SINCE = 13
"""First version of Produce with ids instead of names (KIP-516)."""

CLIENT_ID_AT = 10
"""Where the client id begins in a request's frame: after API key, version, correlation id and its
length."""

MOST_PARTITIONS = 200
"""Of one request that is served at once: about a millisecond."""

MOST_BYTES = 1024 * 1024
"""Of such a request, for its batches are checked and written in one turn of the loop."""

UNREADABLE = (struct.error, IndexError, ValueError, DecodeError)
"""The exceptions of a request that ends early, or has another form."""

_ID_BYTES = 16
_PARTITION_TAG_BYTES, _TOPIC_TAGS_BYTES = 8, 15

_head = struct.Struct(">Bhi").unpack_from
"""Length field of the transactional id (0: none), acks, timeout."""

_HEAD_BYTES = 7

_entry = struct.Struct(">iBBB").unpack_from
"""A partition, and the first bytes of the length of its records."""

_ENTRY_BYTES = 5
"""As long as the length has one byte."""

_NO_TAG = NO_TAGS[:1]


class AskedTopic(NamedTuple):
    """The batches for one topic: columns of the same length."""

    name: bytes
    """Its name, or the bytes of its id."""
    indexes: list[int]
    payloads: list[memoryview]
    tags: list[bytes]
    """Of each partition, with those of the topic and the request, as a request for one has them;
    empty where the producer sends no count."""


class AskedList(NamedTuple):
    """A plain request."""

    acks: int
    timeout_ms: int
    topics: list[AskedTopic]


def read_list(frame: memoryview, position: int, by_id: bool) -> AskedList | None:
    """Return what a plain request has for its partitions; ``position`` is that of its message."""
    size = len(frame)
    transactional_id, acks, timeout_ms = _head(frame, position)
    # Here a transaction leaves the fast path: its batches are judged by their coordinator first.
    if transactional_id or not (acks == -1 or acks == 1) or size > MOST_BYTES:
        return None
    count, position = _length_at(frame, position + _HEAD_BYTES)
    topics: list[AskedTopic] = []
    left = MOST_PARTITIONS
    while count > 1:
        count -= 1
        length = _ID_BYTES
        if not by_id:
            length, position = _length_at(frame, position)
            length -= 1
        name = bytes(frame[position : position + length])
        partitions, position = _length_at(frame, position + length)
        left -= partitions - 1
        if partitions < 2 or left < 0:
            return None
        topic = AskedTopic(name, [], [], [])
        position = _read_topic(frame, position, partitions - 1, topic)
        if not position:
            return None
        topics.append(topic)
    if not topics or frame[position:] != _NO_TAG:
        return None
    return AskedList(acks, timeout_ms, topics)


def _read_topic(frame: memoryview, position: int, count: int, topic: AskedTopic) -> int:
    """Read the partitions of a topic; return where it ends, 0 where it is not plain."""
    _, indexes, payloads, tags = topic
    for _ in repeat(None, count):
        index, size, second, third = _entry(frame, position)
        position += _ENTRY_BYTES
        if size > 127:
            if second < 128:
                size, position = size & 127 | second << 7, position + 1
            elif third < 128:
                size, position = size & 127 | (second & 127) << 7 | third << 14, position + 2
            else:
                size, position = read_uvarint(frame, position, size)
        stop = position + size - 1
        if size <= HEADER_SIZE:
            return 0
        indexes.append(index)
        payloads.append(frame[position:stop])
        position = stop + 1
        if frame[stop]:
            position = stop + _PARTITION_TAG_BYTES
            tags.append(bytes(frame[stop:position]))
    if not (tags or frame[position]):
        return position + 1
    if len(tags) != count:
        return 0
    end = position + _TOPIC_TAGS_BYTES
    of_topic = bytes(frame[position:end]) + _NO_TAG
    tags[:] = [of_partition + of_topic for of_partition in tags]
    return end


def _length_at(frame: memoryview, position: int) -> tuple[int, int]:
    """Return a length field (the length plus one), and where it ends."""
    first = frame[position]
    position += 1
    return (first, position) if first < 128 else read_uvarint(frame, position, first)
