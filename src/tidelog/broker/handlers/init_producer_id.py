"""InitProducerId v0-4: a producer id and epoch for an idempotent producer.

- Without a transactional id any broker allocates an id, from its block of producer ids.
- v3+: a producer that sends its id and epoch also gets a new id, as in Kafka: producers without
  transactions raise their epochs themselves (KIP-360), and no broker knows the owner of an id.
  INVALID_REQUEST if the request has only one of the two.
- With a transactional id: CLUSTER_AUTHORIZATION_FAILED until there are transactions, as from
  FindCoordinator, which clients send first; no client retries it.
- v5 differs in errors of transactions only (KIP-890) and is not served until there are any.
- COORDINATOR_LOAD_IN_PROGRESS (retriable) while no controller allocates ids.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tidelog.broker.control_plane.producer_ids import ProducerIdsRefused
from tidelog.broker.control_plane.session import ControllerUnreachable
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

logger = logging.getLogger(__name__)

NONE_NAMED = -1


async def handle(
    broker: Broker, request: messages.InitProducerIdRequest, context: RequestContext
) -> Any:
    """Return a producer id."""
    response = messages.InitProducerIdResponse
    if request.transactional_id is not None:
        logger.info(
            "%(client_id)s requested transactions, which this version does not have",
            {"client_id": context.client_id},
        )
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return response(error_code=code, producer_epoch=-1)
    if (request.producer_id == NONE_NAMED) != (request.producer_epoch == NONE_NAMED):
        return response(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    try:
        return response(producer_id=await broker.producer_ids.next_id(), producer_epoch=0)
    except (ControllerUnreachable, ProducerIdsRefused, ClientError) as error:
        logger.warning(
            "no producer id for %(client_id)s: %(error)s",
            {"client_id": context.client_id, "error": error},
        )
        return response(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)


HANDLER = Handler(ApiKey.INIT_PRODUCER_ID, Scope.CLIENT, handle, versions=range(5))
