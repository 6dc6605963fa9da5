"""Gates of partitions: up to which offset each one may be delivered (KIP-253). Pure.

Owns the rule that keeps the order of a key over growth and shrinking; consumers, the planner of the
Spark source and the tools share it. Not where positions come from, nor the lookup of fences: see
`client.groups.gating`, `pipeline.resized_topics`.
Source: docs/design/elastic.md, "Gates".

A gate stands at one offset of a partition: records from that offset on are delivered only when each
prerequisite is met, that is when the position of another partition has reached an offset.

| gate | its offset | its prerequisites |
|---|---|---|
| of a child of a growth | its first offset | the blocking parent, up to its fence of that epoch |
| of a survivor of a shrink | its fence of that epoch | each that falls to it, up to its seal |

Which partitions these are follows from the births and retirements that metadata lists: the children
of one growth and the retirees of one shrink are contiguous, and only the highest partitions are
ever removed, so the lowest one that is listed says the smaller count. A partition that was removed
counts as drained. A resize that was undone leaves fences, but neither births nor retirements, so it
has no gates. What is not known keeps a gate shut.

Each fence has an offset of its own, so a position that equals the offset of a prerequisite is
enough, and no two gates wait for each other: what a gate waits for lies below every gate of that
partition with the same or a later resize epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from tidelog.partitioning.lineage import nearest_ancestor


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence or seal of one partition, as DescribeFences answers it.

    ``data_end`` is the end of the data before it: a member that knows no resizes commits no further
    until data follows.
    """

    resize_epoch: int
    offset: int
    data_end: int


@dataclass(frozen=True, slots=True)
class ResizedPartition:
    """A listed partition: its birth, its retirement, and its fences by ascending resize epoch.

    ``birth_epoch`` is 0 for a partition that the topic was created with, ``retirement_epoch`` 0 for
    one that takes records.
    """

    birth_epoch: int = 0
    first_offset: int = 0
    retirement_epoch: int = 0
    fences: tuple[Fence, ...] = ()

    def fence_of(self, resize_epoch: int) -> Fence | None:
        """Return the fence of a resize epoch, or the first of a later one, or None.

        A later one stands in for a fence that an unclean election cut: it was written before any
        record that came after that resize.
        """
        place = bisect_left(self.fences, resize_epoch, key=lambda fence: fence.resize_epoch)
        return self.fences[place] if place < len(self.fences) else None


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """A partition that must have been read up to a fence; None: the fence is not known."""

    partition: int
    upto: Fence | None


@dataclass(frozen=True, slots=True)
class Gate:
    """Records of a partition from ``offset`` on wait for all of ``needs``."""

    resize_epoch: int
    offset: int
    needs: tuple[Prerequisite, ...]


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """How far a partition was read.

    ``is_commit``: it is the committed offset of a member that knows no resizes, or of no member.
    """

    offset: int
    is_commit: bool = False

    def has_reached(self, fence: Fence) -> bool:
        """Whether all records before a fence were read."""
        return self.offset >= (fence.data_end if self.is_commit else fence.offset)


def gates_of(
    initial_count: int, resize_epoch: int, partitions: Mapping[int, ResizedPartition]
) -> dict[int, list[Gate]]:
    """Return the gates of each partition that has any.

    ``partitions``: all that metadata of ``resize_epoch`` lists, with fences that were looked up
    after it. A fence of a later resize epoch is a gate that stays shut until metadata is newer.
    Grows with the partitions and their fences.
    """
    gates: dict[int, list[Gate]] = {}
    for birth_epoch, children in _by_epoch(partitions, "birth_epoch"):
        before = min(children)
        for child in children:
            parent = nearest_ancestor(child, initial_count, before)
            need = _need(parent, birth_epoch, partitions)
            gate = Gate(birth_epoch, partitions[child].first_offset, (need,))
            gates.setdefault(child, []).append(gate)
    for retirement_epoch, retired in _by_epoch(partitions, "retirement_epoch"):
        after = min(retired)
        falling: dict[int, list[int]] = {}
        for one in retired:
            falling.setdefault(nearest_ancestor(one, initial_count, after), []).append(one)
        for survivor, sources in falling.items():
            fence = _fence(survivor, retirement_epoch, partitions)
            needs = tuple(_need(one, retirement_epoch, partitions) for one in sources)
            # Where the fence of the survivor is not known, nothing of it may be delivered.
            gate = Gate(retirement_epoch, fence.offset if fence else 0, needs)
            gates.setdefault(survivor, []).append(gate)
    for partition, each in partitions.items():
        fence = each.fence_of(resize_epoch + 1)
        if fence is not None:
            unknown = (Prerequisite(partition, None),)
            gate = Gate(fence.resize_epoch, fence.offset, unknown)
            gates.setdefault(partition, []).append(gate)
    return gates


def deliverable_ends(
    gates: Mapping[int, Iterable[Gate]], positions: Mapping[int, GroupPosition]
) -> dict[int, int]:
    """Return, for each partition with a shut gate, the offset up to which it may be delivered.

    ``positions``: how far each partition was read; one that is missing was not read. Gates below a
    position count as well: a reader that began in the middle waits there. A prerequisite that lies
    beyond a shut gate of its own partition is not met, whatever the position says. Grows with the
    gates, and with their logarithm for the order.
    """
    ends: dict[int, int] = {}
    in_order = sorted(
        ((gate, partition) for partition, each in gates.items() for gate in each),
        key=lambda pair: pair[0].resize_epoch,
    )
    # What a gate waits for lies beyond gates of lower resize epochs only.
    for _, same_epoch in groupby(in_order, key=lambda pair: pair[0].resize_epoch):
        shut = [
            (gate, partition)
            for gate, partition in same_epoch
            if not all(is_met(need, positions, ends) for need in gate.needs)
        ]
        for gate, partition in shut:
            ends[partition] = min(gate.offset, ends.get(partition, gate.offset))
    return ends


def is_met(
    need: Prerequisite, positions: Mapping[int, GroupPosition], ends: Mapping[int, int]
) -> bool:
    """Return whether a group has read what a gate needs. What another gate holds is unread."""
    if need.upto is None:
        return False
    position = positions.get(need.partition)
    if position is None or not position.has_reached(need.upto):
        return False
    return ends.get(need.partition, need.upto.offset) >= need.upto.offset


def _by_epoch(
    partitions: Mapping[int, ResizedPartition], epoch: str
) -> Iterable[tuple[int, list[int]]]:
    """Return the partitions of each birth or retirement epoch but 0."""
    found: dict[int, list[int]] = {}
    for partition, each in partitions.items():
        found.setdefault(getattr(each, epoch), []).append(partition)
    found.pop(0, None)
    return sorted(found.items())


def _fence(
    partition: int, resize_epoch: int, partitions: Mapping[int, ResizedPartition]
) -> Fence | None:
    listed = partitions.get(partition)
    return None if listed is None else listed.fence_of(resize_epoch)


def _need(
    partition: int, resize_epoch: int, partitions: Mapping[int, ResizedPartition]
) -> Prerequisite:
    return Prerequisite(partition, _fence(partition, resize_epoch, partitions))
