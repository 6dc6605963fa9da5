"""Counters of several partitions together, and of those that are no longer hosted.

Owns the sums, and keeps the counts of a partition that is removed: a monitoring system takes a
counter that decreases for a restart, and counts its whole value again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition


@dataclass(slots=True, eq=False)
class Sums:
    """The counts of several partitions together."""

    appends: int = 0
    bytes_in: int = 0
    """Bytes produced here, without those replicated from other leaders."""
    bytes_out: int = 0
    """Bytes that consumers read."""
    fetches: int = 0
    isr_expansions: int = 0
    isr_shrinks: int = 0
    messages: int = 0
    reassigned_in: int = 0
    reassigned_out: int = 0
    refused_appends: int = 0
    refused_fetches: int = 0
    replicated_in: int = 0
    replicated_out: int = 0

    def add(self, partition: HostedPartition) -> None:
        """Add the counts of one partition."""
        counts = partition.counts
        replicated_in, replicated_out = counts.replicated_in, counts.replicated_out
        self.appends += counts.appends
        self.bytes_in += max(0, partition.bytes_in - replicated_in)
        self.bytes_out += max(0, partition.bytes_out - replicated_out)
        self.fetches += counts.fetches
        self.isr_expansions += counts.isr_expansions
        self.isr_shrinks += counts.isr_shrinks
        self.messages += counts.messages(partition.log.end_offset)
        self.reassigned_in += counts.reassigned_in
        self.reassigned_out += counts.reassigned_out
        self.refused_appends += counts.refused_appends
        self.refused_fetches += counts.refused_fetches
        self.replicated_in += replicated_in
        self.replicated_out += replicated_out

    def join(self, other: Sums) -> None:
        """Add other sums."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Past:
    """The counts of partitions that are no longer hosted.

    Of all together, for what is counted without a topic's name; and by topic, for as long as
    another partition of it is hosted here. So it grows with the topics that are.
    """

    def __init__(self) -> None:
        self.all = Sums()
        self.by_topic: dict[str, Sums] = {}

    def went(self, partition: HostedPartition, *, is_last: bool) -> None:
        """Keep the counts of a removed partition; ``is_last``: the last one of its topic."""
        self.all.add(partition)
        if is_last:
            self.by_topic.pop(partition.topic, None)
            return
        sums = Sums()
        sums.join(self.by_topic.get(partition.topic, Sums()))
        sums.add(partition)
        # Another object, whole: a scrape may be reading the former one.
        self.by_topic[partition.topic] = sums


def by_topic(hosted: Iterable[HostedPartition]) -> dict[str, Sums]:
    """Return the sums of each topic with hosted partitions. O(partitions)."""
    sums: defaultdict[str, Sums] = defaultdict(Sums)
    for partition in hosted:
        sums[partition.topic].add(partition)
    return sums
