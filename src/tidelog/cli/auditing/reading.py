"""One reading of a topic for an audit: phase by phase, each offset once.

Owns the order of the reading and its progress. Not the rules: see ``judging``.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from tidelog.cli.auditing.facts import AuditedTopic
from tidelog.cli.auditing.judging import TopicJudge
from tidelog.cli.refusal import Failed
from tidelog.client.cluster import Cluster
from tidelog.client.fetching.whole_partitions import read_whole
from tidelog.model.topics import TopicPartition


@dataclass(slots=True)
class AuditProgress:
    """How many offsets have been read, of how many; none before it is known."""

    topic: str
    done: int = 0
    total: int = 0

    def text(self) -> str:
        """Return the line for a person."""
        if not self.total:
            return f"asking for {self.topic}"
        percent = 100 * self.done // self.total
        return f"{self.done:,} of {self.total:,} offsets read ({percent} %)"


@dataclass(slots=True)
class ChangesMeanwhile:
    """What happened to the topic while it was read."""

    removed: set[int] = field(default_factory=set)
    """Partitions that were removed: retired ones, when they were empty."""
    resize_epoch: int | None = None
    """Its newer resize epoch."""


async def read(
    cluster: Cluster, audited: AuditedTopic, judge: TopicJudge, progress: AuditProgress
) -> ChangesMeanwhile:
    """Read all phases into a judge. Raises ClientError, CorruptRecords and Failed."""
    name = audited.topic.name
    gone: set[TopicPartition] = set()
    progress.total = audited.offsets
    for phase in audited.phases():
        ranges = {
            TopicPartition(name, index): (span.begin, span.end)
            for index, span in phase.items()
            if TopicPartition(name, index) not in gone
        }
        reached = {tp.partition: begin for tp, (begin, _) in ranges.items()}
        async with aclosing(read_whole(cluster, ranges, gone=gone)) as batches:
            async for fetched in batches:
                index = fetched.partition.partition
                span = phase[index]
                # It goes on elsewhere only where retention has removed records.
                judge.skipped(index, reached[index], min(fetched.offset, span.end))
                judge.take(fetched, span)
                upto = min(fetched.next_offset, span.end)
                progress.done += upto - reached[index]
                reached[index] = upto
        for tp, (_, end) in ranges.items():
            if tp not in gone:
                judge.skipped(tp.partition, reached[tp.partition], end)
            progress.done += end - reached[tp.partition]
    now = (await cluster.describe([name])).topics.get(name)
    if now is None or now.error or now.topic_id != audited.topic.topic_id:
        raise Failed(f"topic {name} was deleted while it was read")
    newer = now.resize_epoch if now.resize_epoch > audited.topic.resize_epoch else None
    return ChangesMeanwhile({tp.partition for tp in gone}, newer)
