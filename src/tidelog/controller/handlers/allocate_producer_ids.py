"""AllocateProducerIds v0: a block of 1000 producer ids for a broker, durable before the response.

- STALE_BROKER_EPOCH for a former broker epoch.
"""

from __future__ import annotations

from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, RequestRefusal
from tidelog.controller.decisions.producer_ids import Block, next_block
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages


async def handle(
    controller: Controller, request: messages.AllocateProducerIdsRequest, _context: RequestContext
) -> messages.AllocateProducerIdsResponse:

    def decide(cluster: ClusterState) -> Decision[Block | RequestRefusal]:
        node = cluster.brokers.get(request.broker_id)
        if node is None or node.broker_epoch != request.broker_epoch:
            return Decision(
                RequestRefusal(ErrorCode.STALE_BROKER_EPOCH, "The broker has a newer epoch.")
            )
        return next_block(cluster, request.broker_id)

    answer, _ = await controller.perform(decide)
    response = messages.AllocateProducerIdsResponse
    if isinstance(answer, RequestRefusal):
        return response(error_code=answer.error)
    return response(producer_id_start=answer.first, producer_id_len=answer.size)


HANDLER = served(ApiKey.ALLOCATE_PRODUCER_IDS, Scope.BROKER, handle, pipelined=True)
