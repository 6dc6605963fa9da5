"""Plans to move replicas: partitions with their replicas, the changes of a plan, and its cost.

Owns these values and the load of each broker. Not the choice of the changes: see ``rebalancing``,
``decommission`` and ``generation``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.model.racks import Machine, machine_of, rack_of
from tidelog.model.topics import TopicPartition

Racks = Mapping[int, str | None]
"""Brokers with their ``broker.rack``. Brokers without a rack count as one rack."""

ONE_RACK = 1 << 16
"""What one more rack counts for in a span: more than any number of machines of one partition."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """One partition: its replicas, the preferred leader first, and the bytes of each replica."""

    where: TopicPartition
    replicas: tuple[int, ...]
    size: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """The new replicas of one partition."""

    where: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int = 0

    @property
    def adding(self) -> tuple[int, ...]:
        """The brokers that get a replica: each copies ``size`` bytes."""
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        """The brokers that lose their replica."""
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def moves_leader(self) -> bool:
        """Whether the preferred leader is another broker afterwards."""
        return self.before[:1] != self.after[:1]


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes, at most one for each partition, in the order in which to make them."""

    changes: tuple[Change, ...] = ()

    @property
    def copied_replicas(self) -> int:
        """How many replicas are copied."""
        return sum(len(change.adding) for change in self.changes)

    @property
    def copied_bytes(self) -> int:
        """How many bytes are copied."""
        return sum(len(change.adding) * change.size for change in self.changes)

    @property
    def moved_leaders(self) -> int:
        """How many partitions get another preferred leader."""
        return sum(change.moves_leader for change in self.changes)

    def applied(self, partitions: Iterable[Assigned]) -> list[Assigned]:
        """Return partitions as they are after the plan."""
        after = {change.where: change.after for change in self.changes}
        return [
            Assigned(each.where, after.get(each.where, each.replicas), each.size)
            for each in partitions
        ]


@dataclass(frozen=True, slots=True)
class Load:
    """What one broker has: replicas, preferred leaders, and bytes."""

    replicas: int = 0
    leaders: int = 0
    size: int = 0


def loads(partitions: Iterable[Assigned], brokers: Collection[int]) -> dict[int, Load]:
    """Return the load of each of these brokers. O(replicas)."""
    replicas, leaders, sizes = (dict.fromkeys(brokers, 0) for _ in range(3))
    for each in partitions:
        for place, broker in enumerate(each.replicas):
            if broker in replicas:
                replicas[broker] += 1
                leaders[broker] += place == 0
                sizes[broker] += each.size
    return {b: Load(replicas[b], leaders[b], sizes[b]) for b in sorted(replicas)}


def span(replicas: Iterable[int], racks: Racks) -> int:
    """Return how far apart the replicas are: the racks, times ``ONE_RACK``, and the machines.

    Those on unknown brokers do not count.
    """
    known = [broker for broker in replicas if broker in racks]
    return len(_racks(known, racks)) * ONE_RACK + len(_machines(known, racks))


def widest(replicas: Sequence[int], brokers: Collection[int], racks: Racks) -> int:
    """Return the span that these replicas could have if each may move to these brokers."""
    known = [broker for broker in replicas if broker in racks]
    within_reach = {*known, *brokers}
    most_racks = min(len(known), len(_racks(within_reach, racks)))
    # One replica in each of so many racks leaves all machines to the others.
    return most_racks * ONE_RACK + min(len(known), len(_machines(within_reach, racks)))


def _racks(brokers: Iterable[int], racks: Racks) -> set[str | None]:
    return {rack_of(racks[broker]) for broker in brokers}


def _machines(brokers: Iterable[int], racks: Racks) -> set[Machine]:
    return {machine_of(broker, racks[broker]) for broker in brokers}
