"""New partitions: the checks of their number and replicas, and their nodes in the store.

Owns what ``creation`` and ``growth`` share: limits, Kafka's error codes for counts and assignments,
and the first state of a partition. On which brokers replicas go: see ``planning.placement``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.cordons import open_racks, why_cordoned
from tidelog.controller.decisions.decision import Put, RequestRefusal, Write
from tidelog.controller.decisions.uncertain_replicas import forgotten
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionNode, PartitionState
from tidelog.model.configs.cordoned import CORDONED_LOG_DIRS
from tidelog.model.errors import ErrorCode

MAX_PARTITIONS = 50_000
"""The most partitions that one topic may have and one request may create: it keeps a request from
filling the store, and is far above what a topic needs."""


MOST_AT_ONCE = 10_000
"""The most partitions that one topic gets at once, as in Kafka (KRaft): it is one decision, whose
turns of the event loop take some 5 us per partition each."""


MAX_REPLICATION_FACTOR = 32767


def new_partitions(
    cluster: ClusterState, name: str, assignment: dict[int, list[int]], partition_epoch: int
) -> list[Write]:
    """Return the nodes of new partitions; the first one's epoch is ``partition_epoch`` + 1.

    Their leader epochs begin above those of deleted topics of this name that still have replicas.
    A broker that has not registered with this controller yet leads none and is in no ISR; if a
    partition has only such brokers, ``completion`` gives it its nodes once one has registered.
    """
    writes: list[Write] = []
    if name in cluster.past.uncertain.topics:
        # A note is of a former partition of this name.
        writes += forgotten(cluster, name, assignment)
    electable = cluster.electable
    former = cluster.deletions_by_name.get(name, {}).values()
    for index, replicas in assignment.items():
        partition_epoch += 1
        isr = cluster.first_isr(replicas, electable)
        if not isr and cluster.presumed.intersection(replicas):
            continue
        isr = isr or list(replicas[:1])
        # A broker below level 1.4 fetches without a topic id, and may still have a replica of a
        # deleted topic: only the leader epoch shows that it is no follower of this partition.
        leader_epoch = 1 + max((node.leader_epochs.get(index, -1) for node in former), default=-1)
        state = PartitionState(isr[0], leader_epoch, cluster.controller_epoch, isr)
        writes.append(Put(layout.partition(name, index), PartitionNode(partition_epoch)))
        writes.append(Put(layout.state(name, index), state))
    return writes


def why_not_numbers(cluster: ClusterState, count: int, factor: int) -> RequestRefusal | None:
    """Return why a topic cannot have this partition count and replication factor, or None."""
    if not 1 <= count <= MAX_PARTITIONS:
        sentence = f"The number of partitions must be from 1 to {MAX_PARTITIONS}."
        return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)
    if not 1 <= factor <= MAX_REPLICATION_FACTOR:
        sentence = "The replication factor must be larger than 0."
        return RequestRefusal(ErrorCode.INVALID_REPLICATION_FACTOR, sentence)
    there = len(cluster.brokers)
    if factor > there:
        sentence = f"A replication factor of {factor} needs as many brokers; {there} are there."
        return RequestRefusal(ErrorCode.INVALID_REPLICATION_FACTOR, sentence)
    opened = open_racks(cluster)
    if factor > len(opened):
        closed = sorted(cluster.brokers.keys() - opened.keys())
        sentence = (
            f"A replication factor of {factor} needs as many brokers that get new replicas; of "
            f"{there} there are, {CORDONED_LOG_DIRS} closes {', '.join(map(str, closed))}."
        )
        return RequestRefusal(ErrorCode.INVALID_REPLICATION_FACTOR, sentence)
    return None


def why_too_many(new: int) -> RequestRefusal | None:
    """Return why a topic cannot get this number of partitions at once, or None."""
    if new <= MOST_AT_ONCE:
        return None
    sentence = (
        f"Excessively large number of partitions per request: a topic gets at most {MOST_AT_ONCE} "
        "at once. Add more of them later (CreatePartitions)."
    )
    return RequestRefusal(ErrorCode.INVALID_PARTITIONS, sentence)


def why_not_assigned(
    cluster: ClusterState, replicas: Sequence[Sequence[int]], factor: int
) -> RequestRefusal | None:
    """Return why partitions cannot have these replicas, ``factor`` each, or None."""
    opened = open_racks(cluster)
    for brokers in replicas:
        if not brokers:
            return bad_assignment("a partition has no replicas")
        if len(set(brokers)) != len(brokers):
            return bad_assignment(f"a broker is named twice in {list(brokers)}")
        unknown = [broker for broker in brokers if broker not in cluster.brokers]
        if unknown:
            return bad_assignment(f"there is no live broker {unknown[0]}")
        closed = [broker for broker in brokers if broker not in opened]
        if closed:
            return bad_assignment(why_cordoned(closed[0]))
        if len(brokers) != factor:
            return bad_assignment("all partitions must have the same number of replicas")
    return None


def bad_assignment(clause: str) -> RequestRefusal:
    """Return the refusal of a replica assignment; ``clause`` says what is wrong with it."""
    sentence = f"The replica assignment cannot be used: {clause}."
    return RequestRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, sentence)
