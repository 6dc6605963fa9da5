"""The cluster as clients of one listener see it: leaders and offline replicas of partitions.

Owns what Metadata and DescribeTopicPartitions return for one partition, and how a topic appears.
Not the metadata itself: see ``cache``. A leader that the client cannot reach is not named: a live
broker without the client's listener, a broker that is not live, or one whose connection to this
broker broke.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.broker.metadata.cache import MetadataCache, PartitionInfo, TopicMetadata
from tidelog.broker.metadata.encoded_topics import Appearance, Form
from tidelog.model.errors import ErrorCode


class VisiblePartition(NamedTuple):
    """What clients see of one partition; ``leader`` is -1 when ``error`` is not NONE."""

    error: ErrorCode
    leader: int
    offline: tuple[int, ...]


_NONE: frozenset[int] = frozenset()


def _always(_topic: str) -> bool:
    """For responses without counts."""
    return True


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The view at one moment. O(brokers) to make, O(replicas) for each partition."""

    metadata: MetadataCache
    named: frozenset[int]
    """Brokers that can be named as leaders: the live ones, without those followed here whose
    connection broke."""
    unreachable: frozenset[int]
    """Live brokers without that listener."""
    unreachable_leader: ErrorCode
    is_ordered: Callable[[str], bool]
    """Whether a topic keeps the order of keys: only then its counts are shown (KIP-253)."""

    @classmethod
    def of(
        cls,
        metadata: MetadataCache,
        has_lost: Callable[[int], bool],
        listener_name: str,
        *,
        names_listeners: bool = True,
        is_ordered: Callable[[str], bool] = _always,
    ) -> ClusterView:
        """``has_lost``: whether the connection to a leader that is followed here broke.

        ``names_listeners``: whether the version has LISTENER_NOT_FOUND (Metadata from v6 on).
        """
        return cls(
            metadata,
            frozenset(node_id for node_id in metadata.brokers if not has_lost(node_id)),
            metadata.without_listener(listener_name),
            ErrorCode.LISTENER_NOT_FOUND if names_listeners else ErrorCode.LEADER_NOT_AVAILABLE,
            is_ordered,
        )

    def appearance_of(self, topic: TopicMetadata, form: Form) -> Appearance:
        """Return how a topic appears in this view. O(leaders of the topic)."""
        has_counts = form.tagged and topic.undeleted_partition_count >= 0
        leaders = topic.leaders
        unnamed = _NONE if leaders <= self.named else leaders - self.named
        return Appearance(
            form, has_counts and self.is_ordered(topic.name), unnamed, self.unreachable
        )

    def visible(self, partition: PartitionInfo) -> VisiblePartition:
        """Return the error, leader and offline replicas of a partition for this listener."""
        leader = partition.leader
        code = ErrorCode.NONE
        if leader in self.unreachable:
            code = self.unreachable_leader
        elif leader not in self.named:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        offline = partition.offline_replicas
        if self.unreachable:
            away = self.unreachable
            offline = tuple(x for x in partition.replicas if x in offline or x in away)
        return VisiblePartition(code, -1 if code else leader, offline)
