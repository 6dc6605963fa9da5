"""OffsetDelete v0: removes committed offsets of a group (KIP-496).

- GROUP_SUBSCRIBED_TO_TOPIC for a topic that a member reads; GROUP_ID_NOT_FOUND for a group that
  does not exist, NON_EMPTY_GROUP for one whose members are not consumers.
- A partition without an offset is no error; UNKNOWN_TOPIC_OR_PARTITION for one that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.parts import Answers, InParts
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.coordinator.position_steps import answered, as_answers, is_long
from tidelog.groups.events import DeleteOffsets, OffsetsResult
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_Response = messages.OffsetDeleteResponse
_Topic = messages.OffsetDeleteResponse.OffsetDeleteResponseTopic
_Partition = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition


def handle(broker: Broker, request: messages.OffsetDeleteRequest, _context: RequestContext) -> Any:
    """The response waits until the removal is committed."""
    pending_response = PendingResponse()
    asked = _known(broker, request)
    if is_long(request):
        event: Any = InParts(pending_response, asked, DeleteOffsets)
    else:
        event = DeleteOffsets(pending_response, tuple(x for x in asked if x is not None))
    broker.coordinator.decide(request.group_id, event)
    return pending_response.answer(partial(_respond, request))


def _known(
    broker: Broker, request: messages.OffsetDeleteRequest
) -> Iterator[TopicPartition | None]:
    """Yield each requested partition, None for one that does not exist."""
    for topic in request.topics:
        for partition in topic.partitions:
            exists = broker.metadata.partition(topic.name, partition.partition_index) is not None
            yield TopicPartition(topic.name, partition.partition_index) if exists else None


def _respond(request: messages.OffsetDeleteRequest, result: OffsetsResult | Answers) -> Work[Any]:
    answers = as_answers(result)
    if answers.error is not ErrorCode.NONE:
        return _Response(error_code=answers.error)
    topics = yield from answered(request, _topic, partial(_answer, answers))
    return _Response(topics=topics)


def _topic(topic: messages.OffsetDeleteRequest.OffsetDeleteRequestTopic, answers: list[Any]) -> Any:
    return _Topic(topic.name, answers)


def _answer(
    answers: Answers,
    topic: messages.OffsetDeleteRequest.OffsetDeleteRequestTopic,
    asked: messages.OffsetDeleteRequest.OffsetDeleteRequestPartition,
) -> Any:
    tp = TopicPartition(topic.name, asked.partition_index)
    return _Partition(asked.partition_index, answers.errors.get(tp, answers.otherwise))


HANDLER = Handler(ApiKey.OFFSET_DELETE, Scope.CLIENT, handle)
