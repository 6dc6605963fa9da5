"""Resized topics of a restored store: their nodes, from what brokers report. Pure (KIP-253).

Owns the step from the counts (``restored_counts``) to the topic's node and history, and the nodes
of its partitions: births as their replicas have them, retirements, what removed ones leave. Not
their leaders: see ``restoration``, which calls this for every topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.restored_counts import (
    OFFSET_JUMP,
    ReportedPartition,
    RestoredCounts,
    Stored,
    newest_incarnation,
    reported,
    restored_counts,
)
from tidelog.controller.decisions.shown_topics import shown_topic
from tidelog.metadata.records import FormerPartition, PartitionNode, TopicHistory, TopicNode
from tidelog.model.topics import TopicPartition

Ends = Mapping[int, dict[int, LogEnd]]
"""Log ends by partition and broker."""


@dataclass(frozen=True, slots=True)
class RestoredResize:
    """What a topic goes on with. ``history`` has the newest resize epoch, not yet the next."""

    counts: RestoredCounts
    node: TopicNode
    history: TopicHistory
    ends: Ends
    partition_nodes: Mapping[int, PartitionNode]


def counted(
    cluster: ClusterState,
    name: str,
    ends: Ends,
    *,
    is_known: bool,
    gives_up_brokers: bool,
) -> tuple[RestoredCounts, dict[int, dict[int, LogEnd]]] | None:
    """Return the counts of a topic and the log ends of its newest incarnations, or None.

    None: it was never resized. ``is_known``: the store knows the topic; ``ends`` has all that was
    reported of it, of any incarnation.
    """
    if not cluster.level.resizes:
        return None
    newest = {
        index: newest_incarnation(of_index, _least_epoch(cluster, name, index) if is_known else -1)
        for index, of_index in ends.items()
    }
    joined = {index: reported(of_index.values()) for index, of_index in newest.items()}
    reports = {index: one for index, one in joined.items() if one is not None}
    stored = _stored(cluster, name) if is_known else None
    counts = restored_counts(reports, stored, gives_up_brokers=gives_up_brokers)
    return None if counts is None else (counts, newest)


def _least_epoch(cluster: ClusterState, name: str, index: int) -> int:
    """Return the oldest partition epoch that the store does not know as removed."""
    node = cluster.partition_nodes.get(TopicPartition(name, index))
    history = cluster.topic_histories.get(name)
    former = None if history is None else history.former.get(index)
    removed = -1 if former is None else former.partition_epoch + 1
    return max(removed, -1 if node is None else node.partition_epoch)


def _stored(cluster: ClusterState, name: str) -> Stored | None:
    node, history = cluster.topics[name], cluster.topic_histories.get(name)
    shown = shown_topic(node, history)
    listed = len(node.partitions)
    if history is None or shown.count < 0:
        return None
    plan = history.resize
    newest = max(history.resize_epoch, 0 if plan is None else plan.resize_epoch)
    initial = history.initial_partition_count
    return Stored(initial, shown.count, shown.resize_epoch, newest, listed)


def restored_resize(
    cluster: ClusterState,
    name: str,
    node: TopicNode,
    history: TopicHistory,
    ends: Ends,
    *,
    is_known: bool,
    gives_up_brokers: bool,
    next_epoch: Callable[[], int],
    jump: int,
) -> RestoredResize | None:
    """Return what a resized topic goes on with, or None. ``next_epoch`` gives partition epochs.

    ``jump`` is that of epochs: the new resize epoch is the newest one and this.
    """
    counting = counted(cluster, name, ends, is_known=is_known, gives_up_brokers=gives_up_brokers)
    if counting is None:
        return None
    counts, newest = counting
    made = _Nodes(cluster, name, history, is_known, counts, counts.newest_epoch + jump, next_epoch)
    partitions: dict[int, list[int]] = {}
    hosts = next(iter(node.partitions.values()))
    for index in range(counts.listed):
        # A partition without a replica and without a node is hosted as the one below it.
        partitions[index] = hosts = list(node.partitions.get(index) or hosts)
    nodes = {x: made.of(x, reported(newest.get(x, {}).values())) for x in range(counts.listed)}
    changed = msgspec.structs.replace(
        node,
        partitions=partitions,
        initial_partition_count=counts.initial_count,
        undeleted_partition_count=counts.count,
    )
    return RestoredResize(
        counts,
        changed,
        msgspec.structs.replace(
            history,
            initial_partition_count=counts.initial_count,
            resize_epoch=counts.newest_epoch,
            resize=None,
            former=made.former(jump),
        ),
        {index: newest.get(index, {}) for index in partitions},
        nodes,
    )


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes of a topic's partitions, and what its removed ones leave."""

    cluster: ClusterState
    name: str
    known: TopicHistory
    is_known: bool
    counts: RestoredCounts
    resize_epoch: int
    next_epoch: Callable[[], int]

    def of(self, index: int, report: ReportedPartition | None) -> PartitionNode:
        """Return the node of a listed partition: of its replicas, of the store, or a new one."""
        stored = self._stored(index)
        retirement = self._retirement(index)
        if report is not None and (
            stored is None or stored.partition_epoch < report.partition_epoch
        ):
            epoch = report.partition_epoch if report.partition_epoch >= 0 else self.next_epoch()
            return PartitionNode(
                epoch,
                birth_epoch=report.birth_epoch,
                birth_offset=report.birth_offset,
                retirement_epoch=retirement,
            )
        if stored is not None:
            changes: dict[str, Any] = {"retirement_epoch": retirement}
            if retirement < 0:
                changes["leader_epoch_before_deletion"] = {}
            return msgspec.structs.replace(stored, **changes)
        is_first = index < self.counts.initial_count
        return PartitionNode(
            self.next_epoch(),
            birth_epoch=0 if is_first else self.resize_epoch,
            birth_offset=0 if is_first else self._beyond(index),
            retirement_epoch=retirement,
        )

    def former(self, jump: int) -> dict[int, FormerPartition]:
        """Return where each partition that is not listed any more ended, at most."""
        made = dict(self.known.former)
        for index in range(self.counts.listed, self.counts.most):
            stored, before = self._stored(index), made.get(index)
            if before is not None and self._is_newest(index, before):
                continue
            leader_epoch = jump + (0 if before is None else before.leader_epoch)
            state = self.cluster.states.get(TopicPartition(self.name, index))
            if self.is_known and state is not None:
                leader_epoch = max(leader_epoch, state.leader_epoch + jump)
            epochs = (
                -1 if before is None else before.partition_epoch,
                -1 if stored is None else stored.partition_epoch,
            )
            made[index] = FormerPartition(
                self._beyond(index),
                leader_epoch,
                partition_epoch=max(epochs),
                resize_epoch=self.resize_epoch,
            )
        return made

    def _is_newest(self, index: int, before: FormerPartition) -> bool:
        """Whether no later resize made the partition again, as far as fences show."""
        return not any(
            epoch > before.resize_epoch and count > index
            for epoch, count in self.counts.by_epoch.items()
        )

    def _retirement(self, index: int) -> int:
        if index < self.counts.count:
            return -1
        sealed_by = self.counts.sealed_by[index]
        return self.resize_epoch if sealed_by is None else sealed_by

    def _stored(self, index: int) -> PartitionNode | None:
        tp = TopicPartition(self.name, index)
        return self.cluster.partition_nodes.get(tp) if self.is_known else None

    def _beyond(self, index: int) -> int:
        """Return an offset above all that a lost partition can have given out."""
        stored, former = self._stored(index), self.known.former.get(index)
        ends = (
            0 if stored is None else stored.birth_offset,
            0 if former is None else former.end_offset,
        )
        return max(ends) + OFFSET_JUMP
