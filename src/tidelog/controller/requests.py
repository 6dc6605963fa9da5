"""The requests of a control channel, built from the committed state at the moment of sending.

Owns the content of the requests. Their versions: see ``model.levels`` (the codec leaves out fields
that a version lacks); when they are sent: see ``outbox``. Pure: state in, messages out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.client.errors import ConnectionLost
from tidelog.controller.decisions.cluster import NO_ID, NO_LEADER, ClusterState
from tidelog.controller.decisions.registration import Address, address_on, addresses_of
from tidelog.controller.decisions.shown_topics import ShownTopic, shown_topic
from tidelog.controller.decisions.sides import Side, Sides, common_side
from tidelog.controller.decisions.stops import Stop
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState
from tidelog.model.configs.tls import SSL
from tidelog.model.topics import TopicPartition, hosts_of
from tidelog.protocol import messages

if TYPE_CHECKING:
    # The classes of messages are made at their first use.
    PartitionCommand = messages.LeaderAndIsrRequest.LeaderAndIsrPartitionState
    from tidelog.runtime.tls_files import TlsFiles

Split = dict[int, dict[str, list[TopicPartition]]]
"""Partitions by broker and topic."""

UNSPECIFIED, INCREMENTAL, FULL = 0, 1, 2
"""Types of LeaderAndIsr v5 (KIP-516)."""

LEADER_DURING_DELETE = -2
"""UpdateMetadata's leader of a partition that is gone."""

TOPIC, BROKER = 2, 4
"""Entity types of UpdateConfigs: the numbers of Kafka's ConfigResource."""

PROTOCOL_NUMBERS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
PROTOCOL_NAMES = {number: name for name, number in PROTOCOL_NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Sender:
    """The controller that sends the requests, and the listener of inter-broker requests."""

    controller_id: int
    inter_broker_listener: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Partitions that are gone: brokers forget them. Those of a deleted topic, or removed ones."""

    name: str
    topic_id: UUID
    partitions: tuple[int, ...]
    is_whole: bool = True
    """Whether the topic itself was deleted."""


class NotRegistered(Exception):
    """The broker's registration has expired: channels close only after that decision."""


def epoch_of(cluster: ClusterState, broker: int) -> int:
    """Return the broker epoch of the requests to a broker. Raises NotRegistered."""
    node = cluster.brokers.get(broker)
    if node is None:
        raise NotRegistered(f"broker {broker} is not registered any more")
    return node.broker_epoch


def why_no_full(cluster: ClusterState, *, leaves_unreadable: bool = False) -> str | None:
    """Return why no request may be sent that could make a replica stale (promise 20), or None.

    ``leaves_unreadable``: whether the broker leaves topics as they are that a request names as
    unreadable (docs/decisions/0111). Below level 1.4 no request names any.
    """
    if cluster.went_back is not None:
        return cluster.went_back
    unreadable = cluster.unreadable_topics
    if not (leaves_unreadable and cluster.level.topic_ids):
        for name in unreadable:
            damaged = cluster.damaged.get(layout.topic(name))
            return str(damaged or cluster.damaged[layout.topic_history(name)])
    for name in cluster.topics.keys() - unreadable:
        if cluster.level.topic_ids and cluster.topic_id(name) == NO_ID:
            return f"The topic {name} has no id yet."
    return None


def inter_broker_address(cluster: ClusterState, broker: int, listener: str) -> Address | None:
    """Return the address of a registered broker for inter-broker requests."""
    node = cluster.brokers.get(broker)
    return None if node is None else address_on(node, listener)


def tls_for(address: Address, tls: TlsFiles | None) -> TlsFiles | None:
    """Return the keys with which a broker is reached; None where its listener has no TLS.

    Raises ConnectionLost where it has, and this controller's file has none for it.
    """
    if address.protocol != SSL:
        return None
    if tls is None:
        raise ConnectionLost(
            f"the listener {address.name} of {address.host}:{address.port} has SSL: this "
            "controller's file needs security.inter.broker.protocol=SSL and ssl.truststore.*"
        )
    return tls


def leader_and_isr(
    cluster: ClusterState, sender: Sender, broker: int, places: Iterable[TopicPartition], kind: int
) -> messages.LeaderAndIsrRequest:
    """Build LeaderAndIsr for the partitions among ``places`` that the broker hosts.

    It leaves out topics that are marked for deletion or have no id yet. A partition whose state
    node is damaged or missing has leader -1 and epoch -1.
    """
    own = _by_topic(cluster, (tp for tp in places if broker in cluster.hosts(tp)))
    return commands(cluster, sender, broker, own, kind, {})


def by_broker(cluster: ClusterState, places: Iterable[TopicPartition]) -> Split:
    """Return the partitions that each broker hosts, by topic.

    One pass for all brokers: its time grows with the replicas, not with partitions times brokers.
    """
    split: Split = {}
    has_others = bool(cluster.moves or cluster.damaged)
    for name, wheres in _by_topic(cluster, places).items():
        assigned = cluster.topics[name].partitions
        of_topic: dict[int, list[TopicPartition]] = {}
        for tp in wheres:
            hosts = cluster.hosts(tp) if has_others else assigned[tp.partition]
            # A node that a tool wrote may name a broker twice.
            for broker in dict.fromkeys(hosts):
                of_topic.setdefault(broker, []).append(tp)
        for broker, own in of_topic.items():
            split.setdefault(broker, {})[name] = own
    return split


def commands(
    cluster: ClusterState,
    sender: Sender,
    broker: int,
    own: Mapping[str, Sequence[TopicPartition]],
    kind: int,
    made: dict[TopicPartition, PartitionCommand],
) -> messages.LeaderAndIsrRequest:
    """Build LeaderAndIsr for partitions that the broker hosts, by topic.

    ``made`` has the commands that are built already for other replicas of the same partitions and
    the same state: this takes them from there, and adds those that it builds.

    From level 1.5 a topic has one entry for each side of a resize that its partitions stand on.
    """
    request = messages.LeaderAndIsrRequest
    leaders: set[int] = set()
    topics = []
    for name, wheres in own.items():
        node = cluster.topics[name]
        history = cluster.topic_histories.get(name)
        debts = {} if history is None else history.unclean
        for side, places in _by_side(cluster, name, wheres):
            states = []
            for tp in places:
                command = made.get(tp)
                if command is None:
                    replicas = node.partitions[tp.partition]
                    command = made[tp] = _command(cluster, tp, replicas, debts)
                leaders.add(command.leader)
                states.append(command)
            topics.append(
                request.LeaderAndIsrTopicState(
                    topic_name=name,
                    topic_id=cluster.topic_id(name),
                    undeleted_partition_count=side.count,
                    resize_epoch=side.resize_epoch,
                    partition_states=states,
                    migrated=history is not None and history.migrated,
                )
            )
    live = []
    for leader in sorted(leaders):
        address = inter_broker_address(cluster, leader, sender.inter_broker_listener)
        if address is not None:
            live.append(request.LeaderAndIsrLiveLeader(leader, address.host, address.port))
    return request(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=epoch_of(cluster, broker),
        type=kind,
        topic_states=topics,
        live_leaders=live,
        unreadable_topics=cluster.unreadable_topics if kind == FULL else [],
    )


_UNCOUNTED = Side(-1, 0)
"""The side of all partitions below level 1.5, whose requests have no counts."""


def _by_side(
    cluster: ClusterState, name: str, wheres: Sequence[TopicPartition]
) -> Iterable[tuple[Side, Sequence[TopicPartition]]]:
    """Return the partitions of a topic by count and resize epoch, without those not born yet."""
    if not cluster.level.resizes:
        return ((_UNCOUNTED, wheres),)
    node, history = cluster.topics[name], cluster.topic_histories.get(name)
    common = common_side(node, history)
    if common is not None:
        return ((common, wheres),)
    sides = Sides(name, node, history, cluster.partition_nodes)
    by_side: dict[Side, list[TopicPartition]] = {}
    for tp in wheres:
        if sides.is_born(tp.partition):
            by_side.setdefault(sides.of(tp.partition), []).append(tp)
    return by_side.items()


def _command(
    cluster: ClusterState, tp: TopicPartition, replicas: list[int], debts: Collection[int]
) -> PartitionCommand:
    state, version = _state(cluster, tp)
    if state.target_replicas is not None and not cluster.level.target_replicas:
        replicas = list(hosts_of(replicas, state.target_replicas))
    command = messages.LeaderAndIsrRequest.LeaderAndIsrPartitionState(
        partition_index=tp.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        isr_version=version,
        replicas=replicas,
        target_replicas=state.target_replicas,
        is_new=version == 0,
        is_unclean_leader=state.is_unclean_leader,
        has_debt=tp.partition in debts,
    )
    node = cluster.partition_nodes.get(tp) if cluster.level.resizes else None
    if node is not None:
        command.partition_epoch = node.partition_epoch
        command.birth_epoch = node.birth_epoch
        command.sealed = node.retirement_epoch >= 0
        if node.birth_offset > 0:
            # A replica of it may have no log yet at any time: a broker that was away for long.
            command.start_offset = node.birth_offset
    return command


def update_metadata(
    cluster: ClusterState,
    sender: Sender,
    broker: int,
    places: Iterable[TopicPartition],
    gone: Iterable[Gone] = (),
) -> messages.UpdateMetadataRequest:
    """Build UpdateMetadata: all live brokers, the partitions named, and deleted topics.

    The first one of a channel names every partition: the broker replaces all its metadata.
    """
    request = messages.UpdateMetadataRequest
    topics = []
    for lost in gone:
        states = [
            request.UpdateMetadataPartitionState(
                partition_index=index,
                controller_epoch=cluster.controller_epoch,
                leader=LEADER_DURING_DELETE,
            )
            for index in lost.partitions
        ]
        topics.append(request.UpdateMetadataTopicState(lost.name, lost.topic_id, -1, -1, 0, states))
    for name, wheres in _by_topic(cluster, places).items():
        node = cluster.topics[name]
        shown = shown_topic(node, cluster.topic_histories.get(name))
        if shown.end is not None:
            wheres = [tp for tp in wheres if tp.partition < shown.end]
        states = [_metadata(cluster, tp, node.partitions[tp.partition], shown) for tp in wheres]
        topics.append(
            request.UpdateMetadataTopicState(
                name,
                cluster.topic_id(name),
                shown.initial_count,
                shown.count,
                shown.resize_epoch,
                states,
            )
        )
    return request(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=epoch_of(cluster, broker),
        max_partition_epoch=cluster.counters.get(layout.PARTITION_EPOCH, -1),
        topic_states=topics,
        live_brokers=[_live(cluster, node_id) for node_id in sorted(cluster.brokers)],
        unreadable_topics=cluster.unreadable_topics,
    )


def update_configs(
    cluster: ClusterState, sender: Sender, broker: int, entities: Collection[tuple[int, str]] | None
) -> messages.UpdateConfigsRequest:
    """Build UpdateConfigs: the whole set of each entity, an empty one without configurations.

    ``entities`` None: all configurations that this broker needs, to replace all that it has.
    """
    request = messages.UpdateConfigsRequest
    if entities is None:
        entities = [(TOPIC, name) for name in cluster.topic_configs]
        entities += [(BROKER, ""), (BROKER, str(broker))]
    made = []
    for kind, name in sorted(entities):
        values = _configs(cluster, kind, name)
        configs = [request.Config(key, value) for key, value in sorted(values.items())]
        made.append(request.Entity(kind, name, configs))
    return request(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=epoch_of(cluster, broker),
        store_revision=cluster.revision,
        entities=made,
        min_insync_replicas=cluster.layers.static_min_insync,
        level=cluster.level.name,
    )


def stop_replica(
    cluster: ClusterState, sender: Sender, broker: int, stops: Iterable[Stop]
) -> list[messages.StopReplicaRequest]:
    """Build StopReplica: one request for deletes and stops together, below level 1.1 one of each.

    Below 1.1 the delete flag is the request's and there is no epoch (KIP-570).
    """
    if cluster.level.one_stop_request:
        return [_combined_stop(cluster, sender, broker, stops)]
    by_flag: dict[bool, dict[str, list[int]]] = {}
    for stop in stops:
        of_topic = by_flag.setdefault(stop.delete, {}).setdefault(stop.name, [])
        of_topic.append(stop.partition)
    request = messages.StopReplicaRequest
    return [
        request(
            controller_id=sender.controller_id,
            controller_epoch=cluster.controller_epoch,
            broker_epoch=epoch_of(cluster, broker),
            delete_partitions=delete,
            topics=[
                request.StopReplicaTopicV1(name, sorted(indexes))
                for name, indexes in by_topic.items()
            ],
        )
        for delete, by_topic in by_flag.items()
    ]


def _combined_stop(
    cluster: ClusterState, sender: Sender, broker: int, stops: Iterable[Stop]
) -> messages.StopReplicaRequest:
    request = messages.StopReplicaRequest
    # By name and id: two deleted topics may have had the same name.
    topics: dict[tuple[str, UUID], messages.StopReplicaRequest.StopReplicaTopicState] = {}
    for stop in stops:
        key = (stop.name, stop.topic_id)
        if key not in topics:
            topics[key] = request.StopReplicaTopicState(*key, [])
        topics[key].partition_states.append(
            request.StopReplicaPartitionState(
                stop.partition, stop.leader_epoch, stop.delete, stop.partition_epoch
            )
        )
    return request(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=epoch_of(cluster, broker),
        topic_states=list(topics.values()),
    )


def open_control_channel(
    cluster: ClusterState, sender: Sender, broker: int, number: int
) -> messages.OpenControlChannelRequest:
    """Build the first request of a channel."""
    return messages.OpenControlChannelRequest(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=epoch_of(cluster, broker),
        channel_number=number,
        store_revision=cluster.revision,
    )


def _by_topic(
    cluster: ClusterState, places: Iterable[TopicPartition]
) -> dict[str, list[TopicPartition]]:
    """Group those that are assigned and not marked for deletion, in the order of partitions.

    From level 1.4 this leaves out topics without an id too (KIP-516: they are sent once they have
    one); a FULL waits for them (``why_no_full``). This and the functions below run for every
    partition and broker: they look up each value once.
    """
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in places:
        by_topic.setdefault(tp.topic, []).append(tp)
    with_ids = cluster.level.topic_ids
    for name, wheres in list(by_topic.items()):
        node = cluster.topics.get(name)
        is_sent = name not in cluster.marked and (not with_ids or cluster.topic_id(name) != NO_ID)
        assigned = node.partitions if node is not None and is_sent else {}
        hosted = [tp for tp in wheres if assigned.get(tp.partition)]
        if hosted:
            hosted.sort()
            by_topic[name] = hosted
        else:
            del by_topic[name]
    # The input may be a set: without a sorted order a simulated run could not be repeated.
    return dict(sorted(by_topic.items()))


def _state(cluster: ClusterState, tp: TopicPartition) -> tuple[PartitionState, int]:
    """Return the state to send, and its version."""
    path = layout.state(tp.topic, tp.partition)
    state = cluster.states.get(tp)
    if state is None or path in cluster.damaged:
        state = PartitionState(NO_LEADER, -1, cluster.controller_epoch, [])
    return state, cluster.versions.get(path, -1)


def _metadata(
    cluster: ClusterState, tp: TopicPartition, replicas: list[int], shown: ShownTopic
) -> messages.UpdateMetadataRequest.UpdateMetadataPartitionState:
    state, version = _state(cluster, tp)
    brokers, broken = cluster.brokers, cluster.broken
    made = messages.UpdateMetadataRequest.UpdateMetadataPartitionState(
        partition_index=tp.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        isr_version=version,
        replicas=replicas,
        offline_replicas=[x for x in replicas if x not in brokers or (x, tp) in broken],
    )
    node = cluster.partition_nodes.get(tp) if cluster.level.resizes else None
    if node is not None:
        made.partition_epoch = node.partition_epoch
        if node.birth_epoch:
            made.birth_epoch, made.birth_offset = node.birth_epoch, node.birth_offset
            for parent, epoch in node.leader_epoch_after_creation.items():
                made.parent, made.leader_epoch_after_creation = parent, epoch
        # A shrink that is not published, or an undo of one, shows no retirement.
        if 0 <= node.retirement_epoch <= shown.resize_epoch:
            made.retirement_epoch = node.retirement_epoch
            for survivor, epoch in node.leader_epoch_before_deletion.items():
                made.survivor, made.leader_epoch_before_deletion = survivor, epoch
    return made


def _live(
    cluster: ClusterState, broker: int
) -> messages.UpdateMetadataRequest.UpdateMetadataBroker:
    request = messages.UpdateMetadataRequest
    node = cluster.brokers[broker]
    endpoints = [
        request.UpdateMetadataEndpoint(
            port=address.port,
            host=address.host,
            listener=address.name,
            security_protocol=PROTOCOL_NUMBERS.get(address.protocol, 0),
        )
        for address in addresses_of(node)
    ]
    return request.UpdateMetadataBroker(id=broker, endpoints=endpoints, rack=node.rack)


def _configs(cluster: ClusterState, kind: int, name: str) -> Mapping[str, str]:
    if kind == TOPIC:
        return cluster.topic_configs.get(name, {})
    return cluster.broker_configs.get(name or layout.ALL_BROKERS, {})
