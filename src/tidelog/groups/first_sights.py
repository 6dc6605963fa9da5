"""First sights: the topic ids of a group's offsets, written to the log before them.

Owns when a first sight is written, which tombstones precede it, and when it is removed (decision
0026). A record of an offset names a topic, not its id; the first sight before it has the id. So the
log of one group and one topic has, in this order and repeatedly:

    tombstones of all offsets of the former topic id, the first sight of this one, its offsets

Whatever prefix a crash or a truncation leaves, and whatever compaction removes, no offset of a
former topic id follows the first sight of a later one. Offsets without a first sight before them
(an older version wrote them, or they were written below level 1.4) may have any topic id.
Source: KIP-253 (first sight), KAFKA-19141 and KAFKA-19154 (Kafka keeps the id with each offset).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from uuid import UUID

from tidelog.groups.group import Group
from tidelog.groups.records import NO_TOPIC_ID, FirstSight, FirstSightRecord, OffsetRecord, Record
from tidelog.model.topics import TopicPartition

NO_RESIZE_EPOCH = 0
NO_ASSIGNMENT = -1
"""Partitions of the group's first assignment, in a first sight that a commit caused."""


def latest(group: Group, topic: str) -> FirstSight | None:
    """Return the last first sight of a topic in the log, in flight or not."""
    flying = group.sights_in_flight.get(topic)
    return flying[-1] if flying else group.first_sights.get(topic)


def topics_seen(group: Group) -> AbstractSet[str]:
    """Return the topics with a first sight, in flight or not."""
    return group.first_sights.keys() | group.sights_in_flight.keys()


def is_former(sight: FirstSight | None, present: UUID) -> bool:
    """Whether a first sight has another topic id than the present topic of that name."""
    return sight is not None and present not in (NO_TOPIC_ID, sight.topic_id)


def before_commit(group: Group, topic: str, topic_id: UUID) -> tuple[int, Iterable[Record]]:
    """Return the records that precede offsets of this topic id, and how many positions of the
    former topic id they may remove. The records are made lazily."""
    sight = latest(group, topic)
    if topic_id == NO_TOPIC_ID or (sight is not None and sight.topic_id == topic_id):
        return 0, ()
    present = FirstSight(topic_id, NO_RESIZE_EPOCH, NO_ASSIGNMENT)
    begins = (FirstSightRecord(group.group_id, topic, present),)
    if sight is None:
        # The topic id of the present offsets is unknown.
        return 0, begins
    most = len(group.offsets.get(topic, ())) + len(group.in_flight)
    return most, chain(_former_gone(group, topic), begins)


def _former_gone(group: Group, topic: str) -> Iterator[Record]:
    yield from all_offsets_gone(group, topic, in_flight_of(group))


def in_flight_of(group: Group) -> dict[str, list[int]]:
    """Return the partitions of each topic of which offsets are in flight."""
    flying: dict[str, list[int]] = {}
    for at in group.in_flight:
        flying.setdefault(at.topic, []).append(at.partition)
    return flying


def all_offsets_gone(group: Group, topic: str, flying: dict[str, list[int]]) -> Iterator[Record]:
    """Yield tombstones of all offsets of a topic, also of those in flight: their records come
    first in the log."""
    # In the order of the first commits: sorting very many would block the loop.
    for partition in dict.fromkeys([*group.offsets.get(topic, ()), *flying.get(topic, ())]):
        yield OffsetRecord(group.group_id, topic, partition, None)


def without_offsets(
    group: Group, topics: Collection[str], removed: Collection[TopicPartition]
) -> list[Record]:
    """Return the removals of the first sights of topics without offsets after the removal of
    ``removed``. In a write they follow those of the offsets."""
    kept = {at.topic for at in group.in_flight if at not in removed}
    return [
        FirstSightRecord(group.group_id, topic, None)
        for topic in sorted(topics)
        if topic not in kept
        and latest(group, topic) is not None
        and all(TopicPartition(topic, at) in removed for at in group.offsets.get(topic, ()))
    ]
