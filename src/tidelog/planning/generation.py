"""Proposals of new replicas for whole topics on given brokers, as Kafka's ``--generate``.

Owns the proposal: each topic is placed as if it were new, whatever its replicas are now, so most of
them move. A plan that moves little: see ``rebalancing``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.planning.placement import place
from tidelog.planning.plan import Assigned, Change, Plan, Racks


def why_not_generated(partitions: Sequence[Assigned], brokers: Racks) -> str | None:
    """Return why there is no proposal on these brokers, or None."""
    for each in partitions:
        if len(each.replicas) > len(brokers):
            return (
                f"{each.where} has {len(each.replicas)} replicas, more than the {len(brokers)} "
                "brokers of the list"
            )
    return None


def generate(partitions: Sequence[Assigned], brokers: Racks) -> Plan:
    """Return a proposal for all these partitions; each keeps its number of replicas.

    ``brokers`` are at least as many as a partition has replicas. The topics take turns: one begins
    at the broker on which the next partition of the former would begin.
    """
    by_topic: dict[str, list[Assigned]] = {}
    for each in sorted(partitions, key=lambda each: each.where):
        by_topic.setdefault(each.where.topic, []).append(each)
    changes: list[Change] = []
    for some in by_topic.values():
        factor = max(len(each.replicas) for each in some)
        placed = place(brokers, len(some), factor, start=len(changes))
        changes += [
            # A prefix of a placement is in as many racks as it can be.
            Change(each.where, each.replicas, tuple(replicas[: len(each.replicas)]), each.size)
            for each, replicas in zip(some, placed, strict=True)
        ]
    return Plan(tuple(changes))
