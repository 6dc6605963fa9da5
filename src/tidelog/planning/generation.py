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
    for partition in partitions:
        if len(partition.replicas) > len(brokers):
            return (
                f"{partition.where} has {len(partition.replicas)} replicas, more than the "
                f"{len(brokers)} brokers of the list"
            )
    return None


def generate(partitions: Sequence[Assigned], brokers: Racks) -> Plan:
    """Return a proposal for all these partitions; each keeps its number of replicas.

    ``brokers`` are at least as many as a partition has replicas. The topics take turns: one begins
    at the broker on which the next partition of the former would begin.
    """
    by_topic: dict[str, list[Assigned]] = {}
    for partition in sorted(partitions, key=lambda partition: partition.where):
        by_topic.setdefault(partition.where.topic, []).append(partition)
    changes: list[Change] = []
    for some in by_topic.values():
        factor = max(len(partition.replicas) for partition in some)
        placed = place(brokers, len(some), factor, start=len(changes))
        changes += [
            # A prefix of a placement is in as many racks as it can be.
            Change(
                partition.where,
                partition.replicas,
                tuple(replicas[: len(partition.replicas)]),
                partition.size,
            )
            for partition, replicas in zip(some, placed, strict=True)
        ]
    return Plan(tuple(changes))
