"""OffsetCommit v2-10: commits offsets of a group; the response follows the commit in the log.

- Members name their generation; consumers without a group and tools send generation -1, which an
  Empty group accepts.
- UNKNOWN_TOPIC_OR_PARTITION for a partition that this broker does not know; the others count. One
  that a resized topic may have had is taken: a stock member commits all that it has in hand before
  it rejoins, and tries that error again for ``max.poll.interval.ms``, reading nothing.
- v2-4 may name a retention time; later ones use ``offsets.retention.minutes`` (KIP-211).
- v6+: the leader epoch of the offset (KIP-320). v7+: static members (KIP-345).
- More than 500 partitions are decided in parts; the group handles nothing else in between
  (``coordinator.parts``).
- v9+: GROUP_ID_NOT_FOUND for a group that does not exist; ILLEGAL_GENERATION in older versions.
- v10: topics by id (KIP-848); UNKNOWN_TOPIC_ID for each partition of an id without a topic here.
- Plain requests have a fast path: ``coordinator.commit_fast_path``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator import commit_fast_path
from tidelog.broker.coordinator.named_offsets import Named, named_offsets
from tidelog.broker.coordinator.parts import Answers, InParts
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.coordinator.position_steps import answered, as_answers, is_long
from tidelog.groups.events import CommitOffsets, OffsetsResult
from tidelog.groups.offset_columns import columns_of
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

NAMES_MISSING_GROUP_SINCE = 9
RETENTION_UNTIL = 4
BY_ID_SINCE = 10

_Response = messages.OffsetCommitResponse
_Topic = messages.OffsetCommitResponse.OffsetCommitResponseTopic
_Partition = messages.OffsetCommitResponse.OffsetCommitResponsePartition


def handle(broker: Broker, request: messages.OffsetCommitRequest, context: RequestContext) -> Any:
    """Pass the known partitions to the group; respond for all."""
    by_id = context.version >= BY_ID_SINCE
    if by_id:
        for topic in request.topics:
            topic.name = broker.metadata.names.get(topic.topic_id)
    pending_response = PendingResponse()
    asked = named_offsets(broker.metadata, request, by_id)
    decide = partial(broker.coordinator.decide, request.group_id)
    if is_long(request):
        decide(InParts(pending_response, asked, partial(_event, request, context)))
    elif named := tuple(one for one in asked if one is not None):
        decide(_event(request, context, pending_response, named))
    else:
        pending_response.give(OffsetsResult())
    return pending_response.answer(partial(_respond, request, by_id))


def _event(
    request: messages.OffsetCommitRequest,
    context: RequestContext,
    pending_response: PendingResponse,
    named: tuple[Named, ...],
) -> CommitOffsets:
    return CommitOffsets(
        pending_response,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        columns_of(named),
        request.retention_time_ms if context.version <= RETENTION_UNTIL else -1,
        names_missing_group=context.version >= NAMES_MISSING_GROUP_SINCE,
        client_host="/" + context.client_host,
    )


def _respond(
    request: messages.OffsetCommitRequest, by_id: bool, result: OffsetsResult | Answers
) -> Work[Any]:
    topics = yield from answered(request, _topic, partial(_answer, as_answers(result), by_id))
    return _Response(topics=topics)


def _topic(topic: messages.OffsetCommitRequest.OffsetCommitRequestTopic, answers: list[Any]) -> Any:
    return _Topic(topic.name, topic.topic_id, answers)


def _answer(
    answers: Answers,
    by_id: bool,
    topic: messages.OffsetCommitRequest.OffsetCommitRequestTopic,
    asked: messages.OffsetCommitRequest.OffsetCommitRequestPartition,
) -> Any:
    if by_id and not topic.name:
        return _Partition(asked.partition_index, ErrorCode.UNKNOWN_TOPIC_ID)
    index = asked.partition_index
    return _Partition(index, answers.errors.get((topic.name, index), answers.otherwise))


HANDLER = Handler(ApiKey.OFFSET_COMMIT, Scope.CLIENT, handle, direct=commit_fast_path.answer)
