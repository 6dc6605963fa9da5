"""BrokerRegistration v0: a broker introduces itself, on every new connection to a controller.

- The answer is the broker epoch: a new one for a new life, the same one for the same life.
- From then on the connection is the broker's session: when it closes, the broker is suspected.
- A broker that has seen a newer store shows that this one is an old copy: then no broker is
  commanded and nothing is deleted (the design, "Who may lead").
- INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION (another directory under a live id),
  INVALID_REGISTRATION (no listener). An empty cluster id is accepted: the first life of a disk.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidelog.controller.decisions.cluster import Cluster, Decision, LogEnd, Refusal
from tidelog.controller.decisions.registration import (
    Address,
    LifeEnded,
    Registration,
    register,
    why_gone_back,
)
from tidelog.controller.requests import PROTOCOL_NAMES
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import RequestContext
from tidelog.protocol import messages

if TYPE_CHECKING:
    from tidelog.controller.process import Controller

logger = logging.getLogger(__name__)


async def serve(
    controller: Controller, request: messages.BrokerRegistrationRequest, context: RequestContext
) -> messages.BrokerRegistrationResponse:
    registration = _registration(request)
    broker = registration.broker
    seen = request.highest_seen

    def decide(cluster: Cluster) -> Decision[tuple[bool, int | Refusal]]:
        known = cluster.brokers.get(broker)
        decision = _decide(cluster, registration, controller.seams.clock.wall_ms())
        is_ours = not isinstance(decision.answer, Refusal)
        if is_ours and seen is not None and cluster.went_back is None:
            cluster.went_back = why_gone_back(
                cluster, broker, seen.controller_epoch, seen.store_revision
            )
        changed = known is None or known.broker_epoch != decision.answer
        return Decision((changed, decision.answer), decision.writes)

    (new_life, answer), _ = await controller.perform(decide)
    if isinstance(answer, Refusal):
        logger.warning("registration refused: %s", answer.sentence)
        return messages.BrokerRegistrationResponse(error_code=answer.error)
    if context.connection.is_closing:
        # It went away while this was written: its session never began, so it dies by time-out.
        controller.heard(broker)
        return messages.BrokerRegistrationResponse(broker_epoch=answer)
    await controller.opened(broker, context.connection, new_life)
    logger.info(
        "broker %s registered, epoch %s, its last life ended %s",
        broker,
        answer,
        registration.ended.name,
    )
    return messages.BrokerRegistrationResponse(broker_epoch=answer)


def _decide(cluster: Cluster, registration: Registration, wall_ms: int) -> Decision[int | Refusal]:
    broker = registration.broker
    former = (cluster.inventories.get(broker), broker in cluster.shutting_down)
    # What the broker says of itself holds for the elections of its own registration already.
    cluster.inventories[broker] = registration.inventory
    cluster.shutting_down.discard(broker)
    decision = register(cluster, registration, wall_ms)
    if isinstance(decision.answer, Refusal):
        inventory, was_leaving = former
        if inventory is None:
            del cluster.inventories[broker]
        else:
            cluster.inventories[broker] = inventory
        if was_leaving:
            cluster.shutting_down.add(broker)
    else:
        cluster.broken = {(x, where) for x, where in cluster.broken if x != broker}
    return decision


def _registration(request: messages.BrokerRegistrationRequest) -> Registration:
    inventory = {
        (topic.topic_id, partition.partition_index): LogEnd(
            partition.partition_epoch, partition.leader_epoch, partition.end_offset
        )
        for topic in request.inventory
        for partition in topic.partitions
    }
    ended = request.last_life_ended
    return Registration(
        broker=request.broker_id,
        cluster_id=request.cluster_id,
        incarnation=request.incarnation_id,
        directory=request.directory_id,
        addresses=tuple(
            Address(x.name, x.host, x.port, PROTOCOL_NAMES.get(x.security_protocol, "PLAINTEXT"))
            for x in request.listeners
        ),
        rack=request.rack,
        # A number that nobody defined is no promise that bytes are still there.
        ended=LifeEnded(ended) if ended in tuple(LifeEnded) else LifeEnded.UNCLEAN,
        inventory=inventory,
    )


def refuse_all(
    _request: object, error: ErrorCode, _sentence: str
) -> messages.BrokerRegistrationResponse:
    """Answer with one error."""
    return messages.BrokerRegistrationResponse(error_code=error)


HANDLER = served(ApiKey.BROKER_REGISTRATION, range(1), serve, refuse_all)
