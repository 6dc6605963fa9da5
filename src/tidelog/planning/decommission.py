"""Plans that empty a broker: each of its replicas goes to another broker, leaders first.

Owns the choice of the new brokers: a rack without a replica first, then a machine without one, then
fewest replicas, then fewest bytes. The other replicas stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidelog.model.topics import TopicPartition
from tidelog.planning.plan import Assigned, Change, Plan, Racks, loads, span

NAMED = 3
"""The most partitions that a refusal names."""


def why_not_emptied(
    partitions: Sequence[Assigned], leaving: int, brokers: Collection[int]
) -> str | None:
    """Return why the broker ``leaving`` cannot be emptied onto these brokers, or None."""
    left = set(brokers) - {leaving}
    stuck = [
        str(each.where)
        for each in partitions
        if leaving in each.replicas and left.issubset(each.replicas)
    ]
    if not stuck:
        return None
    return (
        f"broker {leaving} cannot be emptied: {_some(stuck)} would have fewer replicas, as no "
        "other broker may take one; brokers that may: "
        f"{', '.join(map(str, sorted(left))) or 'none'}; start another broker, or give these "
        "partitions fewer replicas first"
    )


def why_not_copied(
    in_sync: Mapping[TopicPartition, Collection[int]], leaving: int, alive: Collection[int]
) -> str | None:
    """Return why partitions of the broker ``leaving`` cannot be copied, or None.

    ``in_sync`` has the ISR of each of them: a move of one without a live member would wait forever.
    """
    stuck = sorted(where for where, isr in in_sync.items() if not set(isr) & set(alive))
    if not stuck:
        return None
    needed = sorted({broker for where in stuck for broker in in_sync[where]})
    return (
        f"broker {leaving} cannot be emptied: of {_some(list(map(str, stuck)))} no replica in sync "
        f"is on a live broker, so there is nothing to copy; start broker "
        f"{', '.join(map(str, needed)) or leaving} first"
    )


def _some(partitions: Sequence[str]) -> str:
    others = f" and {len(partitions) - NAMED} more" if len(partitions) > NAMED else ""
    return f"{', '.join(partitions[:NAMED])}{others}"


def empty(
    partitions: Sequence[Assigned], leaving: int, brokers: Collection[int], racks: Racks
) -> Plan:
    """Return the plan that takes every replica off a broker; ``why_not_emptied`` is None for it.

    ``brokers`` may get replicas; ``racks`` has every known broker. Each replica keeps its place in
    the list, so the broker that takes a preferred leader's replica is the preferred leader.
    """
    left = sorted(set(brokers) - {leaving})
    load = loads(partitions, left)
    counts = {broker: load[broker].replicas for broker in left}
    sizes = {broker: load[broker].size for broker in left}
    # The largest first: the small ones then even out what those left uneven.
    moving = sorted(
        (each for each in partitions if leaving in each.replicas),
        key=lambda each: (each.replicas[0] != leaving, -each.size, each.where),
    )
    changes = []
    for each in moving:
        others = [broker for broker in each.replicas if broker != leaving]
        chosen = min(
            (broker for broker in left if broker not in each.replicas),
            key=lambda b: (-span([*others, b], racks), counts[b], sizes[b], b),
        )
        counts[chosen] += 1
        sizes[chosen] += each.size
        after = tuple(chosen if broker == leaving else broker for broker in each.replicas)
        changes.append(Change(each.where, each.replicas, after, each.size))
    return Plan(tuple(changes))
