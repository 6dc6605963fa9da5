"""The requests of a control channel, built from the committed state at the moment of sending.

Owns what a broker is told at level 1.4 (LeaderAndIsr v5, StopReplica v4, UpdateMetadata v7,
UpdateConfigs v0); when it is told is ``outbox``. Pure: state in, messages out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_ID, NO_LEADER, Cluster
from tidelog.controller.decisions.registration import Address, addresses_of
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

LEADER_AND_ISR_VERSION = 5
STOP_REPLICA_VERSION = 4
UPDATE_METADATA_VERSION = 7
INCREMENTAL, FULL = 1, 2
"""Types of LeaderAndIsr v5 (KIP-516)."""

DELETED_EPOCH = -2
"""StopReplica's leader epoch for a topic that is being deleted (KIP-570)."""

LEADER_DURING_DELETE = -2
"""UpdateMetadata's leader of a partition that is gone."""

TOPIC, BROKER = 2, 4
"""Entity types of UpdateConfigs: the numbers of Kafka's ConfigResource."""

PROTOCOL_NUMBERS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
PROTOCOL_NAMES = {number: name for name, number in PROTOCOL_NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose requests these are, and the listener that brokers use among themselves."""

    controller_id: int
    inter_broker_listener: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A topic that is no longer there: brokers forget these partitions of it."""

    name: str
    topic_id: UUID
    partitions: tuple[int, ...]


def why_no_full(cluster: Cluster) -> str | None:
    """Return why nothing may be sent that could make a partition stale (promise 20), or None."""
    if cluster.went_back is not None:
        return cluster.went_back
    for path, damaged in cluster.damaged.items():
        if path.rpartition("/")[0] == layout.TOPICS:
            return str(damaged)
    for name in cluster.topics:
        if cluster.topic_id(name) == NO_ID:
            return f"The topic {name} has no id yet."
    return None


def inter_broker_address(cluster: Cluster, broker: int, listener: str) -> Address | None:
    """Return where a registered broker takes inter-broker requests."""
    node = cluster.brokers.get(broker)
    if node is None:
        return None
    addresses = addresses_of(node)
    named = [address for address in addresses if address.name == listener]
    return next(iter(named or addresses), None)


def leader_and_isr(
    cluster: Cluster, sender: Sender, broker: int, places: Iterable[TopicPartition], kind: int
) -> messages.LeaderAndIsrRequest:
    """Build LeaderAndIsr v5 for the partitions among ``places`` that the broker has replicas of.

    A partition whose state node is damaged, or not there, stands with leader -1 and epoch -1.
    """
    request = messages.LeaderAndIsrRequest
    by_topic: dict[str, list[TopicPartition]] = {}
    for where in places:
        if broker in cluster.replicas(where):
            by_topic.setdefault(where.topic, []).append(where)
    leaders: set[int] = set()
    topics = []
    for name, wheres in by_topic.items():
        memory = cluster.memories.get(name)
        debts = {} if memory is None else memory.unclean
        states = []
        for where in sorted(wheres):
            state = _state(cluster, where)
            leaders.add(state.leader)
            version = cluster.isr_version(where)
            states.append(
                request.LeaderAndIsrPartitionState(
                    partition_index=where.partition,
                    controller_epoch=state.controller_epoch,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    isr=state.isr,
                    isr_version=version,
                    replicas=cluster.replicas(where),
                    target_replicas=state.target_replicas,
                    is_new=version == 0,
                    is_unclean_leader=state.is_unclean_leader,
                    has_debt=where.partition in debts,
                )
            )
        topics.append(
            request.LeaderAndIsrTopicState(
                topic_name=name,
                topic_id=cluster.topic_id(name),
                partition_states=states,
                migrated=memory is not None and memory.migrated,
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
        broker_epoch=cluster.brokers[broker].broker_epoch,
        type=kind,
        topic_states=topics,
        live_leaders=live,
    )


def update_metadata(
    cluster: Cluster,
    sender: Sender,
    broker: int,
    places: Iterable[TopicPartition],
    gone: Iterable[Gone] = (),
) -> messages.UpdateMetadataRequest:
    """Build UpdateMetadata v7: live brokers always, the partitions named, and topics that went.

    The first one of a channel names every partition: the broker replaces what it knew.
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
    by_topic: dict[str, list[TopicPartition]] = {}
    for where in places:
        if cluster.replicas(where):
            by_topic.setdefault(where.topic, []).append(where)
    for name, wheres in by_topic.items():
        states = [_metadata(cluster, where) for where in sorted(wheres)]
        topic_id = cluster.topic_id(name)
        topics.append(request.UpdateMetadataTopicState(name, topic_id, -1, -1, 0, states))
    return request(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=cluster.brokers[broker].broker_epoch,
        topic_states=topics,
        live_brokers=[_live(cluster, node_id) for node_id in sorted(cluster.brokers)],
    )


def update_configs(
    cluster: Cluster, sender: Sender, broker: int, entities: Collection[tuple[int, str]] | None
) -> messages.UpdateConfigsRequest:
    """Build UpdateConfigs: the whole set of each entity, an empty one for what has none any more.

    ``entities`` None: everything that this broker must know, to replace what it knew.
    """
    request = messages.UpdateConfigsRequest
    if entities is None:
        entities = [(TOPIC, name) for name in cluster.topic_configs]
        entities += [(BROKER, ""), (BROKER, str(broker))]
    made = []
    for kind, name in sorted(entities):
        found = _configs(cluster, kind, name)
        configs = [request.Config(key, value) for key, value in sorted(found.items())]
        made.append(request.Entity(kind, name, configs))
    return request(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=cluster.brokers[broker].broker_epoch,
        store_revision=cluster.revision,
        entities=made,
    )


def stop_replica(
    cluster: Cluster, sender: Sender, broker: int, doomed: Mapping[UUID, Collection[int]]
) -> messages.StopReplicaRequest:
    """Build StopReplica v4 that deletes partitions of deleted topics (KIP-570: epoch -2)."""
    request = messages.StopReplicaRequest
    topics = []
    for topic_id, indexes in doomed.items():
        states = [
            request.StopReplicaPartitionState(index, DELETED_EPOCH, True)
            for index in sorted(indexes)
        ]
        name = cluster.deletions[topic_id].name
        topics.append(request.StopReplicaTopicState(name, topic_id, states))
    return request(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=cluster.brokers[broker].broker_epoch,
        topic_states=topics,
    )


def open_control_channel(
    cluster: Cluster, sender: Sender, broker: int, number: int
) -> messages.OpenControlChannelRequest:
    """Build the first request of a channel."""
    return messages.OpenControlChannelRequest(
        controller_id=sender.controller_id,
        controller_epoch=cluster.controller_epoch,
        broker_epoch=cluster.brokers[broker].broker_epoch,
        channel_number=number,
        store_revision=cluster.revision,
    )


def _state(cluster: Cluster, where: TopicPartition) -> PartitionState:
    state = cluster.states.get(where)
    if state is None or layout.state(*where) in cluster.damaged:
        return PartitionState(NO_LEADER, -1, cluster.controller_epoch, [])
    return state


def _metadata(
    cluster: Cluster, where: TopicPartition
) -> messages.UpdateMetadataRequest.UpdateMetadataPartitionState:
    state = _state(cluster, where)
    replicas = cluster.replicas(where)
    return messages.UpdateMetadataRequest.UpdateMetadataPartitionState(
        partition_index=where.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        isr_version=cluster.isr_version(where),
        replicas=replicas,
        offline_replicas=[
            x for x in replicas if x not in cluster.brokers or (x, where) in cluster.broken
        ],
    )


def _live(cluster: Cluster, broker: int) -> messages.UpdateMetadataRequest.UpdateMetadataBroker:
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


def _configs(cluster: Cluster, kind: int, name: str) -> Mapping[str, str]:
    if kind == TOPIC:
        return cluster.topic_configs.get(name, {})
    return cluster.broker_configs.get(name or layout.ALL_BROKERS, {})
