"""Gates of one topic for one member in one generation: what it delivers, asks for, reports. Pure.

Owns the state between look-ups. Not the rule of a gate: see ``partitioning.gates``. Not the
requests: see ``gating``. All of it is of the metadata that the generation reads with: a member that
sees a newer resize epoch joins again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from tidelog.client.fences import DescribedFences
from tidelog.client.metadata import Partition, Topic
from tidelog.partitioning.gates import (
    Fence,
    Gate,
    GroupPosition,
    ResizedPartition,
    deliverable_ends,
    gates_of,
)

Gates = Mapping[int, list[Gate]]


class TopicGates:
    """Gates that are all shut until ``resolve``; ``own`` are the partitions of this member.

    ``is_alone``: a reader without a group, which answers for its own partitions only.
    """

    def __init__(self, topic: Topic, own: Iterable[int], *, is_alone: bool = False) -> None:
        self.topic = topic
        self._is_alone = is_alone
        self._own = frozenset(own)
        self._checked = topic
        self._epochs: dict[int, int] = {}
        self._fences: dict[int, tuple[Fence, ...]] = {}
        self._positions: dict[int, GroupPosition] = {}
        self._nothing: dict[int, tuple[int, int]] = {}
        """By partition: between these offsets no committed record is left to read."""
        self._delivered: Mapping[int, int] = {}
        self._gates: Gates = self._gates_with({})
        self.unknown: frozenset[int] = frozenset(topic.partitions if self._gates else ())
        """The partitions whose fences are to be looked up: a gate may wait for them."""

    @property
    def is_resolved(self) -> bool:
        """Whether every fence that a gate needs is known."""
        return not self.unknown

    def _gates_with(self, fences: Mapping[int, tuple[Fence, ...]]) -> Gates:
        listed = {
            index: resized(partition, fences.get(index, ()))
            for index, partition in self.topic.partitions.items()
        }
        return gates_of(self.topic.initial_partition_count, self.topic.resize_epoch, listed)

    def resolve(self, fences: Mapping[int, DescribedFences]) -> None:
        """Take up the fences that leaders named; a missing one keeps the gates that need it shut.

        What a leader named that was replaced since is not taken: a newer one may lack fences.
        """
        for index, described in fences.items():
            listed = self._checked.partitions.get(index)
            if listed is None or described.leader_epoch >= listed.leader_epoch:
                self._fences[index] = tuple(one.fence for one in described.fences)
                self._epochs[index] = described.leader_epoch
        self._judge()

    def _judge(self) -> None:
        self._gates = self._gates_with(self._fences)
        needed = {
            need.partition
            for gates in self._gates.values()
            for gate in gates
            if gate.resize_epoch <= self.topic.resize_epoch
            for need in gate.needs
            if need.upto is None
        }
        self.unknown = frozenset(needed | (self.topic.partitions.keys() - self._fences.keys()))

    def follow(self, newest: Topic | None) -> None:
        """Shut the gates that need a partition with a newer leader: an unclean one may lack fences.

        A partition that newer metadata of the same resize epoch lack was removed: it counts as
        drained, and no position of it will ever be known.
        """
        if newest is None or newest is self._checked or not self._gates:
            return
        self._checked = newest
        former = self.topic.partitions
        is_changed = False
        if newest.resize_epoch == self.topic.resize_epoch and former.keys() - newest.partitions:
            left = {index: state for index, state in former.items() if index in newest.partitions}
            self.topic = replace(self.topic, partitions=left)
            is_changed = bool(self._epochs)
        for index, partition in newest.partitions.items():
            if partition.leader_epoch > self._epochs.get(index, partition.leader_epoch):
                del self._epochs[index], self._fences[index]
                # An unclean leader may have other records there.
                self._nothing.pop(index, None)
                is_changed = True
        if is_changed:
            self._judge()

    def learn(self, positions: Mapping[int, GroupPosition]) -> None:
        """Take up what the coordinator said of the partitions of others; the last one counts."""
        self._positions.update(positions)

    def take_nothing(self, partition: int, first: int, end: int) -> None:
        """Take up that no committed record is left to read from ``first`` up to ``end``."""
        before = self._nothing.get(partition)
        if before is not None and before[0] <= first <= before[1]:
            first, end = before[0], max(end, before[1])
        self._nothing[partition] = first, end

    def short_commits(self, shut: Iterable[int]) -> dict[int, int]:
        """Return the commits that the gates of ``shut`` wait for, and from where on a record may be
        left to read: a member commits past nothing but records that it was given."""
        positions, wanted = self._with_nothing_left(), self.wanted(shut)
        return {
            need.partition: max(position.offset, 0)
            for gates in self._gates.values()
            for gate in gates
            for need in gate.needs
            for position in [positions.get(need.partition)]
            if need.partition in wanted
            and need.upto is not None
            and position is not None
            and position.is_commit
            and not position.has_reached(need.upto)
        }

    def _with_nothing_left(self) -> dict[int, GroupPosition]:
        """Return the positions that the coordinator has said; a commit counts as far as nothing is
        left to read after it."""
        positions = dict(self._positions)
        for index, (first, end) in self._nothing.items():
            position = positions.get(index)
            if position is not None and position.is_commit and first <= max(position.offset, 0):
                positions[index] = GroupPosition(max(position.offset, end), True)
        return positions

    def ends(self, own: Mapping[int, int]) -> dict[int, int]:
        """Return up to where partitions of this member may be delivered; the others are open.

        ``own``: how far this member has delivered its partitions, callbacks included. A partition
        that these metadata lack is not delivered.
        """
        positions = self._with_nothing_left()
        self._delivered = own
        if self._is_alone:
            others = self.topic.partitions.keys() - self._own
            positions.update((index, GroupPosition(_BEYOND)) for index in others)
        positions.update((index, GroupPosition(offset)) for index, offset in own.items())
        ends = deliverable_ends(self._gates, positions)
        own_ends = {index: end for index, end in ends.items() if index in self._own}
        return own_ends | {index: 0 for index in self._own if index not in self.topic.partitions}

    def wanted(self, shut: Iterable[int]) -> set[int]:
        """Return the partitions of others whose positions the gates of ``shut`` wait for."""
        wanted: set[int] = set()
        left = list(shut)
        seen = set(left)
        while left:
            for gate in self._gates.get(left.pop(), ()):
                for need in gate.needs:
                    if need.partition not in seen:
                        seen.add(need.partition)
                        left.append(need.partition)
                    if need.partition not in self._own:
                        wanted.add(need.partition)
        return wanted

    def reported(self) -> dict[int, float]:
        """Return the partitions of this member that gates wait for, and up to which offset."""
        reported: dict[int, float] = {}
        for gates in self._gates.values():
            for gate in gates:
                for need in gate.needs:
                    if need.partition in self._own and gate.resize_epoch <= self.topic.resize_epoch:
                        upto = inf if need.upto is None else need.upto.offset
                        reported[need.partition] = max(upto, reported.get(need.partition, 0))
        return reported

    def fences(self) -> dict[int, list[int]]:
        """Return the offsets in partitions of this member that gates wait for."""
        offsets: dict[int, list[int]] = {}
        for gates in self._gates.values():
            for gate in gates:
                for need in gate.needs:
                    if need.partition in self._own and need.upto is not None:
                        offsets.setdefault(need.partition, []).append(need.upto.offset)
        return offsets

    def waits_for(self, partition: int) -> list[tuple[int, int, int]]:
        """Return what a shut partition waits for: partition, its position (-1: unknown), offset."""
        own = {index: GroupPosition(offset) for index, offset in self._delivered.items()}
        positions = {**self._with_nothing_left(), **own}
        return [
            (need.partition, place.offset if place else -1, need.upto.offset if need.upto else -1)
            for gate in self._gates.get(partition, ())
            for need in gate.needs
            for place in [positions.get(need.partition)]
            if need.upto is None or place is None or not place.has_reached(need.upto)
        ]


_BEYOND = 1 << 62
"""A position past every offset."""


def must_report(offset: int, before: int | None, upto: float) -> bool:
    """Whether a position is to be reported; ``before``: the last report, None without one.

    Gates wait for the first one also where a fence is at offset 0. One that went back is reported:
    the last report counts.
    """
    if before is None:
        return True
    return offset != before and (before < upto or offset < before)


def resized(partition: Partition, fences: tuple[Fence, ...]) -> ResizedPartition:
    """Return a partition as ``partitioning.gates`` takes it."""
    return ResizedPartition(
        partition.birth_epoch,
        partition.birth_offset,
        max(partition.retirement_epoch, 0),
        fences,
    )
