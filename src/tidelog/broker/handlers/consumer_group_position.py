"""ConsumerGroupPosition v0: a member's positions, and those of its group (KIP-253; ours: 10001).

- A partition with a position reports it; one with ``need_position`` asks for that of the group. A
  member reports only partitions that it owns: other reports count for nothing.
- ``from_commit`` marks a committed offset: of a partition whose owner is a stock member, or that
  has no owner (``groups.positions`` has the table). -1: not known, and with the mark: none.
- Generation -1 without a member asks for the commits of a group without members.
- Errors as in Heartbeat, and REBALANCE_IN_PROGRESS until the generation is stable;
  INCONSISTENT_GROUP_PROTOCOL for members that are no consumers. It keeps the session alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.groups.events import PositionsResult, ReportPositions
from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

MOST_ELEMENTS = 10_000
"""Topics and partitions of one request: it is decided in one turn."""

_Response = messages.ConsumerGroupPositionResponse
_Topic = messages.ConsumerGroupPositionResponse.Topic
_Partition = messages.ConsumerGroupPositionResponse.Partition


def handle(
    broker: Broker, request: messages.ConsumerGroupPositionRequest, _context: RequestContext
) -> Any:
    """Pass reports and questions to the group; the response is sent at once."""
    pending_response = PendingResponse()
    named = [
        (TopicPartition(topic.topic, part.partition), part)
        for topic in request.topics
        for part in topic.partitions
    ]
    event = ReportPositions(
        pending_response,
        request.member_id,
        request.generation_id,
        tuple((tp, part.position) for tp, part in named if part.position >= 0),
        tuple(tp for tp, part in named if part.need_position),
        broker.metadata.id_of,
    )
    broker.coordinator.decide(request.group_id, event)
    return pending_response.answer(lambda result: _respond(request, result))


def _respond(request: messages.ConsumerGroupPositionRequest, result: PositionsResult) -> Any:
    if result.error:
        return _Response(error_code=result.error)
    topics = [
        _Topic(topic.topic, [_partition(topic.topic, part, result) for part in topic.partitions])
        for topic in request.topics
    ]
    return _Response(topics=topics)


def _partition(
    topic: str, asked: messages.ConsumerGroupPositionRequest.Partition, result: PositionsResult
) -> Any:
    if not asked.need_position:
        return _Partition(asked.partition, need_position=False)
    offset, from_commit = result.positions[TopicPartition(topic, asked.partition)]
    return _Partition(asked.partition, True, offset, from_commit)


HANDLER = Handler(ApiKey.CONSUMER_GROUP_POSITION, Scope.CLIENT, handle, most_elements=MOST_ELEMENTS)
