"""Which life of a topic a group's offsets belong to: the first sight of it, in the log before them.

Owns when a first sight is written, what goes before it, and when it goes (decision 0026). A record
of an offset names a topic, not its id; the first sight before it has the id. So in the log of one
group and one topic stand, in this order and over and over:

    tombstones of all offsets of the former life, the first sight of this life, its offsets

Whatever prefix of that a crash or a truncation leaves, and whatever compaction takes out of it, no
offset of a former life stands under the first sight of a later one. Offsets without any first sight
before them (an older version wrote them, or below level 1.4) may be of any life.
Source: KIP-253 (first sight), KAFKA-19141 and KAFKA-19154 (Kafka keeps the id with each offset).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from uuid import UUID

from tidelog.groups.group import Group
from tidelog.groups.records import NO_LIFE, FirstSight, FirstSightRecord, OffsetRecord, Record
from tidelog.model.topics import TopicPartition

NO_RESIZE_EPOCH = 0
NO_ASSIGNMENT = -1
"""Partitions of the group's first assignment, of a first sight that came with a commit."""


def latest(group: Group, topic: str) -> FirstSight | None:
    """Return the first sight of a topic that the log ends with, in flight or not."""
    flying = group.sights_in_flight.get(topic)
    return flying[-1] if flying else group.first_sights.get(topic)


def topics_seen(group: Group) -> AbstractSet[str]:
    """Return the topics of which there is a first sight, in flight or not."""
    return group.first_sights.keys() | group.sights_in_flight.keys()


def is_former(sight: FirstSight | None, present: UUID) -> bool:
    """Whether a first sight is of another life of its topic than the one that is known now."""
    return sight is not None and present not in (NO_LIFE, sight.topic_id)


def before_commit(group: Group, topic: str, topic_id: UUID) -> tuple[int, Iterable[Record]]:
    """Return what a write needs before offsets of this life of a topic, and how many positions of
    its former life that may remove. The records are made as they are asked for."""
    sight = latest(group, topic)
    if topic_id == NO_LIFE or (sight is not None and sight.topic_id == topic_id):
        return 0, ()
    present = FirstSight(topic_id, NO_RESIZE_EPOCH, NO_ASSIGNMENT)
    begins = (FirstSightRecord(group.group_id, topic, present),)
    if sight is None:
        # Nobody knows of which life the present offsets are.
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
    # In the order of the first commits: to sort very many would be a turn of the loop.
    for partition in dict.fromkeys([*group.offsets.get(topic, ()), *flying.get(topic, ())]):
        yield OffsetRecord(group.group_id, topic, partition, None)


def without_offsets(
    group: Group, topics: Collection[str], removed: Collection[TopicPartition]
) -> list[Record]:
    """Return the removals of the first sights of those topics of which nothing is left, once the
    offsets ``removed`` are. To stand behind these in the write."""
    kept = {at.topic for at in group.in_flight if at not in removed}
    return [
        FirstSightRecord(group.group_id, topic, None)
        for topic in sorted(topics)
        if topic not in kept
        and latest(group, topic) is not None
        and all(TopicPartition(topic, at) in removed for at in group.offsets.get(topic, ()))
    ]
