"""The numbers of an audit: of the topic, of each partition, and of each kind of finding. No I/O.

Owns these values. Not how they are found: see ``judging``; not their words: see ``words``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.client.fences import FenceList
from tidelog.client.metadata import Topic
from tidelog.partitioning.audit_rules import EXAMPLES, Kind, TopicCounts
from tidelog.partitioning.epoch_spans import EpochSpan, spans_of


@dataclass(frozen=True, slots=True)
class AuditedPartition:
    """One listed partition: its log from ``begin`` to ``end`` at the start of the audit.

    ``fences``: those below the end, by ascending resize epoch.
    """

    begin: int
    end: int
    is_retired: bool = False
    fences: FenceList = ()

    def spans(self) -> list[EpochSpan]:
        """Return the spans of resize epochs in what is read."""
        return list(spans_of((fence.fence for fence in self.fences), self.begin, self.end))


@dataclass(frozen=True, slots=True)
class AuditedTopic:
    """A topic at the start of the audit.

    ``is_counted``: whether the cluster says counts and epochs of the topic at all.
    """

    topic: Topic
    counts: TopicCounts
    partitions: Mapping[int, AuditedPartition]
    is_counted: bool = True

    @property
    def offsets(self) -> int:
        """How many offsets are read."""
        return sum(partition.end - partition.begin for partition in self.partitions.values())

    def phases(self) -> list[dict[int, EpochSpan]]:
        """Return the spans of each partition, one resize epoch after the other.

        In this order the records of a key come in their own order: within one epoch a key has one
        home.
        """
        by_epoch: dict[int, dict[int, EpochSpan]] = {}
        for index, partition in self.partitions.items():
            for span in partition.spans():
                by_epoch.setdefault(span.resize_epoch, {})[index] = span
        return [by_epoch[epoch] for epoch in sorted(by_epoch)]


@dataclass(frozen=True, slots=True)
class Example:
    """One place where something is wrong. ``key`` is None where it is about a batch."""

    partition: int
    offset: int
    text: str
    key: bytes | None = None


@dataclass(slots=True)
class PartitionAudit:
    """What one partition holds; numbers of records.

    ``unkeyed``: without a key. ``unjudged``: of epochs in which no order was promised.
    ``aborted``: of aborted transactions. ``control``: fences, seals, markers, tombstones for
    ancestors. ``lost``: offsets that retention removed while the audit ran.
    """

    records: int = 0
    unkeyed: int = 0
    unjudged: int = 0
    misplaced: int = 0
    aborted: int = 0
    control: int = 0
    lost: int = 0


@dataclass(slots=True)
class Findings:
    """How much is wrong, by kind, and the first places."""

    counts: dict[Kind, int] = field(default_factory=dict)
    examples: dict[Kind, list[Example]] = field(default_factory=dict)

    def add(self, kind: Kind, example: Example) -> None:
        """Count one more; keep it as an example if there are few.

        Of misplaced records each partition has its own examples.
        """
        self.counts[kind] = self.counts.get(kind, 0) + 1
        kept = self.examples.setdefault(kind, [])
        if kind is Kind.HOME:
            same = sum(finding.partition == example.partition for finding in kept)
        else:
            same = len(kept)
        if same < EXAMPLES:
            kept.append(example)
