"""Preferred-leader rebalance: leadership returns when a broker leads too few of its partitions.

Owns the choice of partitions. The election: see ``requested_elections``. Source: Kafka's
``auto.leader.rebalance.enable``: a broker is out of balance when more than
``leader.imbalance.per.broker.percentage`` of the partitions that prefer it are led by another.
"""

from __future__ import annotations

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.model.admin_requests import ElectionType
from tidelog.model.topics import TopicPartition


def imbalanced(cluster: ClusterState, percentage: int) -> list[TopicPartition]:
    """Return the partitions whose preferred replica should lead and can, sorted.

    Partitions without a leader, under reassignment, of a topic that is being resized, or whose
    preferred replica is not in sync and fit are left alone. Walks over all partitions.
    """
    preferring: dict[int, int] = {}
    elsewhere: dict[int, list[TopicPartition]] = {}
    for name, node in cluster.topics.items():
        for index, replicas in node.partitions.items():
            preferred = replicas[0]
            preferring[preferred] = preferring.get(preferred, 0) + 1
            state = cluster.states.get(TopicPartition(name, index))
            if state is not None and state.leader != preferred:
                elsewhere.setdefault(preferred, []).append(TopicPartition(name, index))
    able = cluster.fit - cluster.presumed
    return sorted(
        tp
        for preferred, places in elsewhere.items()
        if preferred in able and 100 * len(places) > percentage * preferring[preferred]
        for tp in places
        if _can_lead(cluster, tp, preferred)
    )


def rebalance(cluster: ClusterState, percentage: int) -> Decision[list[TopicPartition]]:
    """Move leadership back where a broker is out of balance; the answer has those partitions."""
    places = imbalanced(cluster, percentage)
    decision = elect_on_request(cluster, ElectionType.PREFERRED, places)
    moved = [tp for tp, refusal in decision.answer.items() if refusal is None]
    return Decision(moved, decision.writes, splits=True)


def _can_lead(cluster: ClusterState, tp: TopicPartition, preferred: int) -> bool:
    state = cluster.states[tp]
    return (
        state.leader != NO_LEADER
        and preferred in state.isr
        and state.target_replicas is None
        and (preferred, tp) not in cluster.broken
        and tp.topic not in cluster.marked
        and tp.topic not in cluster.resizing
    )
