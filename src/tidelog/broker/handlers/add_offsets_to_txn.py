"""AddOffsetsToTxn v0-4: a transaction will commit offsets of a group (KIP-98).

- It adds the partition of ``__consumer_offsets`` that keeps the group. The topic is created if it
  is not there yet; until it is known here the client gets COORDINATOR_NOT_AVAILABLE and retries.
- v2+: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.broker.handlers.find_coordinator import create_topic
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import OFFSETS_TOPIC, TopicPartition
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.transactions.answers import error_in
from tidelog.transactions.events import AddPartitions, TransactionResult
from tidelog.transactions.state import IdAndEpoch

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_Response = messages.AddOffsetsToTxnResponse


def handle(
    broker: Broker, request: messages.AddOffsetsToTxnRequest, context: RequestContext
) -> Any:
    """The response is sent now or later."""
    if not request.group_id:
        return _Response(error_code=ErrorCode.INVALID_GROUP_ID)
    number = broker.coordinator.partition_of(request.group_id)
    if number is None:
        return _first(broker, request, context.version)
    return _added(broker, request, number).answer(_responding(context.version))


async def _first(
    broker: Broker, request: messages.AddOffsetsToTxnRequest, version: int
) -> messages.AddOffsetsToTxnResponse:
    """Create the topic of the groups first."""
    await create_topic(broker.coordinator)
    number = broker.coordinator.partition_of(request.group_id)
    if number is None:
        return _Response(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _responding(version)(await _added(broker, request, number).result())


def _added(
    broker: Broker, request: messages.AddOffsetsToTxnRequest, number: int
) -> PendingResponse:
    pending_response = PendingResponse()
    producer = IdAndEpoch(request.producer_id, request.producer_epoch)
    of_group = TopicPartition(OFFSETS_TOPIC, number)
    event = AddPartitions(pending_response, producer, (of_group,))
    broker.transactions.coordinator.decide(request.transactional_id, event)
    return pending_response


def _responding(version: int) -> Callable[[TransactionResult], messages.AddOffsetsToTxnResponse]:
    def respond(result: TransactionResult) -> messages.AddOffsetsToTxnResponse:
        return _Response(error_code=error_in(ApiKey.ADD_OFFSETS_TO_TXN, version, result.error))

    return respond


HANDLER = Handler(ApiKey.ADD_OFFSETS_TO_TXN, Scope.CLIENT, handle, with_transactions=range(5))
