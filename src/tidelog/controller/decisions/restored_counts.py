"""Counts of a topic in a restored store: from the fences that brokers report. Pure (KIP-253).

Owns which resize counts as published, which partitions the topic then lists, and where the
incarnations of those begin that left no replica. Not the acceptance: see ``restoration``.
Source: docs/design/metadata-store.md; docs/design/elastic.md.

Every replica reports all fences and seals of its log, and its birth. A resize counts as published
if each partition below its count is reported:

| a partition below the count | counts as reported |
|---|---|
| a replica, of the topic's first partitions | yes |
| a replica, born by a growth of that resize epoch or an earlier one | if its birth fence is there |
| no replica; one of the first, or the store knows its growth as published | yes: it is lost |
| no replica; its growth is shown as published, and brokers are given up | yes: it is lost |
| no replica otherwise | no: its growth was interrupted, or undone |

A growth is shown as published by a later resize that is not its undo, or by a record after the
birth fence of another child: no client saw one before. A shrink counts as published only if all its
retired partitions that have replicas are sealed; otherwise the partitions are opened again.

The newest published resize gives the count. The topic goes on in a resize epoch above all that were
reported, with a fence in each partition, as after an undo. Of the others that have replicas:

| a partition at or above the count | becomes |
|---|---|
| its last fence is a seal | retired by that resize |
| otherwise: its growth was not published | retired by the new resize epoch: sealed, then removed |
| no replica, below one that has | the same, empty |
| no replica, above all that have | removed: ``former`` lets the next one begin far above |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.controller.decisions.cluster import LogEnd
from tidelog.records.control_records import ChangeKind

OFFSET_JUMP = 10**12
"""How far above the last offset that is known a partition begins whose own last offset is lost:
more than it can have grown by since the backup, and eight million such jumps fit into 63 bits."""


@dataclass(frozen=True, slots=True)
class ReportedPartition:
    """What all replicas of the newest incarnation of a partition say of it."""

    partition_epoch: int
    birth_epoch: int
    birth_offset: int
    end_offset: int
    fences: Mapping[int, tuple[int, ChangeKind]]
    """Count and kind by resize epoch."""

    @property
    def has_birth(self) -> bool:
        """Whether its birth fence was reported, or it needs none."""
        return self.birth_epoch == 0 or self.birth_epoch in self.fences

    @property
    def has_records(self) -> bool:
        """Whether a growth made it and something came after its birth fence."""
        return self.birth_epoch > 0 and self.end_offset > self.birth_offset + 1

    def is_sealed_in(self, epoch: int) -> bool:
        """Whether it took no records in a resize epoch."""
        newest = max((x for x in self.fences if x <= epoch), default=None)
        return newest is not None and self.fences[newest][1] is ChangeKind.SEAL

    @property
    def sealed_by(self) -> int | None:
        """The resize epoch of the seal that ends it, None if it was reopened or never sealed."""
        newest = max(self.fences, default=None)
        is_sealed = newest is not None and self.fences[newest][1] is ChangeKind.SEAL
        return newest if is_sealed else None


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store says of a topic: the numbers that clients saw, and the newest resize epoch."""

    initial_count: int
    count: int
    resize_epoch: int
    newest_epoch: int
    listed: int
    """How many partitions its node has, retired ones included."""


@dataclass(frozen=True, slots=True)
class RestoredCounts:
    """The counts that a topic goes on with."""

    initial_count: int
    count: int
    published_epoch: int
    """The resize that gives the count."""
    newest_epoch: int
    """The newest one that was reported, or is in the store."""
    listed: int
    most: int
    """The largest count that the topic ever had, as far as is known."""
    sealed_by: Mapping[int, int | None]
    """Partitions that are retired: the resize epoch of their seal, None for the new one."""
    lost: tuple[int, ...]
    """Listed partitions without a replica."""
    by_epoch: Mapping[int, int]
    """All counts that are known, by resize epoch."""


def newest_incarnation(ends: Mapping[int, LogEnd], least_epoch: int = -1) -> dict[int, LogEnd]:
    """Return the replicas of the newest incarnation among these, by broker.

    ``least_epoch``: older incarnations were removed. A replica without a partition epoch is of the
    first incarnation.
    """
    newest = max((end.partition_epoch for end in ends.values()), default=-1)
    if newest < least_epoch and newest >= 0:
        return {}
    births = [end.birth_epoch for end in ends.values() if end.partition_epoch == newest]
    return {
        broker: end
        for broker, end in ends.items()
        if end.partition_epoch == newest or (end.partition_epoch < 0 and max(births) == 0)
    }


def reported(ends: Iterable[LogEnd]) -> ReportedPartition | None:
    """Join what the replicas of one incarnation report; None without any."""
    ends = list(ends)
    if not ends:
        return None
    first = max(ends, key=lambda end: (end.partition_epoch, end.birth_epoch))
    last = max(end.end_offset for end in ends)
    # A replica without the birth fence says where its log begins, which may be lower.
    offset = max(end.birth_offset for end in ends if end.birth_epoch == first.birth_epoch)
    fences = {x.resize_epoch: (x.undeleted_count, x.kind) for end in ends for x in end.fences}
    return ReportedPartition(first.partition_epoch, first.birth_epoch, offset, last, fences)


def restored_counts(
    reports: Mapping[int, ReportedPartition], stored: Stored | None, *, gives_up_brokers: bool
) -> RestoredCounts | None:
    """Return the counts of a topic, or None if it was never resized.

    ``stored`` None: the store does not know the topic. ``gives_up_brokers``: the operator has
    named brokers that will not come back.
    """
    # A birth fence that was written after a later resize has only the lowest count there can be.
    reported_counts: dict[int, int] = {}
    for one in reports.values():
        for epoch, (count, _) in one.fences.items():
            reported_counts[epoch] = max(count, reported_counts.get(epoch, 0))
    stored_newest = 0 if stored is None else stored.newest_epoch
    births = max((one.birth_epoch for one in reports.values()), default=0)
    newest = max(births, stored_newest, *reported_counts, 0)
    if newest == 0:
        return None
    first = [index for index, one in reports.items() if one.birth_epoch == 0]
    initial = max((0 if stored is None else stored.initial_count), *(x + 1 for x in first), 1)
    counts = {0: initial, **reported_counts}
    if stored is not None:
        counts.setdefault(stored.resize_epoch, stored.count)
    with_records = frozenset(x.birth_epoch for x in reports.values() if x.has_records)
    stored_epoch = -1 if stored is None else stored.resize_epoch
    facts = _Known(counts, stored_epoch, with_records, gives_up_brokers)
    published = next(
        epoch
        for epoch in sorted(counts, reverse=True)
        if epoch == 0 or _is_published(epoch, reports, facts)
    )
    count = counts[published]
    listed = max(count, *(index + 1 for index in reports), 0)
    return RestoredCounts(
        initial_count=initial,
        count=count,
        published_epoch=published,
        newest_epoch=newest,
        listed=listed,
        most=max(*counts.values(), listed, 0 if stored is None else stored.listed),
        sealed_by={
            index: reports[index].sealed_by if index in reports else None
            for index in range(count, listed)
        },
        lost=tuple(index for index in range(listed) if index not in reports),
        by_epoch=counts,
    )


class _Known(NamedTuple):
    counts: Mapping[int, int]
    stored_epoch: int
    births_with_records: frozenset[int]
    gives_up_brokers: bool


def _is_published(epoch: int, reports: Mapping[int, ReportedPartition], facts: _Known) -> bool:
    count = facts.counts[epoch]
    are_there = (_is_there(x, epoch, reports.get(x), facts) for x in range(count))
    return all(are_there) and all(
        one.birth_epoch > epoch or one.is_sealed_in(epoch)
        for index, one in reports.items()
        if index >= count
    )


def _is_there(index: int, epoch: int, report: ReportedPartition | None, facts: _Known) -> bool:
    if report is not None:
        has_birth = report.has_birth or report.birth_epoch <= facts.stored_epoch
        return has_birth and report.birth_epoch <= epoch
    birth = _birth_of(index, epoch, facts.counts)
    if birth <= facts.stored_epoch or birth == 0:
        return True
    return facts.gives_up_brokers and _was_published(birth, facts)


def _birth_of(index: int, epoch: int, counts: Mapping[int, int]) -> int:
    """Return the growth that made the incarnation of a partition that is there in an epoch."""
    birth = epoch
    for earlier in sorted((x for x in counts if x <= epoch), reverse=True):
        if counts[earlier] <= index:
            break
        birth = earlier
    return birth


def _was_published(birth: int, facts: _Known) -> bool:
    """Whether a growth is shown as published, by a later resize or by records."""
    counts = facts.counts
    before = counts[max(x for x in counts if x < birth)]
    return birth in facts.births_with_records or any(
        epoch > birth and not (epoch == birth + 1 and count == before)
        for epoch, count in counts.items()
    )
