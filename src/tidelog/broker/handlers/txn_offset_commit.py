"""TxnOffsetCommit v0-4: offsets of a group that count once the transaction commits (KIP-98).

- The transaction must have the partition of ``__consumer_offsets``: its coordinator is asked, as
  for a batch (KIP-890), unless the producer has offsets pending there. It answers within
  ``CONFIRMED_WITHIN_S``; otherwise COORDINATOR_LOAD_IN_PROGRESS. INVALID_TXN_STATE: the transaction
  has ended, or has not the partition; INVALID_PRODUCER_ID_MAPPING: the id is another producer's.
  That it has not ended is checked again right before each part of the commit is written.
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

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.named_offsets import Named, named_offsets
from tidelog.broker.coordinator.parts import Answers, InParts
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.coordinator.position_steps import answered, as_answers, is_long
from tidelog.broker.partitions.confirmation import Confirmation
from tidelog.broker.partitions.verification import Claim, Verification
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

CONFIRMED_WITHIN_S = 1.0
"""Longest wait for the coordinator of the transaction: the connection waits with it."""

_ERRORS = {
    Verification.CONFIRMED: ErrorCode.NONE,
    Verification.LATE: ErrorCode.INVALID_TXN_STATE,
    Verification.FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    Verification.UNKNOWN_ID: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    Verification.UNANSWERED: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Verification.MOVED: ErrorCode.NOT_COORDINATOR,
}

_Request = messages.TxnOffsetCommitRequest
_Response = messages.TxnOffsetCommitResponse
_Topic = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


def handle(broker: Broker, request: _Request, context: RequestContext) -> Any:
    """Let the transaction be confirmed, and the offsets be written; respond for all."""
    number = broker.coordinator.partition_of(request.group_id)
    led = broker.coordinator.leading(-1 if number is None else number)
    if isinstance(led, ErrorCode):
        return _committed(broker, request, context, None)
    claim = Claim(request.transactional_id, request.producer_id, request.producer_epoch)
    confirmation = Confirmation(broker.inspected_appends.verifier, led.hosted, claim)
    if confirmation.is_needed:
        return _confirmed(broker, request, context, confirmation)
    return _committed(broker, request, context, confirmation)


async def _confirmed(
    broker: Broker, request: _Request, context: RequestContext, confirmation: Confirmation
) -> Any:
    deadline = broker.loop.time() + CONFIRMED_WITHIN_S
    error = _ERRORS[await confirmation.ask(deadline)]
    if error is not ErrorCode.NONE:
        return _respond(request, context.version, Answers(error, {}, error))
    answer = _committed(broker, request, context, confirmation)
    return await answer if isinstance(answer, asyncio.Future) else answer


def _committed(
    broker: Broker, request: _Request, context: RequestContext, confirmation: Confirmation | None
) -> Any:
    """Pass the known partitions to the group."""
    pending_response = PendingResponse()
    asked = named_offsets(broker.metadata, request, by_id=False)
    decide = partial(broker.coordinator.decide, request.group_id)
    event = partial(_event, request, context, confirmation)
    if is_long(request):
        decide(InParts(pending_response, asked, event))
    elif named := tuple(one for one in asked if one is not None):
        decide(event(pending_response, named))
    else:
        pending_response.give(OffsetsResult())
    return pending_response.answer(partial(_respond, request, context.version))


def _event(
    request: _Request,
    context: RequestContext,
    confirmation: Confirmation | None,
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
        why_late=partial(_why_late, confirmation),
    )


def _why_late(confirmation: Confirmation | None) -> ErrorCode:
    why = None if confirmation is None else confirmation.why_not()
    return ErrorCode.NONE if why is None else _ERRORS[why]


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
