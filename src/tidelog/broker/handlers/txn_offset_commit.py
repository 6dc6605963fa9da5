"""TxnOffsetCommit v0-4: offsets of a group that count once the transaction commits (KIP-98).

- The offsets are pending until the marker; the response follows their commit to the log.
- v3+: generation, member and instance of the consumer (KIP-447), as in OffsetCommit, but a member
  of the present generation commits also while the group completes a rebalance. Without them, and
  in older versions, only the producer is checked.
- A fenced producer gets INVALID_PRODUCER_EPOCH in all versions, as from Kafka.
- v0-1: COORDINATOR_NOT_AVAILABLE in the place of COORDINATOR_LOAD_IN_PROGRESS, which clients before
  KAFKA-7296 do not take.
- UNKNOWN_TOPIC_OR_PARTITION for a partition that this broker does not know; the others count.
- More than 500 partitions are decided in parts; the group handles nothing else in between
  (``coordinator.parts``).
- Served only while transactions are offered.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.named_offsets import Named, named_offsets
from tidelog.broker.coordinator.parts import Answers, InParts
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.coordinator.position_steps import answered, as_answers, is_long
from tidelog.groups.events import CommitInTransaction, OffsetsResult
from tidelog.groups.offset_columns import columns_of
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

KNOWS_LOADING_SINCE = 2

_Request = messages.TxnOffsetCommitRequest
_Response = messages.TxnOffsetCommitResponse
_Topic = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


def handle(broker: Broker, request: _Request, context: RequestContext) -> Any:
    """Pass the known partitions to the group; respond for all."""
    pending_response = PendingResponse()
    asked = named_offsets(broker.metadata, request, by_id=False)
    decide = partial(broker.coordinator.decide, request.group_id)
    if is_long(request):
        decide(InParts(pending_response, asked, partial(_event, request, context)))
    elif named := tuple(one for one in asked if one is not None):
        decide(_event(request, context, pending_response, named))
    else:
        pending_response.give(OffsetsResult())
    return pending_response.answer(partial(_respond, request, context.version))


def _event(
    request: _Request,
    context: RequestContext,
    pending_response: PendingResponse,
    named: tuple[Named, ...],
) -> CommitInTransaction:
    return CommitInTransaction(
        pending_response,
        request.producer_id,
        request.producer_epoch,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        columns_of(named),
        client_host="/" + context.client_host,
    )


def _respond(request: _Request, version: int, result: OffsetsResult | Answers) -> Work[Any]:
    answer = partial(_answer, as_answers(result), version)
    topics = yield from answered(request, _topic, answer)
    return _Response(topics=topics)


def _topic(topic: _Request.TxnOffsetCommitRequestTopic, answers: list[Any]) -> Any:
    return _Topic(topic.name, answers)


def _answer(
    answers: Answers,
    version: int,
    topic: _Request.TxnOffsetCommitRequestTopic,
    asked: _Request.TxnOffsetCommitRequestPartition,
) -> Any:
    index = asked.partition_index
    error = answers.errors.get((topic.name, index), answers.otherwise)
    if version < KNOWS_LOADING_SINCE and error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return _Partition(index, error)


HANDLER = Handler(ApiKey.TXN_OFFSET_COMMIT, Scope.CLIENT, handle, with_transactions=range(5))
