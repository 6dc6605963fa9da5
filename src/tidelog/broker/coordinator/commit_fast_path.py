"""Fast path of OffsetCommit: from the bytes of the request to those of the response, in columns.

Owns the plain OffsetCommit, as all known clients send it: version 6-10, no metadata, partitions
that this broker knows, at most ``parts.PART``. The group decides it as any other; only
messages with an object for each partition are not made. ``handlers.offset_commit`` handles all
others: for these the fast path returns None and changes nothing.
"""

from __future__ import annotations

import struct
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidelog.broker.coordinator.parts import PART
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.coordinator.plain_requests import (
    NO_TAGS,
    UNREADABLE,
    NotPlain,
    after_no_tags,
    array_length,
    framed,
    length_at,
    text_reader,
    topic_at,
)
from tidelog.groups.events import CommitOffsets, OffsetsResult
from tidelog.groups.offset_columns import OffsetColumns
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio

    from tidelog.broker.coordinator.coordinator import Coordinator
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.groups.table import GroupTable
    from tidelog.network.router import Peer

OLDEST, FLEXIBLE_SINCE = 6, 8
INSTANCES_SINCE, NAMES_MISSING_GROUP_SINCE = 7, 9

_int32 = struct.Struct(">i").unpack_from

PARTITION_BYTES = 18
"""Partition, offset, leader epoch; then the size of no metadata, and in flexible versions that
there are no tags, each in a byte."""

NO_METADATA, NO_METADATA_COMPACT = frozenset((0xFFFF, 0)), frozenset((0, 0x0100))
"""The last two bytes of a plain partition: null or empty metadata, in each encoding."""


class CommitNeeds(Protocol):
    """The parts of the broker that an OffsetCommit needs."""

    coordinator: Coordinator[GroupTable]
    metadata: MetadataCache


class _Topic(NamedTuple):
    """A topic of a request: its name or id as it is in the response, and its partitions."""

    named: bytes
    partitions: tuple[int, ...]


def answer(
    broker: CommitNeeds,
    request: memoryview,
    position: int,
    version: int,
    correlation_id: int,
    client: Peer,
) -> bytes | asyncio.Future[bytes] | None:
    """Commit, and return the frame of the response or a future of it; None: not plain."""
    if version < OLDEST:
        return None
    try:
        group_id, event, topics = _read(broker, request, position, version, client)
    except UNREADABLE:
        return None
    broker.coordinator.decide(group_id, event)
    pending_response: Any = event.pending_response
    answered: bytes | asyncio.Future[bytes] = pending_response.answer(
        partial(_frame, version, correlation_id, topics)
    )
    return answered


def _read(
    broker: CommitNeeds, frame: memoryview, position: int, version: int, client: Peer
) -> tuple[str, CommitOffsets, list[_Topic]]:
    """Return the group, the event and the topics of a plain request. Raises NotPlain, and what
    reading beyond the end raises."""
    flexible = version >= FLEXIBLE_SINCE
    text = text_reader(flexible)
    plain = NO_METADATA_COMPACT if flexible else NO_METADATA
    group_id, position = text(frame, position)
    (generation,) = _int32(frame, position)
    member_id, position = text(frame, position + 4)
    instance_id = None
    if version >= INSTANCES_SINCE:
        instance_id, position = text(frame, position)
    count, position = length_at(frame, position, flexible)
    if group_id is None or member_id is None or not 0 < count <= PART:
        raise NotPlain
    columns: list[OffsetColumns] = []
    topics: list[_Topic] = []
    left = PART
    for _ in range(count):
        topic, named, position = topic_at(broker.metadata, frame, position, version, text)
        size, position = length_at(frame, position, flexible)
        left -= 1 + size
        if size <= 0 or left < 0:
            raise NotPlain
        rows = _rows(size)(frame, position)
        position += size * PARTITION_BYTES
        partitions = rows[::4]
        if not (plain.issuperset(rows[3::4]) and topic.partitions.keys() >= set(partitions)):
            raise NotPlain
        if flexible:
            position = after_no_tags(frame, position)
        columns.append(
            OffsetColumns(topic.name, topic.topic_id, partitions, rows[1::4], rows[2::4])
        )
        topics.append(_Topic(named, partitions))
    if flexible:
        position = after_no_tags(frame, position)
    if position != len(frame):
        raise NotPlain
    event = CommitOffsets(
        PendingResponse(),
        member_id,
        instance_id,
        generation,
        tuple(columns),
        names_missing_group=version >= NAMES_MISSING_GROUP_SINCE,
        client_host="/" + client.client_host,
    )
    return group_id, event, topics


def _frame(version: int, correlation_id: int, topics: list[_Topic], result: OffsetsResult) -> bytes:
    """Return the response: its topics are those of the result, in the order of the request."""
    flexible = version >= FLEXIBLE_SINCE
    size = partial(array_length, flexible=flexible)
    parts = [size(len(topics))]
    for topic, outcome in zip(topics, result.topics, strict=True):
        parts += (topic.named, size(len(topic.partitions)))
        if outcome.errors is ErrorCode.NONE:
            parts.append(_successes(len(topic.partitions), flexible)(*topic.partitions))
        else:
            one = _ONE_COMPACT if flexible else _ONE
            parts += map(one, topic.partitions, outcome.all_errors)
        if flexible:
            parts.append(NO_TAGS)
    return framed(correlation_id, parts, flexible)


_ONE = struct.Struct(">ih").pack
_ONE_COMPACT = struct.Struct(">ihx").pack


@lru_cache(64)
def _rows(count: int) -> Any:
    """Return what reads so many partitions: four numbers of each."""
    return struct.Struct(">" + "iqiH" * count).unpack_from


@lru_cache(64)
def _successes(count: int, flexible: bool) -> Any:
    """Return what writes so many partitions without an error: zeros are padding."""
    return struct.Struct(">" + ("i3x" if flexible else "i2x") * count).pack
