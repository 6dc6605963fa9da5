"""Plans that wait while the partitions of their topic are closed, and for which brokers. Pure.

Owns the question alone: all producers of such a topic wait, so a broker that holds its plan up is
suspected sooner (docs/decisions/0136). What a plan does next: see ``resizing``.
"""

from __future__ import annotations

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.resize_beginnings import is_unbegun
from tidelog.controller.decisions.resizing import UNDOABLE, missing_of
from tidelog.metadata.records import ResizePlan
from tidelog.model.topics import TopicPartition


def is_closed(cluster: ClusterState, name: str, plan: ResizePlan) -> bool:
    """Return whether this is the present plan of a topic, and has closed partitions."""
    history = cluster.topic_histories.get(name)
    if history is None or history.resize != plan or plan.published:
        return False
    return plan.step in UNDOABLE[plan.kind] and not is_unbegun(plan)


def holders_up(cluster: ClusterState, name: str, plan: ResizePlan) -> set[int]:
    """Return the brokers that lead, or are in the ISR of, the partitions whose fence or seal a plan
    waits for. O(missing)."""
    brokers: set[int] = set()
    for index in missing_of(cluster, name, plan):
        state = cluster.states.get(TopicPartition(name, index))
        if state is not None:
            brokers.update((state.leader, *state.isr))
    return brokers
