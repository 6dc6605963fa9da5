"""OffsetFetch v1-9: a group's committed positions.

- Offset -1 and no error where there is none. v2+: null topics ask for all that the group has.
- v1: an error of the group stands in every partition; v2-7 at the top; v8+ (KIP-709) in each of
  the groups asked for.
- v5+: leader epochs (KIP-320). v7+: ``require_stable`` changes nothing here, for there are no
  transactional commits that could be pending (KIP-447).
- v9: member id and epoch belong to the newer group protocol; a classic group ignores them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.groups.records import NO_LEADER_EPOCH, CommittedOffset
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

BATCHED_SINCE = 8
TOP_ERROR_SINCE = 2
NO_OFFSET = -1

_Response = messages.OffsetFetchResponse
_Topic = messages.OffsetFetchResponse.OffsetFetchResponseTopic
_Partition = messages.OffsetFetchResponse.OffsetFetchResponsePartition
_Group = messages.OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopic = messages.OffsetFetchResponse.OffsetFetchResponseTopics
_GroupPartition = messages.OffsetFetchResponse.OffsetFetchResponsePartitions


def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Answered at once from memory, which knows committed positions only."""
    if context.version >= BATCHED_SINCE:
        return _Response(groups=[_group(broker, group) for group in request.groups])
    table = broker.coordinator.table_of(request.group_id)
    if isinstance(table, ErrorCode):
        return _refuse(request, table, context.version)
    return _Response(
        topics=[
            _Topic(name, [_Partition(at, *_fields(offset)) for at, offset in found])
            for name, found in table.offsets(request.group_id, _asked(request.topics))
        ]
    )


def _group(broker: Broker, group: Any) -> Any:
    table = broker.coordinator.table_of(group.group_id)
    if isinstance(table, ErrorCode):
        return _Group(group.group_id, [], table)
    return _Group(
        group.group_id,
        [
            _GroupTopic(name, [_GroupPartition(at, *_fields(offset)) for at, offset in found])
            for name, found in table.offsets(group.group_id, _asked(group.topics))
        ],
    )


def _asked(topics: list[Any] | None) -> list[tuple[str, list[int]]] | None:
    if topics is None:
        return None
    return [(topic.name, topic.partition_indexes) for topic in topics]


def _fields(offset: CommittedOffset | None) -> tuple[int, int, str]:
    if offset is None:
        return NO_OFFSET, NO_LEADER_EPOCH, ""
    return offset.offset, offset.leader_epoch, offset.metadata


def _refuse(request: Any, error: ErrorCode, version: int) -> Any:
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


HANDLER = Handler(ApiKey.OFFSET_FETCH, range(1, 10), handle, refuse=_refuse)
