"""The topics of a lake as they are now, for an audit.

Owns what is asked of the brokers before anything is compared. A topic that is deleted, or that was
created again under its name, is an answer of its own and no error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tidelog.pipeline import brokers
from tidelog.pipeline.audit.pieces import is_compacted
from tidelog.pipeline.audit.totals import Home
from tidelog.pipeline.options import Mode, SourceOptions, parse

GONE = (-1, -1)


@dataclass(frozen=True, slots=True)
class Live:
    """`bounds` are log start and readable end of each partition, under the id of its topic now."""

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[Home, tuple[int, int]] = field(default_factory=dict)
    compacted: Collection[str] = frozenset()

    def of(self, home: Home) -> tuple[int, int]:
        """The bounds of a partition of the lake; GONE when there is no log of it."""
        topic, topic_id, partition = home
        # A cluster without topic ids, or a lake of one: the name is all there is.
        wanted = topic_id if topic_id and self.topic_ids.get(topic) else self.topic_ids.get(topic)
        return self.bounds.get((topic, wanted or "", partition), GONE)

    def what_became_of(self, topic: str, topic_id: str) -> str | None:
        """Why there is nothing to compare a topic of the lake with; None where there is."""
        if topic not in self.topic_ids:
            return "the topic is deleted"
        now = self.topic_ids[topic]
        if topic_id and now and topic_id != now:
            return f"the topic was deleted and created again with the id {now}"
        return None


def look(topics: Collection[str], options: Mapping[str, str]) -> Live:
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
    )


def parsed(options: Mapping[str, str], topics: Collection[str]) -> SourceOptions:
    """The options of the source for some topics. Raises OptionRefused."""
    return parse({**options, "subscribe": ",".join(topics)}, Mode.BATCH)
