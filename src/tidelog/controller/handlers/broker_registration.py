"""BrokerRegistration v0: a broker registers on every new connection to a controller.

- The response has the broker epoch: a new one for a new incarnation, otherwise the same one.
- It has the channel key too, which this controller repeats in OpenControlChannel: the same one as
  long as controller epoch and broker epoch are the same.
- The connection is the broker's session: when it closes, the broker is suspected.
- A replica with end offset -1 in the inventory is damaged: it no longer leads, and leaves ISRs that
  keep another member. Heartbeats name replicas whose damage is found later.
- A broker that has seen a newer store shows that this one is an old copy: then the controller
  loads it again, with NOT_CONTROLLER meanwhile, elects no leader, commands no broker and deletes
  nothing (docs/design/metadata-store.md). Every broker registers again, with its newest commands.
- UNSUPPORTED_VERSION for a broker whose code does not know the level of this controller.
- INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION (another directory under a live id),
  INVALID_REGISTRATION (no listener, a name in the inventory that no topic can have, an epoch or a
  revision that leaves no room above it). An empty cluster id, of a new disk, is accepted.
- NOT_CONTROLLER while the store does not answer, as to heartbeats: the broker seeks another one.
- Another cluster id, where nothing was ever created: this is the lost store of that cluster, and is
  loaded again as such, with NOT_CONTROLLER meanwhile (``founding``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.controller import Controller
from tidelog.controller.decisions.cluster import NO_ID, ClusterState, InventoryFence, LogEnd
from tidelog.controller.decisions.decision import Decision, Put, RequestRefusal
from tidelog.controller.decisions.external_changes import settled_again
from tidelog.controller.decisions.levels import why_broker_refused
from tidelog.controller.decisions.nodes import judge_reports
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    register,
    why_gone_back,
    why_not,
)
from tidelog.controller.decisions.reported_command import Commands, ReportedCommand
from tidelog.controller.decisions.settlement import elect_awaited
from tidelog.controller.decisions.soft_state import take_report
from tidelog.controller.pending import Changes, changes_of_reading
from tidelog.controller.performing import NotActive
from tidelog.controller.requests import PROTOCOL_NAMES
from tidelog.controller.serving import served
from tidelog.metadata import layout
from tidelog.metadata.records import WentBack
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.server import HEARTBEATS_IN_SILENCE
from tidelog.model.epochs import HIGHEST_REVISION, leaves_room
from tidelog.model.errors import ErrorCode
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition, why_invalid
from tidelog.network.router import RequestContext, Scope
from tidelog.protocol import messages
from tidelog.records.control_records import ChangeKind

logger = logging.getLogger(__name__)


async def handle(
    controller: Controller, request: messages.BrokerRegistrationRequest, context: RequestContext
) -> messages.BrokerRegistrationResponse:
    if not controller.store.reachable:
        raise NotActive
    unfit = invalid_name(request) or _no_room(request)
    if unfit is not None:
        logger.warning(
            "registration of broker %(broker)s refused: %(why)s",
            {"broker": request.broker_id, "why": unfit},
        )
        return messages.BrokerRegistrationResponse(error_code=ErrorCode.INVALID_REGISTRATION)
    registration = _registration(request)
    broker = registration.broker
    too_old = why_broker_refused(controller.cluster, broker, request.highest_level)
    if too_old is not None:
        logger.warning("registration refused: %(why)s", {"why": too_old})
        return messages.BrokerRegistrationResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)

    if await controller.founding.witness(broker, registration.cluster_id):
        raise NotActive

    def decide(cluster: ClusterState) -> Decision[tuple[bool, int | RequestRefusal | None]]:
        registered = cluster.brokers.get(broker)
        if not before:  # In the turn, and once: a decision that is made again has judged already.
            before.append(_Readable.of(cluster))
        # Before anything else: of an older store no single node is the wrong one.
        gone_back = _gone_back(cluster, registration)
        if gone_back is not None:
            return Decision((False, None), (gone_back,))  # An older store elects no leader.
        decision = _decide(cluster, registration, controller.seams.clock.wall_ms())
        changed = registered is None or registered.broker_epoch != decision.answer
        return Decision((changed, decision.answer), decision.writes, decision.splits)

    def received(answer: tuple[bool, int | RequestRefusal | None]) -> None:
        # In the turn of the registration: the next decision could otherwise expire or replace a
        # broker that has just registered, because of its silence before.
        if answer[1] is None:  # Before any other decision. Every broker registers again.
            controller.lose("its store is an older copy: everything is loaded again")
        elif isinstance(answer[1], int):
            controller.session_watch.received(broker, is_answered=False)
            controller.send(before[0].changes(controller.cluster))
            controller.store_watches.notice_damaged()

    before: list[_Readable] = []
    (new_incarnation, answer), _ = await controller.perform(decide, received)
    if answer is None:
        raise NotActive
    if isinstance(answer, RequestRefusal):
        logger.warning("registration refused: %(why)s", {"why": answer.sentence})
        return messages.BrokerRegistrationResponse(error_code=answer.error)
    if before[0].damaged.difference(controller.cluster.damaged):
        # Its report shows that a node is right after all: what died or lost power counts now.
        await controller.perform(before[0].settled_again)
    if context.connection.is_closing:
        # It disconnected during the write: its session never began, so it expires by time-out.
        controller.session_watch.received(broker)
        return _accepted(controller, broker, answer)
    await controller.session_watch.opened(broker, context.connection, new_incarnation)
    try:
        await controller.perform(partial(elect_awaited, broker=broker))
        await controller.settle(ControllerEvent.REGISTERED)
    finally:
        # Whatever time that took: a broker sends heartbeats once it knows its epoch.
        controller.session_watch.answered(broker, context.connection)
    logger.info(
        "broker %(broker)s registered, epoch %(broker_epoch)s, %(last_stop)s",
        {"broker": broker, "broker_epoch": answer, "last_stop": _BEFORE[registration.ended]},
    )
    return _accepted(controller, broker, answer)


@dataclass(frozen=True, slots=True)
class _Readable:
    """What could not be read before a registration: topics, and the paths of damaged nodes."""

    unread: list[str]
    damaged: frozenset[str]

    @staticmethod
    def of(cluster: ClusterState) -> _Readable:
        return _Readable(cluster.unreadable_topics, frozenset(cluster.damaged))

    def changes(self, cluster: ClusterState) -> Changes:
        """Return what brokers must be sent of topics that can be read again, or no longer."""
        return changes_of_reading(self.unread, cluster, cluster)

    def settled_again(self, cluster: ClusterState) -> Decision[None]:
        """Decide what follows where nodes can be read again."""
        healed = self.damaged.difference(cluster.damaged)
        return Decision(None, tuple(settled_again(cluster, self.unread, healed)), splits=True)


_BEFORE = {
    FormerRegistration.UNCLEAN: "after its machine stopped: it may have lost unsynced records",
    FormerRegistration.CRASHED: "after a kill",
    FormerRegistration.CLEAN: "after a clean stop, or for the first time",
    FormerRegistration.SAME: "as the same process",
}


def _accepted(
    controller: Controller, broker: int, epoch: int
) -> messages.BrokerRegistrationResponse:
    key = controller.channels.key_of(broker, epoch)
    silence_ms = controller.session_watch.sessions.patience.silence_ms
    return messages.BrokerRegistrationResponse(
        broker_epoch=epoch, channel_key=key, heartbeat_ms=silence_ms // HEARTBEATS_IN_SILENCE
    )


def _gone_back(cluster: ClusterState, registration: Registration) -> Put | None:
    """Return the mark of a store that was taken for the newest, if a broker shows an older copy."""
    if cluster.went_back is not None or why_not(cluster, registration) is not None:
        return None
    sentence = why_gone_back(cluster, registration)
    if sentence is None:
        return None
    logger.error("%s", sentence)
    return Put(layout.WENT_BACK, WentBack(sentence))


def _decide(
    cluster: ClusterState, registration: Registration, wall_ms: int
) -> Decision[int | RequestRefusal]:
    refusal = why_not(cluster, registration)
    if refusal is not None:
        return Decision(refusal)
    # The elections of this registration already use what the broker says of itself.
    take_report(cluster, registration)
    if cluster.went_back is None:
        # It may show that a node is the wrong one: before a FULL to this broker follows from it.
        for line in judge_reports(cluster, registration.inventory, registration.held):
            logger.error("%s", line)
    return register(cluster, registration, wall_ms)


def invalid_name(request: messages.BrokerRegistrationRequest) -> str | None:
    """Return why an inventory has a name that no replica can have, or None."""
    for topic in request.inventory:
        why = why_invalid(topic.topic_name)
        if why is not None:
            return f"its inventory names the topic {topic.topic_name!r}: {why}"
        if any(part.partition_index < 0 for part in topic.partitions):
            return f"its inventory names a negative partition of {topic.topic_name}"
    return None


def _no_room(request: messages.BrokerRegistrationRequest) -> str | None:
    """Return why the numbers that a broker has seen are refused, or None."""
    seen = request.highest_seen
    if request.broker_epoch > HIGHEST_REVISION:
        return f"it has the broker epoch {request.broker_epoch}, which leaves no room above it"
    if seen is None or leaves_room(seen.controller_epoch, seen.store_revision):
        return None
    return (
        f"it has seen controller epoch {seen.controller_epoch} and store revision "
        f"{seen.store_revision}, which leave no room above them"
    )


def _log_end(part: messages.BrokerRegistrationRequest.InventoryPartition) -> LogEnd:
    kinds = tuple(ChangeKind)
    fences = tuple(
        InventoryFence(fence.resize_epoch, fence.undeleted_count, ChangeKind(fence.kind))
        for fence in part.fences
        if fence.kind in kinds
    )
    birth = part.birth
    births = (0, 0) if birth is None else (birth.birth_epoch, birth.birth_offset)
    return LogEnd(
        *(part.partition_epoch, part.leader_epoch, part.end_offset, *births),
        fences,
        part.record_epoch,
    )


def _commands(request: messages.BrokerRegistrationRequest) -> Commands:
    commands: Commands = {}
    for topic in request.inventory:
        for part in topic.partitions:
            named = part.command
            if named is not None:
                key = topic.topic_id, TopicPartition(topic.topic_name, part.partition_index)
                commands[key] = ReportedCommand(
                    *(part.partition_epoch, named.leader_epoch, named.isr_version, named.leader),
                    tuple(named.isr),
                )
    return commands


def _registration(request: messages.BrokerRegistrationRequest) -> Registration:
    inventory: dict[tuple[UUID, int], LogEnd] = {}
    nameless: dict[TopicPartition, LogEnd] = {}
    damaged: set[tuple[UUID, TopicPartition]] = set()
    for topic in request.inventory:
        for part in topic.partitions:
            end = _log_end(part)
            tp = TopicPartition(topic.topic_name, part.partition_index)
            if end.end_offset < 0:
                damaged.add((topic.topic_id, tp))
            elif topic.topic_id == NO_ID:
                nameless[tp] = end
            else:
                inventory[topic.topic_id, part.partition_index] = end
    ended = request.last_life_ended
    seen = request.highest_seen
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
        # An undefined number does not prove that the records are still there.
        ended=FormerRegistration(ended)
        if ended in tuple(FormerRegistration)
        else FormerRegistration.UNCLEAN,
        inventory=inventory,
        nameless=nameless,
        damaged=frozenset(damaged),
        kept_configs={
            x.topic_id: {config.name: config.value for config in x.configs}
            for x in request.inventory
            if x.topic_id != NO_ID
        },
        held={x.topic_id: x.topic_name for x in request.inventory if x.topic_id != NO_ID},
        seen=(-1, -1) if seen is None else (seen.controller_epoch, seen.store_revision),
        log_dirs=tuple(request.log_dirs),
        cordoned_log_dirs=tuple(request.cordoned_log_dirs),
        commands=_commands(request),
        broker_epoch=request.broker_epoch,
    )


HANDLER = served(ApiKey.BROKER_REGISTRATION, Scope.BROKER, handle)
