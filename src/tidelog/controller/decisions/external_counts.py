"""Partition counts that another program wrote at level 1.5: requests for a resize like any other.

Owns which count such a write asks for, and the node without it. Which requests are refused: see
``resize_requests``. Other external changes: see ``external_changes``. Pure (KIP-253).

| written into ``/brokers/topics/T`` | result |
|---|---|
| more partitions | a growth to as many, with the replicas that it names |
| a smaller ``undeleted_partition_count`` | a shrink to it, never a forced one |
| any other count | the former one is restored |
| the request is refused | the former node is restored, with the reason |
| while no controller was active: more partitions | the same, once their brokers have registered |
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import RequestRefusal, Write
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.growth import Growth
from tidelog.controller.decisions.resize_requests import begun, count_of
from tidelog.metadata import layout
from tidelog.metadata.records import TopicHistory, TopicNode
from tidelog.model.topics import TopicPartition


def without_counts(present: TopicNode, written: TopicNode) -> TopicNode:
    """Return a written node with the partitions and counts that were known."""
    return msgspec.structs.replace(
        written,
        partitions=present.partitions,
        initial_partition_count=present.initial_partition_count,
        undeleted_partition_count=present.undeleted_partition_count,
    )


def wanted(name: str, present: TopicNode, written: TopicNode) -> Growth | None:
    """Return the request that another program's node stands for, or None."""
    new = [index for index in sorted(written.partitions) if index not in present.partitions]
    if new:
        replicas = tuple(tuple(written.partitions[index]) for index in new)
        return Growth(name, len(present.partitions) + len(new), replicas)
    count = written.undeleted_partition_count
    if count is not None and count < count_of(present):
        return Growth(name, count)
    return None


def taken_up(
    cluster: ClusterState, request: Growth, entropy: Entropy, now_ms: int
) -> tuple[list[Write], str]:
    """Return the writes of an accepted request, or none, and a line for the log.

    The node in ``cluster`` is the one without the written counts.
    """
    path = layout.topic(request.name)
    made = begun(cluster, request, entropy, now_ms)
    if isinstance(made, RequestRefusal):
        sentence = (
            f"{path} was rewritten with {request.count} partitions, and the former node is "
            f"restored: {made.sentence}"
        )
        return [], sentence
    return made, f"{path} was rewritten: the topic gets {request.count} partitions"


def surplus(
    cluster: ClusterState, name: str, node: TopicNode, history: TopicHistory
) -> TopicNode | None:
    """Return a topic's node without partitions that were added while no controller was active.

    None if there are none, or if they cannot be judged yet: a broker that may have data of one has
    not registered, or has data of one (promise 20).
    """
    if not cluster.level.resizes or history.resize is not None:
        return None
    first = first_unborn(cluster, name, node, history)
    new = [index for index in node.partitions if index >= first]
    if not new or any(not _is_new(cluster, name, x, node.partitions[x]) for x in new):
        return None
    kept = {index: replicas for index, replicas in node.partitions.items() if index < first}
    return msgspec.structs.replace(node, partitions=kept)


def first_unborn(cluster: ClusterState, name: str, node: TopicNode, history: TopicHistory) -> int:
    """Return the lowest partition that no resize has made, at level 1.5.

    One that has lost one of its nodes was made: it would be taken out of its topic, with its data.
    """
    if not history.resize_epoch:
        return history.initial_partition_count
    index = len(node.partitions)
    while index > history.initial_partition_count:
        tp = TopicPartition(name, index - 1)
        paths = (layout.partition(*tp), layout.state(*tp))
        if tp in cluster.partition_nodes or not cluster.damaged.keys().isdisjoint(paths):
            break
        index -= 1
    return index


def _is_new(cluster: ClusterState, name: str, index: int, replicas: Sequence[int]) -> bool:
    tp = TopicPartition(name, index)
    return cluster.presumed.isdisjoint(replicas) and all(
        cluster.log_end(broker, tp) is None for broker in replicas
    )
