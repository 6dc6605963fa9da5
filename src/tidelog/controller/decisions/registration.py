"""Broker registrations: accepted or refused, expired, and given up by a controlled shutdown.

Owns the checks of a registration, and the writes that follow when a broker registers, expires or
leaves. Which replica leads then: see ``elections``.

| registered under that id | directory | incarnation | result |
|---|---|---|---|
| no broker | any | any | accepted, a new broker epoch |
| a broker | the same | the same | accepted, the same epoch (another connection or controller) |
| a broker | the same | another | accepted, a new epoch: the broker restarted |
| a broker | another | any | DUPLICATE_BROKER_REGISTRATION until that one expires |

Source: docs/design/who-may-lead.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import (
    NO_ID,
    NO_LEADER,
    ClusterState,
    LogEnd,
    named_in,
)
from tidelog.controller.decisions.decision import Decision, Put, Remove, RequestRefusal, Write
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.incarnations import is_of_another
from tidelog.controller.decisions.reported_command import Commands
from tidelog.controller.decisions.settlement import settle_all
from tidelog.controller.decisions.uncertain_replicas import noted, noted_damage, unread_states
from tidelog.metadata import layout
from tidelog.metadata.records import BrokerNode, Counter, PartitionState
from tidelog.model.errors import ErrorCode
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition
from tidelog.model.ways_out import RESTORED

BROKER_NODE_VERSION = 5
"""Version of Kafka's ``/brokers/ids`` JSON that has endpoints, map, rack and features."""


@dataclass(frozen=True, slots=True)
class Address:
    """One listener of a broker, as other processes reach it."""

    name: str
    host: str
    port: int
    protocol: str


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker reports of itself. ``inventory`` maps (topic id, partition) to the log's end.

    Replicas without a topic id are ``nameless``; ``damaged`` ones are in neither. ``held`` has the
    names of all topic ids, ``kept_configs`` the configurations that replicas keep of their topics.
    ``seen`` is the highest (controller epoch, store revision) that the broker has ever seen.
    ``log_dirs`` and ``cordoned_log_dirs`` are the values of its file (KIP-1066). ``commands`` are
    the newest ones that this process has for its replicas, damaged ones too; ``broker_epoch`` is
    the one that it has, -1 before its first registration.
    """

    broker: int
    cluster_id: str
    incarnation: UUID
    directory: UUID
    addresses: tuple[Address, ...]
    rack: str | None
    ended: FormerRegistration
    inventory: dict[tuple[UUID, int], LogEnd]
    nameless: dict[TopicPartition, LogEnd] = field(default_factory=dict)
    damaged: frozenset[tuple[UUID, TopicPartition]] = frozenset()
    held: dict[UUID, str] = field(default_factory=dict)
    kept_configs: dict[UUID, dict[str, str]] = field(default_factory=dict)
    seen: tuple[int, int] = (-1, -1)
    log_dirs: tuple[str, ...] = ()
    cordoned_log_dirs: tuple[str, ...] = ()
    commands: Commands = field(default_factory=dict)
    broker_epoch: int = -1


def register(
    cluster: ClusterState, request: Registration, wall_ms: int
) -> Decision[int | RequestRefusal]:
    """Decide a registration; the answer is the broker epoch."""
    refusal = why_not(cluster, request)
    if refusal is not None:
        return Decision(refusal)
    registered = cluster.brokers.get(request.broker)
    incarnation = layout.id_text(request.incarnation)
    same_incarnation = registered is not None and registered.incarnation_id == incarnation
    last = cluster.counters.get(layout.BROKER_EPOCH, 0)
    epoch = registered.broker_epoch if same_incarnation and registered is not None else last + 1
    if epoch < request.broker_epoch:
        # Of a store that this one is an older copy of, or that was lost: no leader would count what
        # the broker fetches in a lower one.
        epoch = max(last + 1, request.broker_epoch)
    writes: list[Write] = []
    if epoch > last:
        writes.append(Put(layout.BROKER_EPOCH, Counter(epoch)))
    node = _node(request, epoch, incarnation, wall_ms)
    # The time of registration alone is no change: after a failover each broker registers again,
    # and the controller would send all its partitions to all others.
    is_known = (
        registered is not None
        and msgspec.structs.replace(registered, timestamp=node.timestamp) == node
    )
    if not is_known:
        writes.append(Put(layout.broker(request.broker), node))
    new_incarnation = None if same_incarnation else request.broker
    standing = Standing.of(cluster, new_incarnation=new_incarnation)
    if same_incarnation:
        # The session opens again: a suspicion ends with it.
        again = frozenset({request.broker})
        fit = standing.fit | (again - cluster.shutting_down)
        standing = Standing(fit, standing.registered, None, standing.presumed - again)
    places = list(_concerned(cluster, request.broker))
    lost = set() if same_incarnation else _lost(cluster, request, places)
    # A leader does not count what a former incarnation has fetched: no new epoch is needed.
    new_epochs = {
        x for broker, x in cluster.broken if same_incarnation and broker == request.broker
    }
    settled = settle_all(cluster, places, standing, lost, new_epochs=new_epochs)
    uncertain = _lost_unread(cluster, request, same_incarnation) if cluster.damaged else set()
    if cluster.went_back is not None:
        # Its ISRs are out of date: an acceptance says of which partitions this may be a member.
        uncertain |= lost
        if not same_incarnation and request.ended is FormerRegistration.UNCLEAN:
            uncertain |= _held_by_name(request).keys()
    settled += noted(cluster, request.broker, uncertain)
    # The node last: without it the next controller finds the restart again.
    return Decision(epoch, (*settled, *writes), splits=True)


def _why_newer_incarnation(
    cluster: ClusterState, broker: int, tp: TopicPartition, end: LogEnd
) -> str | None:
    """Return a clause if a replica is of a partition, or has a fence, that the store never made."""
    if not cluster.level.resizes:
        return None
    epochs = cluster.counters.get(layout.PARTITION_EPOCH, 0)
    if end.partition_epoch > epochs:
        return (
            f"broker {broker} has a partition of partition epoch {end.partition_epoch}, the store "
            f"is at {epochs}"
        )
    history = cluster.topic_histories.get(tp.topic)
    newest = max((fence.resize_epoch for fence in end.fences), default=0)
    if history is not None and newest > history.resize_epoch:
        return (
            f"broker {broker} has a fence of {tp} of resize epoch {newest}, the store is at "
            f"{history.resize_epoch}"
        )
    return None


def _why_newer_state(
    cluster: ClusterState,
    request: Registration,
    tp: TopicPartition,
    topic_id: UUID,
    state: PartitionState,
) -> str | None:
    """Return a clause if a broker has records, or a command, of a state newer than the stored one.

    A node that another program made again has a lower version: one with the ISR that the broker
    has is none the worse for it, and a damaged one is judged by itself.
    """
    end, command = request.inventory[topic_id, tp.partition], request.commands.get((topic_id, tp))
    if end.leader_epoch > state.leader_epoch:
        return (
            f"broker {request.broker} has records of {tp} of leader epoch {end.leader_epoch}, the "
            f"store is at {state.leader_epoch}"
        )
    if command is None or command.leader_epoch < state.leader_epoch:
        return None
    if layout.state(*tp) in cluster.damaged:
        # An operator may have written it by hand, below what others have: only this one waits.
        return None
    if command.leader_epoch > state.leader_epoch:
        return (
            f"broker {request.broker} has a command for {tp} of leader epoch "
            f"{command.leader_epoch}, the store is at {state.leader_epoch}"
        )
    if command.isr_version > cluster.isr_version(tp) and set(command.isr) != set(state.isr):
        return (
            f"broker {request.broker} has the ISR {list(command.isr)} of {tp}, version "
            f"{command.isr_version}, the store is at {state.isr}, version {cluster.isr_version(tp)}"
        )
    return None


def why_gone_back(cluster: ClusterState, request: Registration) -> str | None:
    """Return a sentence if a broker knows more than this store, or None.

    The broker has seen a higher controller epoch, or a higher revision than the store had when a
    controller of the epoch that the broker saw wrote to it last; or one of its logs, or a command
    that it was given, has a higher leader epoch, or a newer ISR, than its partition ever had.
    """
    epoch, revision = request.seen
    highest = cluster.revision if epoch == cluster.controller_epoch else cluster.loaded.revision
    why = None
    if epoch > cluster.controller_epoch or revision > highest:
        why = (
            f"broker {request.broker} has seen revision {revision} of controller epoch {epoch}, "
            f"the store is at {highest} of {cluster.controller_epoch}"
        )
    for (topic_id, partition), end in request.inventory.items():
        tp = TopicPartition(cluster.names.get(topic_id, ""), partition)
        state, node = cluster.states.get(tp), cluster.partition_nodes.get(tp)
        newer = _why_newer_incarnation(cluster, request.broker, tp, end)
        if newer is not None:
            why = newer
            break
        if node is not None and end.partition_epoch not in (-1, node.partition_epoch):
            continue
        # What another program has written since is the damage of this state: see ``agreement``.
        if state is not None and tp not in cluster.loaded.by_hand:
            newer = _why_newer_state(cluster, request, tp, topic_id, state)
            if newer is not None:
                why = newer
                break
    if why is None:
        return None
    return (
        f"The metadata store has gone back in time: {why}. Nothing is deleted and no broker is "
        f"commanded: put the newer store back, or see {RESTORED}."
    )


def expire(cluster: ClusterState, dead: Sequence[int]) -> Decision[None]:
    """Remove brokers whose session timed out, and elect other leaders where they led."""
    gone = [broker for broker in dead if broker in cluster.brokers]
    writes = settle_all(cluster, _led_or_in_sync(cluster, gone), Standing.of(cluster, gone))
    # Last: while its node is there, the next controller finds the broker dead again.
    writes += [Remove(layout.broker(broker)) for broker in gone]
    return Decision(None, tuple(writes), splits=True)


def replace_unfit(cluster: ClusterState) -> Decision[None]:
    """Take leadership and ISR membership from suspected and leaving brokers, where that is safe."""
    unfit = cluster.suspected | cluster.shutting_down
    places = _led_or_in_sync(cluster, unfit)
    return Decision(None, tuple(settle_all(cluster, places, Standing.of(cluster))), splits=True)


def settle_returned(cluster: ClusterState, broker: int) -> Decision[None]:
    """Settle the leaderless partitions of a broker that is no longer suspected."""
    places = [
        tp
        for tp, state in cluster.states.items()
        if state.leader == NO_LEADER and (broker in cluster.replicas(tp) or broker in state.isr)
    ]
    return Decision(None, tuple(settle_all(cluster, places, Standing.of(cluster))), splits=True)


def take_out(cluster: ClusterState, new: Collection[TopicPartition]) -> Decision[None]:
    """Replace the replicas that their brokers reported as damaged, where they lead or are in sync.

    The last replica of an ISR stays in it, without leading: no other replica has its records. Where
    the damage is ``new`` a new leader epoch begins: in it no leader counts what the replica fetched
    before, if an empty one has replaced it in the same incarnation of its broker (KIP-903
    distinguishes incarnations, not these). Where a state cannot be read the damage is noted.
    """
    places = sorted({tp for _, tp in cluster.broken if tp in cluster.states})
    settled = settle_all(cluster, places, Standing.of(cluster), new_epochs=frozenset(new))
    return Decision(None, (*noted_damage(cluster), *settled), splits=True)


def leads_what_others_could(cluster: ClusterState, broker: int) -> bool:
    """Return whether a leaving broker leads a partition that has another fit ISR member.

    In an older copy of the store no other one is elected: there is nothing to wait for.
    """
    return cluster.went_back is None and any(
        state.leader == broker
        and (set(state.isr) & cluster.fit & set(cluster.replicas(tp))) - {broker}
        for tp, state in cluster.states.items()
    )


def why_not(cluster: ClusterState, request: Registration) -> RequestRefusal | None:
    """Return why a registration is refused, or None."""
    if request.cluster_id and request.cluster_id != cluster.cluster_id:
        sentence = (
            f"Broker {request.broker} belongs to the cluster {request.cluster_id}, this is "
            f"{cluster.cluster_id}."
        )
        return RequestRefusal(ErrorCode.INCONSISTENT_CLUSTER_ID, sentence)
    if not request.addresses:
        sentence = f"Broker {request.broker} names no listener."
        return RequestRefusal(ErrorCode.INVALID_REGISTRATION, sentence)
    registered = cluster.brokers.get(request.broker)
    if registered is None or registered.directory_id in (None, layout.id_text(request.directory)):
        return None
    sentence = (
        f"The node id {request.broker} is taken: a broker with another directory is registered "
        "under it and not dead."
    )
    return RequestRefusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION, sentence)


def _node(request: Registration, epoch: int, incarnation: str, wall_ms: int) -> BrokerNode:
    plain = next((x for x in request.addresses if x.protocol == "PLAINTEXT"), None)
    return BrokerNode(
        endpoints=[f"{x.name}://{_bracketed(x.host)}:{x.port}" for x in request.addresses],
        listener_security_protocol_map={x.name: x.protocol for x in request.addresses},
        host=None if plain is None else plain.host,
        port=-1 if plain is None else plain.port,
        jmx_port=-1,
        timestamp=str(wall_ms),
        version=BROKER_NODE_VERSION,
        rack=request.rack,
        broker_epoch=epoch,
        directory_id=layout.id_text(request.directory),
        incarnation_id=incarnation,
        log_dirs=list(request.log_dirs),
        cordoned_log_dirs=list(request.cordoned_log_dirs),
    )


def addresses_of(node: BrokerNode) -> list[Address]:
    """Return a registered broker's listeners, without endpoints that cannot be read."""
    addresses = []
    for endpoint in node.endpoints:
        name, _, address = endpoint.partition("://")
        host, _, port = address.rpartition(":")
        if name and port.isdigit():
            protocol = node.listener_security_protocol_map.get(name, "PLAINTEXT")
            addresses.append(Address(name, host.strip("[]"), int(port), protocol))
    return addresses


def address_on(node: BrokerNode, listener: str) -> Address | None:
    """Return a broker's address on a listener, or its first one if it does not have that."""
    addresses = addresses_of(node)
    named = [address for address in addresses if address.name == listener]
    return next(iter(named or addresses), None)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _concerned(cluster: ClusterState, broker: int) -> list[TopicPartition]:
    return [
        tp
        for tp, state in cluster.states.items()
        if broker in cluster.hosts(tp) or broker in state.isr or state.leader in (broker, NO_LEADER)
    ]


def _may_count(cluster: ClusterState, broker: int, tp: TopicPartition) -> bool:
    """Return whether a state that cannot be read may name a broker as a member."""
    history = cluster.topic_histories.get(tp.topic)
    damaged = cluster.damaged.get(layout.state(*tp))
    kept = () if damaged is None else (damaged.record, damaged.former)
    states = [x for x in (cluster.states.get(tp), *kept) if isinstance(x, PartitionState)]
    return (
        not cluster.replicas(tp)
        or broker in cluster.hosts(tp)
        # The topic's node may be the wrong one, and its assignment leave out a member: while no
        # state is known that may be any broker.
        or not states
        or any(broker in named_in(x) for x in states)
        # The targets of a move are in the state only.
        or (history is not None and tp.partition in history.original_replicas)
    )


def _led_or_in_sync(
    cluster: ClusterState, brokers: Sequence[int] | set[int]
) -> list[TopicPartition]:
    """Return the partitions whose leader, or next leader, may be one of these brokers."""
    concerned = set(brokers)
    return [
        tp
        for tp, state in cluster.states.items()
        if state.leader in concerned
        or concerned.intersection(state.isr)
        or (
            state.leader == NO_LEADER
            and concerned.intersection((*state.eligible_replicas, *state.unclean_members))
        )
    ]


def _lost(
    cluster: ClusterState, request: Registration, places: Sequence[TopicPartition]
) -> set[TopicPartition]:
    if request.ended is FormerRegistration.UNCLEAN:
        return set(places)
    # A replica that is missing from the inventory counts as lost, however the life ended.
    # Without its id, or with a wrong one, the replicas of a topic are there by its name.
    unread = frozenset(
        tp.topic
        for tp in places
        if cluster.topic_id(tp.topic) == NO_ID or layout.topic(tp.topic) in cluster.damaged
    )
    held = _held_by_name(request) if unread else {}
    return {
        tp
        for tp in places
        if (
            not _is_same(cluster, tp, held.get(tp))
            if tp.topic in unread
            else cluster.log_end(request.broker, tp) is None
        )
    }


def _lost_unread(
    cluster: ClusterState, request: Registration, same_incarnation: bool
) -> set[TopicPartition]:
    """Return the partitions whose states cannot be read, and whose replica may lack records."""
    unread = unread_states(cluster)
    lost = {tp for tp in unread if (request.broker, tp) in cluster.broken}
    if same_incarnation:
        return lost
    places = [tp for tp in unread if _may_count(cluster, request.broker, tp)]
    return lost | _lost(cluster, request, places)


def _held_by_name(request: Registration) -> dict[TopicPartition, LogEnd]:
    """Return what a broker holds, by name: of a topic that cannot be read the id may be unknown."""
    named = {
        TopicPartition(request.held[topic_id], index): end
        for (topic_id, index), end in request.inventory.items()
        if topic_id in request.held
    }
    return {**request.nameless, **named}


def _is_same(cluster: ClusterState, tp: TopicPartition, end: LogEnd | None) -> bool:
    """Whether a replica can be of the present incarnation of its partition. While its topic cannot
    be read the partition's node may be wrong as well: one that the replica contradicts decides
    nothing. Without the topic's history only a newer replica contradicts it."""
    node = cluster.partition_nodes.get(tp)
    if end is None or node is None:
        return end is not None
    if end.partition_epoch in (-1, node.partition_epoch):
        return True
    if tp.topic not in cluster.topic_histories and end.partition_epoch < node.partition_epoch:
        return False
    return is_of_another(cluster, tp, end)
