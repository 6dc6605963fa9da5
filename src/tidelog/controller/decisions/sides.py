"""Sides of a resize: the count and resize epoch of each partition, from the nodes alone. Pure.

Owns which count and resize epoch a LeaderAndIsr brings to a partition (KIP-253). Not what clients
see: see ``shown_topics``. Not the steps that move a partition to the other side: see ``resizing``.
Source: docs/design/elastic.md.

| a partition | count | resize epoch |
|---|---|---|
| retired | the lowest partition that retired with it | of its retirement |
| no plan stands, or a published one | of the topic | of the topic |
| a plan stands, and has not reached the partition | before the plan | before the plan |
| the plan's cursor has passed the partition | after the plan | of the plan |
| an undo has not reached the partition | as the undone plan left it | as it left it |
| an undo has yet to remove the partition | as the undone plan left it | as it left it |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tidelog.metadata.records import (
    PartitionNode,
    ResizeKind,
    ResizePlan,
    ResizeStep,
    TopicHistory,
    TopicNode,
)
from tidelog.model.topics import TopicPartition

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Side:
    """The partition count and the resize epoch of a partition."""

    count: int
    resize_epoch: int


_side = lru_cache(maxsize=1_024)(Side)


def common_side(node: TopicNode, history: TopicHistory | None) -> Side | None:
    """Return the side of all partitions of a topic, if none is retired and no plan stands.

    Called for every topic of a request: most were never resized.
    """
    count = node.undeleted_partition_count
    if count is None:
        count = UNKNOWN
    elif len(node.partitions) > count:
        return None
    if history is None:
        return _side(count, 0)
    if history.resize is not None and not history.resize.published:
        return None
    return _side(count, history.resize_epoch)


class Sides:
    """The sides of one topic's partitions; grows with those that are retired."""

    def __init__(
        self,
        name: str,
        node: TopicNode,
        history: TopicHistory | None,
        nodes: Mapping[TopicPartition, PartitionNode],
    ) -> None:
        count = node.undeleted_partition_count
        count = UNKNOWN if count is None else count
        plan = None if history is None else history.resize
        self._topic = Side(count, 0 if history is None else history.resize_epoch)
        self._plan = None if plan is None or plan.published else plan
        self._name, self._nodes = name, nodes
        self._lowest: dict[int, int] = {}
        first = count if plan is None else min(plan.from_count, plan.to_count)
        if self._plan is None and (count == UNKNOWN or len(node.partitions) <= first):
            return
        for index in sorted(x for x in node.partitions if x >= first):
            stored = nodes.get(TopicPartition(name, index))
            if stored is not None and stored.retirement_epoch >= 0:
                self._lowest.setdefault(stored.retirement_epoch, index)

    def of(self, index: int) -> Side:
        """Return the side of a partition."""
        if self._lowest:
            node = self._nodes.get(TopicPartition(self._name, index))
            if node is not None and node.retirement_epoch in self._lowest:
                return Side(self._lowest[node.retirement_epoch], node.retirement_epoch)
        return self._topic if self._plan is None else side_of(self._plan, index)

    def is_born(self, index: int) -> bool:
        """Return whether a partition exists: a growth writes the assignment before the nodes."""
        plan = self._plan
        if plan is None or plan.to_count <= plan.from_count or index < plan.from_count:
            return True
        return TopicPartition(self._name, index) in self._nodes


def side_of(plan: ResizePlan, index: int) -> Side:
    """Return the side of a partition that is not retired, while a plan stands."""
    before = Side(plan.from_count, plan.resize_epoch - 1)
    after = Side(plan.to_count, plan.resize_epoch)
    if plan.kind is ResizeKind.UNDO:
        is_reached = index < min(plan.cursor, plan.to_count)
        return after if is_reached else side_of(undone(plan), index)
    if plan.step is ResizeStep.BIRTH or index >= plan.from_count:
        return after
    is_reached = plan.step is ResizeStep.FENCE and index < plan.cursor
    return after if is_reached else before


def undone(plan: ResizePlan) -> ResizePlan:
    """Return the resize that an undo undoes, as it stood then."""
    if plan.from_count == plan.to_count:
        kind = ResizeKind.SAME
    else:
        kind = ResizeKind.GROW if plan.from_count > plan.to_count else ResizeKind.SHRINK
    return ResizePlan(
        kind,
        from_count=plan.to_count,
        to_count=plan.from_count,
        resize_epoch=plan.resize_epoch - 1,
        step=plan.undone_step or ResizeStep.FENCE,
        cursor=plan.undone_cursor,
    )
