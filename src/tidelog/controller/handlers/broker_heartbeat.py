"""BrokerHeartbeat v0: a broker is alive, wants to leave, or reports damaged replicas.

- STALE_BROKER_EPOCH for a former broker epoch, BROKER_ID_NOT_REGISTERED for a dead broker or one
  that has not registered with this controller since its activation, or not on this connection: the
  broker registers again.
- A heartbeat ends a suspicion: leaderless partitions may get this broker as their leader.
- ``want_shut_down``: leadership moves to other members of the ISRs; ``should_shut_down`` is true
  once the broker leads no partition that another broker could lead.
- Damaged replicas (tag 10000) no longer lead, and leave ISRs that keep another member. A new leader
  epoch begins: in it replicas outside the ISR are rebuilt.
- Failed log directories (tag 10000): a broker that has lost all gets no new replica where enough
  other brokers can take it.
- Log directories without room (tag 10000 of the same), with the replicas in them: no resize of such
  a topic begins, and a running one is undone.
- Led topics (tag 10001): when a writer without a partition count was last seen, which prevents a
  shrink for an hour, some client ids of such writers, how many of their records are misplaced, and
  the byte rates of topics that are resized by their load.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.controller import Controller
from tidelog.controller.decisions import registration, soft_state, unaware_writers
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.performing import NotActive
from tidelog.controller.serving import served
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages

logger = logging.getLogger(__name__)


async def handle(
    controller: Controller, request: messages.BrokerHeartbeatRequest, context: RequestContext
) -> messages.BrokerHeartbeatResponse:
    response = messages.BrokerHeartbeatResponse
    cluster = controller.cluster
    broker = request.broker_id
    node = cluster.brokers.get(broker)
    if not controller.store.reachable:
        # Without its store it is no controller: the broker searches for another one.
        raise NotActive
    if node is None or broker in cluster.presumed:
        return response(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
    if node.broker_epoch != request.broker_epoch:
        return response(error_code=ErrorCode.STALE_BROKER_EPOCH)
    if not controller.session_watch.is_session_of(broker, context.connection):
        # A broker registers on every new connection; this one belongs to a session that ended.
        return response(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
    if controller.session_watch.received(broker):
        logger.info("broker %(broker)s sends heartbeats again", {"broker": broker})
        await controller.perform(partial(registration.settle_returned, broker=broker))
    # Every heartbeat names all damaged replicas: a replica that is no longer named was rebuilt.
    failures = request.failures
    await _take_out(controller, broker, [] if failures is None else failures.damaged_replicas)
    _note_directories(cluster, broker, 0 if failures is None else len(failures.failed_directories))
    _note_shortages(controller, broker, () if failures is None else failures.shortages or ())
    if request.led_topics:
        seen = ((led.topic_id, led.unaware_write_ms) for led in request.led_topics)
        wall_ms = controller.seams.clock.wall_ms()
        late = unaware_writers.note_unaware(cluster, broker, seen, wall_ms)
        named = ((led.topic_id, led.client_ids) for led in request.led_topics)
        soft_state.note_clients(cluster, broker, named)
        counts = ((led.topic_id, led.misplaced_records) for led in request.led_topics)
        soft_state.note_misplaced(cluster, broker, counts)
        now_ms = controller.seams.clock.monotonic_ms()
        for led in request.led_topics:
            if led.byte_rates:
                rates = ((x.partition_index, x.bytes_per_second) for x in led.byte_rates)
                soft_state.note_rates(cluster, broker, led.topic_id, rates, now_ms)
        controller.changed(ControllerEvent.WRITERS_REPORTED)
        if late:
            await controller.perform(partial(unaware_writers.recorded, topic_ids=late))
    leaves = False
    if request.want_shut_down:
        if soft_state.note_leaving(cluster, broker):
            logger.info("broker %(broker)s wants to leave", {"broker": broker})
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
    if not damaged and not cluster.broken:
        return
    replicas = [(x.topic_id, TopicPartition(x.topic_name, x.partition_index)) for x in damaged]
    new, healed = soft_state.note_damaged(cluster, broker, replicas)
    for tp in new:
        logger.error(
            "broker %(broker)s: the replica of %(partition)s is damaged",
            {"broker": broker, "partition": tp},
        )
    for tp in healed:
        logger.info(
            "broker %(broker)s: the replica of %(partition)s is no longer damaged",
            {"broker": broker, "partition": tp},
        )
    if new:
        await controller.perform(partial(registration.take_out, new=new))


def _note_directories(cluster: ClusterState, broker: int, failed: int) -> None:
    if soft_state.note_failed_directories(cluster, broker, failed):
        logger.error(
            "broker %(broker)s: every log directory has failed; new replicas go to other brokers",
            {"broker": broker},
        )


def _note_shortages(
    controller: Controller,
    broker: int,
    reported: Collection[messages.BrokerHeartbeatRequest.Shortage],
) -> None:
    cluster = controller.cluster
    if not reported and broker not in cluster.shortages:
        return
    shortages = [
        soft_state.ReportedShortage(
            shortage.log_dir,
            shortage.reason,
            tuple(
                (topic.topic_id, x) for topic in shortage.topics for x in topic.partition_indexes
            ),
        )
        for shortage in reported
    ]
    changed = soft_state.note_shortages(cluster, broker, shortages)
    if changed is None:
        return
    for log_dir, reason in changed.items():
        logger.warning(
            "broker %(broker)s: %(log_dir)s takes no records: %(reason)s",
            {"broker": broker, "log_dir": log_dir, "reason": reason},
        )
    if not changed:
        logger.info("broker %(broker)s: every log directory has room again", {"broker": broker})
    controller.changed(ControllerEvent.SHORTAGES_REPORTED)


HANDLER = served(ApiKey.BROKER_HEARTBEAT, Scope.BROKER, handle, pipelined=True)
