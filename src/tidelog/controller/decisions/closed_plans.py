"""Plans that wait while the partitions of their topic are closed, and for which brokers. Pure.

Owns two questions. All producers of such a topic wait, so a broker that holds its plan up is
suspected sooner, if every plan under way can end without it (docs/decisions/0136). What a plan does
next: see ``resizing``.
"""

from __future__ import annotations

from collections.abc import Set

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.machines import missing_machines
from tidelog.controller.decisions.resize_beginnings import concerned, is_unbegun
from tidelog.controller.decisions.resizing import UNDOABLE, missing_of, reported_of
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


def can_spare(cluster: ClusterState, brokers: Set[int]) -> bool:
    """Return whether no resize would be undone if these brokers were suspected now.

    Each partition that has still to commit something needs another leader in sync, and as many
    replicas in sync as acks=all needs: a replica that catches up does not count. O(partitions of
    the topics that are resized).
    """
    electable = cluster.electable - brokers
    return all(_can_end(cluster, name, electable) for name in cluster.resizing)


def _can_end(cluster: ClusterState, name: str, electable: Set[int]) -> bool:
    history = cluster.topic_histories.get(name)
    plan = None if history is None else history.resize
    if plan is None or name not in cluster.topics or plan.published:
        return True
    if plan.step not in UNDOABLE[plan.kind]:
        return True
    done = () if is_unbegun(plan) else reported_of(cluster, name, plan)
    configs = cluster.resolve(name).configs
    for index in concerned(plan):
        if index in done:
            continue
        tp = TopicPartition(name, index)
        replicas, state = cluster.replicas(tp), cluster.states.get(tp)
        members = replicas if state is None else state.isr
        left = [x for x in members if x in electable and (x, tp) not in cluster.broken]
        if not left or len(left) < min(configs.min_insync_replicas, len(replicas)):
            return False
        if missing_machines(cluster, left, configs.min_insync_machines, len(replicas)):
            return False
    return True
