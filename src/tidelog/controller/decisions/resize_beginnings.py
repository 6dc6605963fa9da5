"""When a resize closes its first partition: its brokers have responded. Pure (KIP-253).

Owns which brokers a plan of which nothing is written waits for. What a plan does then: see
``resizing``. Which brokers have responded: see ``resizes``.

A resize closes every partition of a topic before it opens them again, so a frozen broker would keep
all keys waiting until it is suspected. Each broker whose replica a fence, a seal or a birth needs
must therefore have responded to a request that was sent after the plan was written
(docs/decisions/0108). Until then the plan closes nothing.
"""

from __future__ import annotations

from collections.abc import Set

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.metadata.records import ResizeKind, ResizePlan, ResizeStep
from tidelog.model.topics import TopicPartition

FIRST_STEPS = {
    ResizeKind.GROW: ResizeStep.FENCE,
    ResizeKind.SHRINK: ResizeStep.SEAL,
    ResizeKind.SAME: ResizeStep.FENCE,
}
"""The step that closes the first partitions; an undo opens them, and waits for no broker."""


def is_unbegun(plan: ResizePlan) -> bool:
    """Return whether a plan has closed no partition yet."""
    is_first = FIRST_STEPS.get(plan.kind) is plan.step and not plan.cursor
    return is_first and not plan.published


def concerned(plan: ResizePlan) -> range:
    """Return all partitions that have to commit something in the course of a plan."""
    return range(max(plan.from_count, plan.to_count))


def held_up(
    cluster: ClusterState, name: str, plan: ResizePlan, silent: Set[int]
) -> dict[int, Set[int]]:
    """Return the partitions for which an unbegun plan waits, each with those of the ``silent``
    brokers that lead it, are in its ISR, or get a replica of it when it is born."""
    held: dict[int, Set[int]] = {}
    for index in concerned(plan) if silent and is_unbegun(plan) else ():
        tp = TopicPartition(name, index)
        state = cluster.states.get(tp)
        members = cluster.replicas(tp) if state is None else (state.leader, *state.isr)
        if not silent.isdisjoint(members):
            held[index] = silent & set(members)
    return held
