"""BrokerHeartbeat v0: a broker lives, wants to leave, or names replicas that are damaged.

- STALE_BROKER_EPOCH for a former life, BROKER_ID_NOT_REGISTERED for a dead broker or one that has
  not registered with this controller since it became active: it registers again.
- ``want_shut_down``: leadership moves to other members of the ISRs; ``should_shut_down`` is
  answered when nothing is left that another broker could lead.
- Damaged replicas (tag 10000) lead no more, and leave ISRs that keep another member.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidelog.controller.decisions import registration
from tidelog.controller.serving import NotActive, served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.controller.process import Controller

logger = logging.getLogger(__name__)


async def serve(
    controller: Controller, request: messages.BrokerHeartbeatRequest, _context: RequestContext
) -> messages.BrokerHeartbeatResponse:
    response = messages.BrokerHeartbeatResponse
    cluster = controller.cluster
    broker = request.broker_id
    node = cluster.brokers.get(broker)
    if not controller.store.reachable:
        # Cut off from its store it is no controller: the broker looks for another one.
        raise NotActive
    if node is None or broker in cluster.presumed:
        return response(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
    if node.broker_epoch != request.broker_epoch:
        return response(error_code=ErrorCode.STALE_BROKER_EPOCH)
    controller.heard(broker)
    if request.failures is not None:
        await _take_out(controller, broker, request.failures.damaged_replicas)
    leaves = False
    if request.want_shut_down:
        if broker not in cluster.shutting_down:
            logger.info("broker %s wants to leave", broker)
            cluster.shutting_down.add(broker)
        if registration.leads_what_others_could(cluster, broker):
            await controller.perform(registration.replace_unfit)
        leaves = not registration.leads_what_others_could(cluster, broker)
    return response(is_caught_up=True, is_fenced=False, should_shut_down=leaves)


async def _take_out(
    controller: Controller,
    broker: int,
    damaged: list[messages.BrokerHeartbeatRequest.DamagedReplica],
) -> None:
    cluster = controller.cluster
    found = {
        (broker, TopicPartition(replica.topic_name, replica.partition_index))
        for replica in damaged
        if cluster.topic_id(replica.topic_name) == replica.topic_id
    }
    new = found - cluster.broken
    if not new:
        return
    for _, where in sorted(new):
        logger.error("broker %s: the replica of %s is damaged", broker, where)
    cluster.broken |= new
    await controller.perform(registration.take_out)


def refuse_all(
    _request: object, error: ErrorCode, _sentence: str
) -> messages.BrokerHeartbeatResponse:
    """Answer with one error."""
    return messages.BrokerHeartbeatResponse(error_code=error)


HANDLER = served(ApiKey.BROKER_HEARTBEAT, range(1), serve, refuse_all)
