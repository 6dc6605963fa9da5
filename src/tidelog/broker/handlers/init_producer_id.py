"""InitProducerId v0-5: a producer id and epoch for an idempotent or transactional producer.

- Without a transactional id any broker allocates an id, from its block of producer ids.
- v3+: a producer that sends its id and epoch also gets a new id, as in Kafka: producers without
  transactions raise their epochs themselves (KIP-360), and no broker knows the owner of an id.
  INVALID_REQUEST if the request has only one of the two.
- With a transactional id its coordinator fences the producer before, and aborts what that one has
  left open. v3+: a producer that goes on after an error names its id and epoch (KIP-360).
- While transactions are not offered, a transactional id gets CLUSTER_AUTHORIZATION_FAILED, as from
  FindCoordinator, which clients send first; no client retries it. Before the level of the cluster
  is known, COORDINATOR_LOAD_IN_PROGRESS (or NOT_COORDINATOR), which they do.
- v4+: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v5 differs in errors of transactions only
  (KIP-890), none of which the coordinator has, and is served while transactions are offered.
- COORDINATOR_LOAD_IN_PROGRESS (retriable) while no controller allocates ids.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tidelog.broker.control_plane.producer_ids import ProducerIdsRefused
from tidelog.broker.control_plane.session import ControllerUnreachable
from tidelog.broker.coordinator.pending_response import PendingResponse
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages
from tidelog.transactions.answers import error_in
from tidelog.transactions.events import InitProducerId, InitProducerIdResult
from tidelog.transactions.state import IdAndEpoch

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

logger = logging.getLogger(__name__)

NONE_NAMED = -1


def handle(broker: Broker, request: messages.InitProducerIdRequest, context: RequestContext) -> Any:
    """Return a producer id, at once or later."""
    response = messages.InitProducerIdResponse
    if request.transactional_id is not None and broker.refused_transactions:
        broker.cluster_level.refused(context.client_id, context.client_host)
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return response(error_code=code, producer_epoch=-1)
    if (request.producer_id == NONE_NAMED) != (request.producer_epoch == NONE_NAMED):
        return response(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return _initialized(broker, request.transactional_id, request, context.version)
    return _fresh(broker, context.client_id)


async def _fresh(broker: Broker, client_id: str | None) -> messages.InitProducerIdResponse:
    response = messages.InitProducerIdResponse
    try:
        return response(producer_id=await broker.producer_ids.next_id(), producer_epoch=0)
    except (ControllerUnreachable, ProducerIdsRefused, ClientError) as error:
        logger.warning(
            "no producer id for %(client_id)s: %(error)s",
            {"client_id": client_id, "error": error},
        )
        return response(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)


def _initialized(
    broker: Broker,
    transactional_id: str,
    request: messages.InitProducerIdRequest,
    version: int,
) -> Any:
    claimed = None
    if request.producer_id != NONE_NAMED:
        claimed = IdAndEpoch(request.producer_id, request.producer_epoch)
    pending_response = PendingResponse()
    event = InitProducerId(pending_response, request.transaction_timeout_ms, claimed)
    broker.transactions.coordinator.decide(transactional_id, event)

    def respond(result: InitProducerIdResult) -> messages.InitProducerIdResponse:
        return messages.InitProducerIdResponse(
            error_code=error_in(ApiKey.INIT_PRODUCER_ID, version, result.error),
            producer_id=result.producer_id,
            producer_epoch=result.producer_epoch,
        )

    return pending_response.answer(respond)


HANDLER = Handler(
    ApiKey.INIT_PRODUCER_ID,
    Scope.CLIENT,
    handle,
    versions=range(6),
    with_transactions=range(5, 6),
)
