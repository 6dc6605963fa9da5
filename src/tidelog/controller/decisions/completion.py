"""Incomplete topics: nodes without ids, counts, or the nodes of new partitions.

Owns what the controller fills in, and from which source. Old tools write ``/brokers/topics/T``
without tidelog's fields:

| a topic's node has no id, and | it gets |
|---|---|
| ``/tidelog/topics/T`` has it | that id: an old tool rewrote the node |
| its replicas have an id | that id |
| its partitions have no nodes: a tool has just created it | a new id |
| its replicas have none | a new id, marked as migrated: they adopt it |
| a broker that may have a replica has not registered yet | nothing yet; no FULL meanwhile |

Counts become the current count, once. A partition with a state and without a node has lost it, or
is older than partition epochs: its replicas tell which. It gets the epoch that they have, or the
next one when they have none, and keeps none while no broker has reported a replica of it. In a
topic that was resized such a node is damaged (``agreement``): its birth is not known.

A partition without any node is new: it gets its epoch and its first leader when one of its
brokers is present and none of them has a replica of it.
Sources: KIP-516 (migration), KIP-253 (counts and epochs), docs/design/metadata-store.md.
"""

from __future__ import annotations

from collections import Counter as Tally
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.external_counts import (
    first_unborn,
    surplus,
    taken_up,
    wanted,
)
from tidelog.controller.decisions.new_partitions import new_partitions
from tidelog.controller.decisions.shown_topics import shown_topic
from tidelog.controller.decisions.uncertain_replicas import written_once
from tidelog.metadata import layout
from tidelog.metadata.records import Counter, PartitionNode, TopicHistory, TopicNode
from tidelog.model.topics import TopicPartition


def complete(cluster: ClusterState, entropy: Entropy) -> Decision[list[str]]:
    """Return the writes that complete every topic's nodes; the answer has a line for each change.

    No writes while the store has gone back in time. Walks over all topics, and over the partitions
    of incomplete ones.
    """
    notes: list[str] = []
    writes: list[Write] = []
    if cluster.went_back is not None:
        return Decision(notes)
    start = epoch = cluster.counters.get(layout.PARTITION_EPOCH, 0)
    count = sum(len(node.partitions) for node in cluster.topics.values())
    lacks_states, lacks_nodes = len(cluster.states) < count, len(cluster.partition_nodes) < count
    for name, node in cluster.topics.items():
        if layout.topic_history(name) in cluster.damaged:
            continue
        completed = _completed(cluster, name, node, entropy)
        if completed is None:
            continue
        whole, history = completed
        added = _added(cluster, name, whole, history, entropy)
        if added is not None:
            writes += added[0]
            notes.append(added[1])
            continue
        if whole != node:
            writes.append(Put(layout.topic(name), whole))
            notes.append(f"the topic {name} was completed: {_differences(node, whole)}")
        if history != cluster.topic_histories.get(name):
            writes.append(Put(layout.topic_history(name), history))
        new = _newborn(cluster, name, whole) if lacks_states else {}
        if new:
            writes += new_partitions(cluster, name, new, epoch)
            epoch += len(new)
            notes.append(f"partitions {sorted(new)} of the topic {name} are new")
        for tp in without_epoch(cluster, name, whole) if lacks_nodes else ():
            reported = _reported_epoch(cluster, tp, _id_of(whole))
            if reported is None:
                continue
            if reported < 0:
                reported = epoch = epoch + 1
            else:
                notes.append(f"{tp} has its partition epoch {reported} again")
            writes.append(Put(layout.partition(*tp), PartitionNode(reported)))
    if epoch != start:
        # First: no two partitions get the same epoch.
        writes.insert(0, Put(layout.PARTITION_EPOCH, Counter(epoch)))
    return Decision(notes, tuple(written_once(cluster, writes)), splits=True)


def _completed(
    cluster: ClusterState, name: str, node: TopicNode, entropy: Entropy
) -> tuple[TopicNode, TopicHistory] | None:
    """Return both nodes as they should be; None while the topic's id is unknown."""
    history = cluster.topic_histories.get(name)
    count = len(node.partitions)
    if history is None:
        identity = _identity(cluster, name, node, entropy)
        if identity is None:
            return None
        # Below level 1.4 every topic is marked: new replicas are sent no id.
        migrated = identity[1] or not cluster.level.topic_ids
        history = TopicHistory(identity[0], count, migrated=migrated)
    if history.resize_epoch or history.resize is not None or cluster.level.resizes:
        # Its counts are its own (KIP-253): only fields that an old tool dropped are restored.
        initial = history.initial_partition_count
        undeleted = node.undeleted_partition_count
        if history.resize is not None:
            undeleted = history.resize.to_count
        elif not history.resize_epoch:
            undeleted = initial
        elif undeleted is None or undeleted > count:
            undeleted = _unretired(cluster, name, node, history)
    else:
        initial = undeleted = count
    if (node.topic_id, node.initial_partition_count, node.undeleted_partition_count) != (
        history.topic_id,
        initial,
        undeleted,
    ):
        node = msgspec.structs.replace(
            node,
            topic_id=history.topic_id,
            initial_partition_count=initial,
            undeleted_partition_count=undeleted,
        )
    if history.initial_partition_count != initial:
        history = msgspec.structs.replace(history, initial_partition_count=initial)
    return node, history


def _unretired(cluster: ClusterState, name: str, node: TopicNode, history: TopicHistory) -> int:
    """Return how many partitions take records, as the partitions' nodes say."""
    born = first_unborn(cluster, name, node, history)
    nodes = (cluster.partition_nodes.get(TopicPartition(name, index)) for index in range(born))
    return sum(stored is None or stored.retirement_epoch < 0 for stored in nodes)


def _added(
    cluster: ClusterState, name: str, node: TopicNode, history: TopicHistory, entropy: Entropy
) -> tuple[list[Write], str] | None:
    """Return what becomes of partitions that a tool added while no controller was active."""
    right = surplus(cluster, name, node, history)
    request = None if right is None else wanted(name, right, node)
    if right is None or request is None:
        return None
    draft = cluster.draft()
    draft.topics[name] = right
    writes, lines = taken_up(draft, request, entropy, 0)
    return writes or [Put(layout.topic(name), right)], lines


def _identity(
    cluster: ClusterState, name: str, node: TopicNode, entropy: Entropy
) -> tuple[str, bool] | None:
    """Return (id, migrated) of a topic without a record of its own; None: not known yet."""
    assigned = {broker for replicas in node.partitions.values() for broker in replicas}
    reports = [cluster.nameless.get(broker, {}) for broker in assigned]
    has_nameless = any(tp.topic == name for report in reports for tp in report)
    is_new = layout.partitions(name) not in cluster.versions
    own = _id_of(node)
    reports_of_ids = [cluster.inventories.get(broker, {}) for broker in assigned]
    if own is not None and any((own, x) in y for y in reports_of_ids for x in node.partitions):
        return node.topic_id or "", has_nameless
    if not is_new and assigned & cluster.presumed:
        # Also where the node has an id: the replicas may have another one (``agreement``).
        return None
    if node.topic_id is not None:
        return node.topic_id, has_nameless
    reported_id = _reported_id(cluster, name, assigned)
    if reported_id is not None:
        return layout.id_text(reported_id), has_nameless
    if is_new:
        return layout.id_text(entropy.new_uuid()), not cluster.level.topic_ids
    if has_nameless or assigned <= cluster.brokers.keys():
        return layout.id_text(entropy.new_uuid()), True
    return None


def _reported_id(cluster: ClusterState, name: str, assigned: set[int]) -> UUID | None:
    """Return the id that most replicas under this name have, the newest data among equals."""
    count: Tally[UUID] = Tally()
    newest: dict[UUID, tuple[int, int]] = {}
    for broker in assigned:
        for (topic_id, _), end in cluster.inventories.get(broker, {}).items():
            if cluster.held.get(topic_id) != name or topic_id in cluster.deletions:
                continue
            count[topic_id] += 1
            newest[topic_id] = max(newest.get(topic_id, (-1, -1)), _age(end))
    return max(count, key=lambda x: (count[x], newest[x], x), default=None)


def _age(end: LogEnd) -> tuple[int, int]:
    return end.leader_epoch, end.end_offset


def _newborn(cluster: ClusterState, name: str, node: TopicNode) -> dict[int, list[int]]:
    newborn = {}
    history = cluster.topic_histories.get(name)
    shown, end = shown_topic(node, history), len(node.partitions)
    if cluster.level.resizes and history is not None:
        end = first_unborn(cluster, name, node, history)
    for index, replicas in node.partitions.items():
        if not shown.shows(index) or index >= end:
            continue  # A step of a growth makes it.
        tp = TopicPartition(name, index)
        if tp in cluster.states or layout.partition(name, index) in cluster.versions:
            continue
        if layout.state(*tp) in cluster.damaged:
            # It is not new: a broker had a replica of it, and may be dead since.
            continue
        present = cluster.fit & set(replicas)
        if not present or cluster.presumed.intersection(replicas):
            continue
        # Of any incarnation: the partition has no node that says which one is present.
        if all(cluster.any_log_end(broker, tp, _id_of(node)) is None for broker in present):
            newborn[index] = list(replicas)
    return newborn


def without_epoch(cluster: ClusterState, name: str, node: TopicNode) -> list[TopicPartition]:
    """Return the partitions that are older than partition epochs: Kafka's own nodes are empty."""
    return [
        tp
        for tp in (TopicPartition(name, index) for index in node.partitions)
        if tp in cluster.states
        and tp not in cluster.partition_nodes
        and layout.partition(*tp) not in cluster.damaged
    ]


def _id_of(node: TopicNode) -> UUID | None:
    return None if node.topic_id is None else layout.parse_id(node.topic_id)


def _reported_epoch(cluster: ClusterState, tp: TopicPartition, topic_id: UUID | None) -> int | None:
    """Return the partition epoch that replicas have on their disks, -1 if they have none.

    None while nothing shows it: no broker that is assigned has reported a replica, and one of them
    has not reported yet.
    """
    hosts = cluster.hosts(tp)
    ends = [cluster.any_log_end(broker, tp, topic_id) for broker in hosts]
    epochs = [end.partition_epoch for end in ends if end is not None]
    if not epochs and not (cluster.brokers.keys() - cluster.presumed).issuperset(hosts):
        return None
    return max(epochs, default=-1)


def _differences(old: TopicNode, new: TopicNode) -> str:
    differences = []
    if old.topic_id != new.topic_id:
        differences.append(f"id {new.topic_id} instead of {old.topic_id}")
    if old.initial_partition_count != new.initial_partition_count:
        differences.append(f"{new.initial_partition_count} partitions at first")
    return ", ".join(differences) or "its counts"
