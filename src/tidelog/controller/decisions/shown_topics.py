"""What clients see of a topic: its counts, its resize epoch, its partitions (KIP-253). Pure.

Owns the one function that says it, from the topic's node and `/tidelog/topics/T`: UpdateMetadata is
built with it, and the completion of nodes asks it which partitions may be born. Not the steps of a
resize. Source: docs/design/elastic.md.

Until the plan of a resize is published, clients see what was before it. Counts and resize epochs:

| plan | count | resize epoch | partitions |
|---|---|---|---|
| none, or a published one | of the node | of the history | all of the node |
| grow from C to C' | C | one below the plan's | below C: the others are not born |
| shrink from C to C' | C | one below the plan's | all of the node |
| undo, back from C' to C | C | two below the plan's | below C, if that growth was undone; or all |
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.metadata.records import ResizeKind, TopicHistory, TopicNode

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ShownTopic:
    """The numbers that clients see. ``end``: only partitions below it are shown; None: all are."""

    initial_count: int = UNKNOWN
    count: int = UNKNOWN
    resize_epoch: int = 0
    end: int | None = None

    def shows(self, partition: int) -> bool:
        """Whether clients see a partition of the topic's node."""
        return self.end is None or partition < self.end


def shown_topic(node: TopicNode, history: TopicHistory | None) -> ShownTopic:
    """Return what clients see of a topic. UNKNOWN counts: the node is not complete yet."""
    initial = UNKNOWN if node.initial_partition_count is None else node.initial_partition_count
    count = UNKNOWN if node.undeleted_partition_count is None else node.undeleted_partition_count
    if history is None:
        return ShownTopic(initial, count)
    plan = history.resize
    if plan is None or plan.published:
        return ShownTopic(initial, count, history.resize_epoch)
    is_growth = plan.to_count > plan.from_count
    if plan.kind is ResizeKind.UNDO:
        before = plan.to_count
        return ShownTopic(initial, before, plan.resize_epoch - 2, None if is_growth else before)
    before = plan.from_count
    return ShownTopic(initial, before, plan.resize_epoch - 1, before if is_growth else None)
