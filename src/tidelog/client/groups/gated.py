"""Gates of a group as a tool sees them: which partitions wait, and for what (KIP-253). Pure.

Owns the view. Not the rule of a gate: see ``partitioning.gates``; not where positions come from:
see ``progress``. What a member holds back is its own decision, made of the same facts: this says
the same a little later.

Only a partition of an aware member waits: another member knows no gates and delivers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidelog.client.fences import DescribedFences
from tidelog.client.groups.progress import GroupProgress, MemberProgress, PartitionProgress
from tidelog.client.metadata import Topic
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import (
    Gate,
    GroupPosition,
    Prerequisite,
    ResizedPartition,
    deliverable_ends,
    gates_of,
    is_met,
)


@dataclass(frozen=True, slots=True)
class Awaited:
    """A partition that another one waits for: where the group stands in it, and the goal.

    ``upto`` is None when its leader does not name the fence. ``is_gated``: it waits itself, so it
    must first be let through its own gate.
    """

    partition: int
    progress: PartitionProgress
    upto: int | None
    member: MemberProgress | None
    is_gated: bool


@dataclass(frozen=True, slots=True)
class GatedPartition:
    """Records of a partition from ``offset`` on wait for all of ``needs``."""

    partition: int
    offset: int
    member: MemberProgress
    needs: tuple[Awaited, ...]


def gated_partitions(
    topic: Topic, fences: Mapping[int, DescribedFences], group: GroupProgress
) -> list[GatedPartition]:
    """Return the partitions of a topic that aware members of a group hold back."""
    progress = {
        tp.partition: partition
        for tp, partition in group.partitions.items()
        if tp.topic == topic.name
    }
    gates = resolved_gates(topic, fences)
    positions = {
        index: GroupPosition(partition_progress.position, partition_progress.is_commit)
        for index, partition_progress in progress.items()
        if partition_progress.position is not None
    }
    ends = deliverable_ends(gates, positions)
    gated = []
    for index, end in sorted(ends.items()):
        owner = group.members.get(progress.get(index, PartitionProgress()).member or "")
        if owner is None or owner.aware is False:
            continue
        needs = {
            need.partition: _awaited(need, progress, ends, group)
            for gate in gates[index]
            for need in gate.needs
            if not is_met(need, positions, ends)
        }
        gated.append(GatedPartition(index, end, owner, tuple(needs.values())))
    return gated


def short_commits(gated: Iterable[GatedPartition]) -> dict[int, int]:
    """Return the partitions whose commits do not reach what waits for them, and from where on a
    record may be left to read there."""
    return {
        need.partition: max(need.progress.position or 0, 0)
        for one in gated
        for need in one.needs
        if need.upto is not None and need.progress.is_commit
    }


def with_nothing_left(
    group: GroupProgress, readable: Mapping[TopicPartition, int]
) -> GroupProgress:
    """Return the progress of a group whose commits count up to ``readable``: no committed record is
    left to read before that offset (see ``client.fetching.left_to_read``)."""
    partitions = dict(group.partitions)
    for tp, offset in readable.items():
        progress = partitions.get(tp, PartitionProgress(is_commit=True))
        if progress.is_commit:
            partitions[tp] = replace(progress, position=max(progress.position or 0, offset))
    return replace(group, partitions=partitions)


def unaware_among_aware(topic: str, group: GroupProgress) -> list[str]:
    """Return the owners of partitions that know no resizes, sorted, if other owners know them.

    They wait for nothing, so keys in their partitions have no order over a resize.
    """
    owners = {
        progress.member or "" for tp, progress in group.partitions.items() if tp.topic == topic
    }
    members = [group.members[owner] for owner in sorted(owners) if owner in group.members]
    unaware = [member.member_id for member in members if member.aware is False]
    return unaware if len(unaware) < len(members) else []


def resolved_gates(topic: Topic, fences: Mapping[int, DescribedFences]) -> Mapping[int, list[Gate]]:
    """Return the gates of a topic; without the fences of a partition, what needs them is shut."""
    listed = {
        index: ResizedPartition(
            partition.birth_epoch,
            partition.birth_offset,
            max(partition.retirement_epoch, 0),
            tuple(one.fence for one in fences[index].fences) if index in fences else (),
        )
        for index, partition in topic.partitions.items()
    }
    return gates_of(topic.initial_partition_count, topic.resize_epoch, listed)


def is_gated_topic(topic: Topic) -> bool:
    """Return whether a topic can have gates at all: it has children, or retired partitions."""
    return topic.is_ordered and any(
        partition.birth_epoch > 0 or partition.is_retired for partition in topic.partitions.values()
    )


def _awaited(
    need: Prerequisite,
    progress: Mapping[int, PartitionProgress],
    ends: Mapping[int, int],
    group: GroupProgress,
) -> Awaited:
    awaited = progress.get(need.partition, PartitionProgress(is_commit=True))
    upto = None
    if need.upto is not None:
        upto = need.upto.data_end if awaited.is_commit else need.upto.offset
    is_gated = upto is not None and ends.get(need.partition, upto) < upto
    return Awaited(need.partition, awaited, upto, group.members.get(awaited.member or ""), is_gated)


def places_of(topic: Topic) -> list[TopicPartition]:
    """Return the partitions of a topic whose fences gates need."""
    return [TopicPartition(topic.name, index) for index in topic.partitions]
