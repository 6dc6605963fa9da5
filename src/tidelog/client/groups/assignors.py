"""The assignors of a group's leader: range, round-robin, sticky, cooperative-sticky. Pure.

Owns their names and what each one assigns. Not the algorithm of the sticky ones: see ``sticky``.
Source: Kafka's assignors, whose names they have, so that groups with Java members work.

A member offers each assignor twice: as ``tidelog.NAME``, by which the coordinator knows members
that keep the order of resized topics (KIP-253), and as Kafka's ``NAME``, for groups with other
members. The first one is applied separately to the partitions that take records and to the retired
ones, so that each member has its share of both.

| assignor | what a member gets |
|---|---|
| range | of each topic a range of the partitions; the first members get one more |
| roundrobin | the partitions of all topics in turn |
| sticky | as evenly as possible, and of that what it had before |
| cooperative-sticky | the same, without what another member must give up before |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import cycle
from typing import NamedTuple

from tidelog.client.groups.consumer_protocol import (
    AWARE_PREFIX,
    COOPERATIVE_STICKY,
    STICKY,
    Subscription,
)
from tidelog.client.groups.sticky import sticky_assignment, without_owned_by_others
from tidelog.model.topics import TopicPartition

RANGE = "range"
ROUND_ROBIN = "roundrobin"
ASSIGNORS = (RANGE, ROUND_ROBIN, STICKY, COOPERATIVE_STICKY)

Assignment = dict[str, list[TopicPartition]]


class PartitionCounts(NamedTuple):
    """How many partitions of a topic take records, and how many there are: others are retired."""

    taking: int = 0
    listed: int = 0


def offered(assignors: Iterable[str], *, is_aware: bool = True) -> list[str]:
    """Return the names that a member offers, by preference: the aware ones first."""
    names = list(assignors)
    return [AWARE_PREFIX + name for name in names] + names if is_aware else names


def is_cooperative(assignors: Iterable[str]) -> bool:
    """Whether a member with these assignors keeps its partitions while it joins (KIP-429)."""
    return all(name == COOPERATIVE_STICKY for name in assignors)


def assign(
    assignor: str, members: Mapping[str, Subscription], counts: Mapping[str, PartitionCounts]
) -> Assignment:
    """Return the partitions of each member. Grows with partitions times members at most.

    Members with a group.instance.id come first, by it, so that a restart changes nothing.
    """
    name = assignor.removeprefix(AWARE_PREFIX)
    in_order = {
        member: members[member] for member in sorted(members, key=lambda m: _place(m, members))
    }
    topics = sorted({topic for joined in members.values() for topic in joined.topics})
    topic_counts = {topic: counts.get(topic, PartitionCounts()) for topic in topics}
    if assignor.startswith(AWARE_PREFIX):
        parts = [
            {topic: range(count.taking) for topic, count in topic_counts.items()},
            {topic: range(count.taking, count.listed) for topic, count in topic_counts.items()},
        ]
    else:
        parts = [{topic: range(count.listed) for topic, count in topic_counts.items()}]
    assigned: Assignment = {member: [] for member in in_order}
    for part in parts:
        for member, share in _BY_NAME.get(name, range_assignment)(in_order, part).items():
            assigned[member] += share
    if name == COOPERATIVE_STICKY:
        return without_owned_by_others(in_order, assigned)
    return assigned


def _place(member: str, members: Mapping[str, Subscription]) -> tuple[bool, str, str]:
    instance_id = members[member].instance_id
    return instance_id is None, instance_id or "", member


def range_assignment(
    members: Mapping[str, Subscription], partitions: Mapping[str, range]
) -> Assignment:
    """Give each member a range of each topic, in the order of ``members``."""
    assigned: Assignment = {member: [] for member in members}
    for topic, indexes in partitions.items():
        readers = [member for member, joined in members.items() if topic in joined.topics]
        if not readers:
            continue
        quota, extra = divmod(len(indexes), len(readers))
        start = indexes.start
        for number, member in enumerate(readers):
            end = start + quota + (1 if number < extra else 0)
            assigned[member] += [TopicPartition(topic, index) for index in range(start, end)]
            start = end
    return assigned


def round_robin_assignment(
    members: Mapping[str, Subscription], partitions: Mapping[str, range]
) -> Assignment:
    """Give the partitions of all topics to the members in turn; each turn skips other readers."""
    assigned: Assignment = {member: [] for member in members}
    subscribed = {member: frozenset(joined.topics) for member, joined in members.items()}
    turns = cycle(members)
    for topic, indexes in partitions.items():
        if not any(topic in topics for topics in subscribed.values()):
            continue
        for index in indexes:
            member = next(turns)
            while topic not in subscribed[member]:
                member = next(turns)
            assigned[member].append(TopicPartition(topic, index))
    return assigned


_BY_NAME: Mapping[str, Callable[[Mapping[str, Subscription], Mapping[str, range]], Assignment]] = {
    RANGE: range_assignment,
    ROUND_ROBIN: round_robin_assignment,
    STICKY: sticky_assignment,
    COOPERATIVE_STICKY: sticky_assignment,
}
