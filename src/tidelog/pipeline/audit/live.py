"""The topics of a lake as they are now, for an audit.

Owns what is asked of the brokers before anything is compared. A topic that is deleted, or that was
created again under its name, is an answer of its own and no error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tidelog.partitioning.audit_rules import TopicCounts
from tidelog.pipeline import brokers
from tidelog.pipeline.audit.pieces import is_compacted
from tidelog.pipeline.audit.totals import Home
from tidelog.pipeline.options import Mode, SourceOptions, parse

GONE = (-1, -1)


@dataclass(frozen=True, slots=True)
class Live:
    """`bounds` are log start and readable end of each partition, under the id of its topic now.

    `resized`: the counts of topics that were resized; `data_ends`: where removed partitions ended,
    also those that have come back since, which have bounds again.
    """

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[Home, tuple[int, int]] = field(default_factory=dict)
    compacted: Collection[str] = frozenset()
    resized: Mapping[str, TopicCounts] = field(default_factory=dict)
    data_ends: Mapping[Home, int] = field(default_factory=dict)

    def of(self, home: Home) -> tuple[int, int]:
        """The bounds of a partition of the lake; GONE when there is no log of it."""
        return self.bounds.get(self._now(home), GONE)

    def data_end_of(self, home: Home) -> int | None:
        """Where the data of a partition ended that was removed after a shrink of its topic."""
        return self.data_ends.get(self._now(home))

    def _now(self, home: Home) -> Home:
        topic, topic_id, partition = home
        # A cluster without topic ids, or a lake of one: the name is all there is.
        wanted = topic_id if topic_id and self.topic_ids.get(topic) else self.topic_ids.get(topic)
        return topic, wanted or "", partition

    def what_became_of(self, topic: str, topic_id: str) -> str | None:
        """Why there is nothing to compare a topic of the lake with; None where there is."""
        if topic not in self.topic_ids:
            return "the topic is deleted"
        now = self.topic_ids[topic]
        if topic_id and now and topic_id != now:
            return f"the topic was deleted and created again with the id {now}"
        return None


def check(topics: Collection[str], options: Mapping[str, str]) -> Live:
    """Ask for ids, both ends of every partition and the cleanup policies.

    `options` are those of the source without topics. Raises ClientError and PipelineError.
    """
    access = brokers.connect(parsed(options, topics))
    ids = access.existing(topics, parsed(options, topics))
    if not ids:
        return Live()
    chosen = parsed(options, ids)
    snapshot = access.snapshot(chosen)
    policies = access.policies(ids, chosen)
    return Live(
        dict(snapshot.topic_ids),
        {
            (pid.topic, snapshot.topic_ids[pid.topic], pid.partition): (state.start, state.end)
            for pid, state in snapshot.partitions.items()
        },
        frozenset(topic for topic, policy in policies.items() if is_compacted(policy)),
        snapshot.counts,
        {
            (pid.topic, pid.topic_id, pid.partition): end.data_end
            for pid, end in snapshot.former.items()
        },
    )


def parsed(options: Mapping[str, str], topics: Collection[str]) -> SourceOptions:
    """The options of the source for some topics. Raises OptionRefused."""
    return parse({**options, "subscribe": ",".join(topics)}, Mode.BATCH)
