"""OffsetDelete v0: removes positions of a group (KIP-496).

- A topic that a member reads answers GROUP_SUBSCRIBED_TO_TOPIC; a group that is not there
  GROUP_ID_NOT_FOUND, one with members of another kind than consumers NON_EMPTY_GROUP.
- A partition without a position is no error; one that does not exist is
  UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator_ticket import Ticket
from tidelog.groups.events import DeleteOffsets, OffsetsResult
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import Handler, RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_Response = messages.OffsetDeleteResponse
_Topic = messages.OffsetDeleteResponse.OffsetDeleteResponseTopic
_Partition = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition


def handle(broker: Broker, request: Any, _context: RequestContext) -> Any:
    """Answered when the removal is committed."""
    ticket = Ticket()
    known = tuple(
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
        if broker.metadata.partition(topic.name, each.partition_index) is not None
    )
    broker.coordinator.decide(request.group_id, DeleteOffsets(ticket, known))
    return ticket.answer(lambda result: _respond(request, result))


def _respond(request: Any, result: OffsetsResult) -> Any:
    if result.error is not ErrorCode.NONE:
        return _Response(error_code=result.error)
    errors = dict(result.partitions)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _Response(
        topics=[
            _Topic(
                topic.name,
                [
                    _Partition(
                        each.partition_index,
                        errors.get(TopicPartition(topic.name, each.partition_index), unknown),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


HANDLER = Handler(ApiKey.OFFSET_DELETE, range(1), handle)
