"""The layout of a cluster while a plan is made: replicas by broker, with the measures to improve.

Owns the counts, kept up to date by each change. Not which change to make: see ``rebalancing``.

The imbalance is a tuple, compared from the left; every part is 0 or minimal when nothing is left to
do:

| part | what it sums up |
|---|---|
| racks | by how many racks, then machines, partitions span fewer than they could |
| replicas | the squares of the replicas of each broker |
| leaders | the squares of the preferred leaders of each broker |
| bytes | the squares of the bytes of each broker above or below the mean by more than 10 % |
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Sequence

from tidelog.model.topics import TopicPartition
from tidelog.planning.plan import Assigned, Racks, span, widest

TOLERANCE = 10
"""The mean divided by this is how far a broker's bytes may be from it."""

Imbalance = tuple[int, int, int, int]
Sized = tuple[int, TopicPartition]


class ReplicaLayout:
    """The replicas of all partitions; ``brokers`` are those among which replicas may move."""

    def __init__(
        self,
        partitions: Sequence[Assigned],
        brokers: Collection[int],
        racks: Racks,
        fixed: Collection[TopicPartition] = (),
    ) -> None:
        self.brokers = sorted(brokers)
        self.racks = racks
        self.fixed = frozenset(fixed)
        self.replicas: dict[TopicPartition, tuple[int, ...]] = {}
        self.sizes = {each.where: each.size for each in partitions}
        self.counts = dict.fromkeys(self.brokers, 0)
        self.leaders = dict.fromkeys(self.brokers, 0)
        self.bytes = dict.fromkeys(self.brokers, 0)
        self.on: dict[int, list[Sized]] = {broker: [] for broker in self.brokers}
        """The partitions of each broker that may change, by size."""
        self.led: dict[tuple[int, int], set[Sized]] = defaultdict(set)
        """By (leader, other replica): partitions that may change to be led by the other one."""
        self.narrow: set[TopicPartition] = set()
        """Partitions that span fewer racks or machines than they could."""
        self._versions = dict.fromkeys(self.brokers, 0)
        self._stuck: dict[tuple[int, int], int] = {}
        self._shortfall = self._total = 0
        for each in partitions:
            self.replicas[each.where] = each.replicas
            self._count(each.where, 1)
            if each.where not in self.fixed:
                self._list(each.where)

    def change(self, where: TopicPartition, replicas: Sequence[int]) -> None:
        """Give a partition other replicas."""
        item = (self.sizes[where], where)
        self._count(where, -1)
        before = self.replicas[where]
        for broker in before:
            if broker in self.on:
                del self.on[broker][bisect_left(self.on[broker], item)]
                self.led[before[0], broker].discard(item)
        self.replicas[where] = tuple(replicas)
        self._count(where, 1)
        self._list(where)
        for broker in {*before, *replicas}.intersection(self._versions):
            self._versions[broker] += 1

    def note_stuck(self, source: int, target: int) -> None:
        """Note that no partition of ``source`` may move to ``target`` until one changes."""
        self._stuck[source, target] = self._versions[source]

    def is_stuck(self, source: int, target: int) -> bool:
        """Return whether that was noted and still holds."""
        return self._stuck.get((source, target)) == self._versions[source]

    def replaced(self, where: TopicPartition, old: int, new: int) -> tuple[int, ...]:
        """Return the replicas with one broker in the place of another."""
        return tuple(new if broker == old else broker for broker in self.replicas[where])

    def may_replace(self, where: TopicPartition, old: int, new: int) -> bool:
        """Return whether ``new`` may have the replica of ``old``: no rack or machine is lost."""
        if new in self.replicas[where]:
            return False
        return self.span_after(where, old, new) >= self.span(where)

    def span(self, where: TopicPartition) -> int:
        """Return the span of a partition's replicas."""
        return span(self.replicas[where], self.racks)

    def span_after(self, where: TopicPartition, old: int, new: int) -> int:
        """Return its span with one broker in the place of another."""
        return span(self.replaced(where, old, new), self.racks)

    def imbalance(self) -> Imbalance:
        """Return the measure of the whole layout. O(brokers)."""
        return (
            self._shortfall,
            sum(count * count for count in self.counts.values()),
            sum(count * count for count in self.leaders.values()),
            sum(self.beyond(size) ** 2 for size in self.bytes.values()),
        )

    @property
    def mean(self) -> int:
        """The mean bytes of a broker."""
        return self._total // len(self.brokers)

    def beyond(self, size: int) -> int:
        """Return by how many bytes a broker of this size is above (> 0) or below the tolerance."""
        mean = self.mean
        if abs(size - mean) <= mean // TOLERANCE:
            return 0
        return size - mean - mean // TOLERANCE if size > mean else size - mean + mean // TOLERANCE

    def _list(self, where: TopicPartition) -> None:
        item = (self.sizes[where], where)
        now = self.replicas[where]
        for broker in now:
            if broker in self.on:
                insort(self.on[broker], item)
                if broker != now[0] and now[0] in self.on:
                    self.led[now[0], broker].add(item)

    def _count(self, where: TopicPartition, sign: int) -> None:
        now = self.replicas[where]
        for place, broker in enumerate(now):
            if broker in self.counts:
                self.counts[broker] += sign
                self.leaders[broker] += sign * (place == 0)
                self.bytes[broker] += sign * self.sizes[where]
                self._total += sign * self.sizes[where]
        missing = widest(now, self.brokers, self.racks) - span(now, self.racks)
        self._shortfall += sign * missing
        if sign > 0 and missing and where not in self.fixed:
            self.narrow.add(where)
        else:
            self.narrow.discard(where)
