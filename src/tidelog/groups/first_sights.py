"""First sights: the topic ids of a group's offsets, written to the log before them.

Owns when a first sight is written, which tombstones precede it, and when it is removed (decision
0026). A record of an offset names a topic, not its id; the first sight before it has the id. So the
log of one group and one topic has, in this order and repeatedly:

    tombstones of all offsets of the former topic id, the first sight of this one, its offsets

Whatever prefix a crash or a truncation leaves, and whatever compaction removes, no offset of a
former topic id follows the first sight of a later one. Offsets without a first sight before them
(an older version wrote them, or they were written below level 1.4) may have any topic id.
A first sight also has the resize epoch in which the group first used the topic: that of the first
member that joined with it, or that of the first commit. The number of partitions in the group's
first assignment comes with the record of that generation: when a commit was the first use, the
first sight is written again. All offsets before one with an assignment are of its topic id.

At levels below 1.5 the resize epoch is 0, and neither joins nor assignments write anything.
Source: KIP-253 (first sight), KAFKA-19141 and KAFKA-19154 (Kafka keeps the id with each offset).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from uuid import UUID

from tidelog.groups.consumer_protocol import partition_counts
from tidelog.groups.group import Group
from tidelog.groups.records import NO_TOPIC_ID, FirstSight, FirstSightRecord, OffsetRecord, Record
from tidelog.model.topics import TopicPartition

NO_RESIZE_EPOCH = 0
NO_ASSIGNMENT = -1
"""Partitions of the group's first assignment, in a first sight before it."""


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
    begins = (FirstSightRecord(group.group_id, topic, _first(group, topic, topic_id)),)
    if sight is None:
        # The topic id of the present offsets is unknown.
        return 0, begins
    return _most_offsets(group, topic), chain(all_offsets_gone(group, topic), begins)


def note_join(group: Group, topics: Iterable[str]) -> None:
    """Members join with these topics: keep how a topic is that the group has not used before."""
    for topic in topics:
        present = group.rules.topic_of(topic)
        if present is None or _is_of(latest(group, topic), present.topic_id):
            continue
        if not _is_of(group.first_joins.get(topic), present.topic_id):
            group.first_joins[topic] = present


def before_assignment(
    group: Group, assignments: Iterable[bytes]
) -> tuple[int, dict[str, FirstSight]]:
    """Return the first sights that precede the record of a generation with these assignments, and
    how many positions of former topic ids precede them."""
    wanted: dict[str, FirstSight] = {}
    for topic in group.subscribed or ():
        present = group.rules.topic_of(topic)
        if present is None:
            continue
        sight = latest(group, topic)
        if sight is None or sight.topic_id != present.topic_id:
            wanted[topic] = _first(group, topic, present.topic_id)
        elif sight.partitions == NO_ASSIGNMENT:
            wanted[topic] = sight
    if not wanted:
        return 0, wanted
    counts = partition_counts(assignments, wanted)
    if counts is None:
        # Only what a join knows: the resize epoch.
        begun = {
            name: it for name, it in wanted.items() if not _is_of(latest(group, name), it.topic_id)
        }
    else:
        # A topic that the leader of the group does not know yet waits for a later assignment.
        begun = {name: replace(wanted[name], partitions=count) for name, count in counts.items()}
    return sum(_most_offsets(group, topic) for topic in former_of(group, begun)), begun


def former_of(group: Group, begun: dict[str, FirstSight]) -> list[str]:
    """Return the topics of which the group has a first sight of another topic id."""
    return [
        topic
        for topic, sight in begun.items()
        if (earlier := latest(group, topic)) is not None and earlier.topic_id != sight.topic_id
    ]


def records_of(group: Group, begun: dict[str, FirstSight]) -> Iterator[Record]:
    """Yield first sights, each after the tombstones of the offsets of its former topic id."""
    former = set(former_of(group, begun))
    for topic, sight in begun.items():
        if topic in former:
            yield from all_offsets_gone(group, topic)
        yield FirstSightRecord(group.group_id, topic, sight)


def former_topics_gone(group: Group, topics: list[str]) -> Iterator[Record]:
    """Yield the removal of all that a group has of former topic ids of these topics."""
    for topic in topics:
        yield from all_offsets_gone(group, topic)
        yield FirstSightRecord(group.group_id, topic, None)


def _first(group: Group, topic: str, topic_id: UUID) -> FirstSight:
    """Return the first sight of a topic that is used now, or was by an earlier join."""
    for sight in (group.first_joins.get(topic), group.rules.topic_of(topic)):
        if sight is not None and sight.topic_id == topic_id:
            return sight
    return FirstSight(topic_id, NO_RESIZE_EPOCH, NO_ASSIGNMENT)


def _is_of(sight: FirstSight | None, topic_id: UUID) -> bool:
    return sight is not None and sight.topic_id == topic_id


def _most_offsets(group: Group, topic: str) -> int:
    return len(group.offsets.get(topic, ())) + len(group.flying.partitions_of(topic))


def all_offsets_gone(group: Group, topic: str) -> Iterator[Record]:
    """Yield tombstones of all offsets of a topic, also of those in flight at the first ``next``:
    their records come first in the log."""
    # In the order of the first commits: sorting very many would block the loop.
    flying = group.flying.partitions_of(topic)
    for partition in dict.fromkeys([*group.offsets.get(topic, ()), *flying]):
        yield OffsetRecord(group.group_id, topic, partition, None)


def without_offsets(
    group: Group, topics: Collection[str], removed: Collection[TopicPartition]
) -> list[Record]:
    """Return the removals of the first sights of topics without offsets after the removal of
    ``removed``. In a write they follow those of the offsets."""
    return [
        FirstSightRecord(group.group_id, topic, None)
        for topic in sorted(topics)
        if latest(group, topic) is not None
        and all(
            TopicPartition(topic, partition) in removed
            for partition in chain(group.offsets.get(topic, ()), group.flying.partitions_of(topic))
        )
    ]
