"""OffsetForLeaderEpoch v2-4: where a leader epoch ends in the leader's log (KIP-101, KIP-279).

- Returns the largest epoch not above the requested one, and the offset after its last record; -1
  and -1 for an epoch that the log does not have.
- The current leader epoch in the request is checked (KIP-320).
- v4: a follower names the topic id; INCONSISTENT_TOPIC_ID for another one (KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.protocol.refusals import refused_in_steps

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_Response = messages.OffsetForLeaderEpochResponse
_Topic = messages.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_Partition = messages.OffsetForLeaderEpochResponse.EpochEndOffset


def handle(
    broker: Broker, request: messages.OffsetForLeaderEpochRequest, context: RequestContext
) -> Any:
    """Look up each partition in the leader epochs of its log."""
    if not context.may_name_replica(request.replica_id, ApiKey.OFFSET_FOR_LEADER_EPOCH):
        return refused_in_steps(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            context.version,
            request,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        )
    return _Response(
        topics=[
            _Topic(t.topic, [_answer(broker, t.topic, t.topic_id, p) for p in t.partitions])
            for t in request.topics
        ]
    )


def _answer(
    broker: Broker,
    topic: str,
    topic_id: UUID,
    asked: messages.OffsetForLeaderEpochRequest.OffsetForLeaderPartition,
) -> Any:
    index = asked.partition
    partition = broker.partitions.get(topic, index)
    if partition is None:
        return _Partition(broker.leader_hints.why_not_here(topic, index), index)
    if topic_id not in (NO_UUID, partition.topic_id):
        return _Partition(ErrorCode.INCONSISTENT_TOPIC_ID, index)
    error = partition.why_not_serving(asked.current_leader_epoch)
    if error is not ErrorCode.NONE:
        return _Partition(error, index)
    epoch, end = partition.log.end_offset_for_epoch(asked.leader_epoch)
    return _Partition(0, index, epoch, end)


HANDLER = Handler(ApiKey.OFFSET_FOR_LEADER_EPOCH, Scope.CLIENT, handle, most_elements=20_000)
