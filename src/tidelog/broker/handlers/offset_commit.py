"""OffsetCommit v2-9: a group's positions, answered when they are committed to the log.

- Members name their generation; consumers without a group and tools send generation -1, which an
  Empty group accepts.
- A partition that this broker does not know answers UNKNOWN_TOPIC_OR_PARTITION; the others count.
- v2-4 may name a retention time; later ones take ``offsets.retention.minutes`` (KIP-211).
- v6+: the leader epoch of the position (KIP-320). v7+: static members (KIP-345).
- v9: a group that does not exist answers GROUP_ID_NOT_FOUND, before it ILLEGAL_GENERATION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator_ticket import Ticket
from tidelog.groups.events import CommitOffsets, OffsetsResult
from tidelog.groups.records import CommittedOffset
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import Handler, RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

NAMES_MISSING_GROUP_SINCE = 9
RETENTION_UNTIL = 4

_Response = messages.OffsetCommitResponse
_Topic = messages.OffsetCommitResponse.OffsetCommitResponseTopic
_Partition = messages.OffsetCommitResponse.OffsetCommitResponsePartition


def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Hand what exists to the group and answer for all."""
    ticket = Ticket()
    event = CommitOffsets(
        ticket,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        tuple(_known(broker, request)),
        request.retention_time_ms if context.version <= RETENTION_UNTIL else -1,
        names_missing_group=context.version >= NAMES_MISSING_GROUP_SINCE,
    )
    if not event.offsets:
        return _respond(request, OffsetsResult())
    broker.coordinator.decide(request.group_id, event)
    return ticket.answer(lambda result: _respond(request, result))


def _known(broker: Broker, request: Any) -> list[tuple[TopicPartition, CommittedOffset]]:
    return [
        (
            TopicPartition(topic.name, each.partition_index),
            CommittedOffset(
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata or "",
                topic_id=known.topic_id,
            ),
        )
        for topic in request.topics
        if (known := broker.metadata.topic(topic.name)) is not None
        for each in topic.partitions
        if each.partition_index in known.partitions
    ]


def _respond(request: Any, result: OffsetsResult) -> Any:
    errors = dict(result.partitions)
    return _Response(
        topics=[
            _Topic(topic.name, [_answer(topic.name, each, errors) for each in topic.partitions])
            for topic in request.topics
        ]
    )


def _answer(topic: str, asked: Any, errors: dict[TopicPartition, ErrorCode]) -> Any:
    at = TopicPartition(topic, asked.partition_index)
    return _Partition(asked.partition_index, errors.get(at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))


def _refuse(request: Any, error: ErrorCode, _version: int) -> Any:
    return _Response(
        topics=[
            _Topic(
                topic.name, [_Partition(each.partition_index, error) for each in topic.partitions]
            )
            for topic in request.topics
        ]
    )


HANDLER = Handler(ApiKey.OFFSET_COMMIT, range(2, 10), handle, refuse=_refuse)
