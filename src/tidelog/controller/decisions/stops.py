"""Replicas that a broker must stop: those of deleted topics, and those moved away from it.

Owns what follows from the nodes. The requests: see ``requests``; a confirmation: see
``deletion.confirm``. A call without topics walks over all.

| a replica of | leader epoch in the request (KIP-570) |
|---|---|
| a topic that is being deleted, in either queue | -2: it overrides every epoch |
| a partition that was moved away from the broker (``pending_stops``) | that of the decision |
| a partition that was removed (``pending_stops``) | the last one of its incarnation |

A replica that was moved away is stopped only when it is out of the ISR in the store: until then the
high watermark may wait for it (KIP-455). While a state node is damaged no replica of it is stopped.
A replica of a former incarnation is stopped whatever the state of the present one says; the stop
carries its partition epoch, so that it cannot hit the present one (KIP-253).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_ID, ClusterState
from tidelog.model.topics import TopicPartition

DELETED_EPOCH = -2
"""StopReplica's leader epoch for a topic that is being deleted (KIP-570)."""

ANY_PARTITION_EPOCH = -1
"""StopReplica's partition epoch for a replica of whichever incarnation."""


class Stop(NamedTuple):
    """One replica that a broker must stop, and with ``delete`` delete."""

    name: str
    topic_id: UUID
    partition: int
    leader_epoch: int
    delete: bool = True
    partition_epoch: int = ANY_PARTITION_EPOCH


def stops_of(
    cluster: ClusterState, broker: int, topics: Collection[str] | None = None
) -> list[Stop]:
    """Return the replicas that a broker still has to stop, by topic: of these topics, or all.

    O(what the topics owe, to all brokers).
    """
    stops: list[Stop] = []
    names = cluster.deletions_by_name.keys() if topics is None else sorted(topics)
    for name in names:
        for topic_id, deletion in cluster.deletions_by_name.get(name, {}).items():
            for index, brokers in sorted(deletion.partitions.items()):
                if broker in brokers:
                    stops.append(Stop(name, topic_id, index, DELETED_EPOCH))
    for name in sorted(cluster.marked if topics is None else cluster.marked & set(topics)):
        stops += _of_a_marked_topic(cluster, broker, name)
    for name in cluster.topic_histories if topics is None else sorted(topics):
        history = cluster.topic_histories.get(name)
        if history is None or (cluster.level.topic_ids and cluster.topic_id(name) == NO_ID):
            # While the id is unknown no stop may hit another topic of the name.
            continue
        if history.pending_stops and name not in cluster.marked:
            for index, noted in sorted(history.pending_stops.items()):
                if broker not in noted:
                    continue
                epochs = history.stop_partition_epochs.get(index, {})
                epoch = epochs.get(broker, ANY_PARTITION_EPOCH)
                tp = TopicPartition(name, index)
                if _is_former(cluster, tp, epoch) or _may_stop(cluster, broker, tp):
                    topic_id, leader_epoch = cluster.topic_id(name), noted[broker]
                    stop = Stop(name, topic_id, index, leader_epoch, partition_epoch=epoch)
                    stops.append(stop)
    return stops


def _may_stop(cluster: ClusterState, broker: int, tp: TopicPartition) -> bool:
    state = cluster.states.get(tp)
    return state is not None and broker not in state.isr and broker not in cluster.hosts(tp)


def _is_former(cluster: ClusterState, tp: TopicPartition, partition_epoch: int) -> bool:
    """Whether an incarnation was removed. A missing node alone is no proof (promise 20)."""
    if partition_epoch == ANY_PARTITION_EPOCH:
        return False
    node, history = cluster.partition_nodes.get(tp), cluster.topic_histories.get(tp.topic)
    if node is not None:
        return node.partition_epoch > partition_epoch
    if tp in cluster.states:
        return False
    former = None if history is None else history.former.get(tp.partition)
    return former is not None and former.partition_epoch >= partition_epoch


def epochs_of_notes(
    cluster: ClusterState, tp: TopicPartition, stops: Mapping[int, int]
) -> dict[int, int]:
    """Return the partition epochs for notes of stops, by broker; below level 1.5 new ones get none.

    A note that is there already keeps its own: it may be of a former incarnation.
    """
    history, node = cluster.topic_histories.get(tp.topic), cluster.partition_nodes.get(tp)
    noted = {} if history is None else history.pending_stops.get(tp.partition, {})
    stop_epochs = {} if history is None else history.stop_partition_epochs.get(tp.partition, {})
    epochs = {}
    for broker, leader_epoch in stops.items():
        if noted.get(broker) == leader_epoch:
            if broker in stop_epochs:
                epochs[broker] = stop_epochs[broker]
        elif node is not None and cluster.level.resizes:
            epochs[broker] = node.partition_epoch
    return epochs


def _of_a_marked_topic(cluster: ClusterState, broker: int, name: str) -> list[Stop]:
    node = cluster.topics.get(name)
    if node is None:
        return []
    confirmed = cluster.confirmed.get(name, set())
    return [
        Stop(name, cluster.topic_id(name), index, DELETED_EPOCH)
        for index in held_partitions(cluster, name)
        if (broker, index) not in confirmed and broker in holders(cluster, name, index)
    ]


def unconfirmed(cluster: ClusterState) -> Iterator[tuple[str, set[int]]]:
    """Yield each topic being deleted, in either queue, and the brokers that may hold replicas."""
    for node in cluster.deletions.values():
        yield node.name, {broker for brokers in node.partitions.values() for broker in brokers}
    for name in sorted(cluster.marked & cluster.topics.keys()):
        confirmed = cluster.confirmed.get(name, set())
        yield (
            name,
            {
                broker
                for index in held_partitions(cluster, name)
                for broker in holders(cluster, name, index)
                if (broker, index) not in confirmed
            },
        )


def held_partitions(cluster: ClusterState, name: str) -> list[int]:
    """Return the partitions of a topic, and those that were removed and are not stopped yet."""
    history = cluster.topic_histories.get(name)
    also = () if history is None else history.pending_stops.keys()
    return sorted(cluster.topics[name].partitions.keys() | also)


def holders(cluster: ClusterState, name: str, index: int) -> list[int]:
    """Return every broker that may have a replica: assigned, a target, or not stopped yet."""
    tp = TopicPartition(name, index)
    hosts = list(cluster.hosts(tp))
    history = cluster.topic_histories.get(name)
    also = {} if history is None else history.pending_stops.get(index, {})
    return hosts + sorted(set(also).difference(hosts))
