"""OffsetFetch v1-9: a group's committed offsets.

- Offset -1 without an error if there is none, or only one of a deleted topic of the same name.
- v2+: null topics means all offsets of the group.
- An error of the group is in every partition (v1), at the top level (v2-7), or in each requested
  group (v8+, KIP-709).
- v5+: leader epochs (KIP-320). v7+: ``require_stable`` has no effect, because there are no pending
  transactional commits (KIP-447).
- v9: member id and epoch are of the newer group protocol; a classic group ignores them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelog.groups.records import NO_LEADER_EPOCH, CommittedOffset
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope, Steps
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.groups.table import GroupTable

BATCHED_SINCE = 8
TOP_ERROR_SINCE = 2
NO_OFFSET = -1

AT_ONCE = 500
"""Partitions between two turns of the loop."""

TOPIC_BYTES, PARTITION_BYTES = 150, 100
"""Memory of a topic and of a partition in a response under construction, without metadata."""

_Response = messages.OffsetFetchResponse
_Topic = messages.OffsetFetchResponse.OffsetFetchResponseTopic
_Partition = messages.OffsetFetchResponse.OffsetFetchResponsePartition
_Group = messages.OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopic = messages.OffsetFetchResponse.OffsetFetchResponseTopics
_GroupPartition = messages.OffsetFetchResponse.OffsetFetchResponsePartitions


def handle(broker: Broker, request: messages.OffsetFetchRequest, context: RequestContext) -> Any:
    """Return offsets from memory, which has only committed ones.

    If a group is named several times, its last entry counts.
    """
    if context.version >= BATCHED_SINCE:
        return _groups(broker, request)
    return _one_group(broker, request, context)


def _groups(broker: Broker, request: messages.OffsetFetchRequest) -> Steps:
    groups = []
    for group in {each.group_id: each for each in request.groups}.values():
        table = broker.coordinator.table_of(group.group_id)
        if isinstance(table, ErrorCode):
            groups.append(_Group(group.group_id, [], table))
            yield TOPIC_BYTES
            continue
        topics: list[Any] = []
        groups.append(_Group(group.group_id, topics))
        yield TOPIC_BYTES
        for name, found in _found(broker, table, group.group_id, group.topics):
            parts = [_GroupPartition(at, *_fields(offset)) for at, offset in found]
            if topics and topics[-1].name == name:
                topics[-1].partitions += parts
            else:
                topics.append(_GroupTopic(name, parts))
            yield _size(found)
    return _Response(groups=groups)


def _one_group(
    broker: Broker, request: messages.OffsetFetchRequest, context: RequestContext
) -> Steps:
    table = broker.coordinator.table_of(request.group_id)
    if isinstance(table, ErrorCode):
        return _refuse(request, table, context.version)
    topics: list[Any] = []
    for name, found in _found(broker, table, request.group_id, request.topics):
        parts = [_Partition(at, *_fields(offset)) for at, offset in found]
        if topics and topics[-1].name == name:
            topics[-1].partitions += parts
        else:
            topics.append(_Topic(name, parts))
        yield _size(found)
    return _Response(topics=topics)


def _found(
    broker: Broker, table: GroupTable, group_id: str, topics: list[Any] | None
) -> Iterator[tuple[str, list[tuple[int, CommittedOffset | None]]]]:
    """Yield committed offsets, ``AT_ONCE`` at a time, each partition once however often named."""
    topic_id_of = broker.metadata.id_of
    if topics is None:
        for name, found in table.offsets(group_id, None, topic_id_of):
            for first in range(0, len(found), AT_ONCE):
                yield name, found[first : first + AT_ONCE]
        return
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    for name, asked in wanted.items():
        indexes = list(asked)
        for first in range(0, max(1, len(indexes)), AT_ONCE):
            asked_now = [(name, indexes[first : first + AT_ONCE])]
            yield from table.offsets(group_id, asked_now, topic_id_of)


def _size(found: list[tuple[int, CommittedOffset | None]]) -> int:
    kept = sum(len(offset.metadata) for _, offset in found if offset is not None)
    return TOPIC_BYTES + PARTITION_BYTES * len(found) + kept


def _fields(offset: CommittedOffset | None) -> tuple[int, int, str]:
    if offset is None:
        return NO_OFFSET, NO_LEADER_EPOCH, ""
    return offset.offset, offset.leader_epoch, offset.metadata


def _refuse(request: messages.OffsetFetchRequest, error: ErrorCode, version: int) -> Any:
    if version >= BATCHED_SINCE:
        return _Response(groups=[_Group(group.group_id, [], error) for group in request.groups])
    if version >= TOP_ERROR_SINCE:
        return _Response(error_code=error)
    return _Response(
        topics=[
            _Topic(
                topic.name,
                [_Partition(at, *_fields(None), error) for at in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ]
    )


HANDLER = Handler(ApiKey.OFFSET_FETCH, range(1, 10), Scope.CLIENT, handle, refuse=_refuse)
