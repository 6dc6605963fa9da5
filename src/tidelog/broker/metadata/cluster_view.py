"""The cluster as the clients of one listener are told of it: who leads a partition, who is offline.

Owns what Metadata and DescribeTopicPartitions say of one partition; what a broker knows is
``metadata_cache``'s. A leader that the client cannot reach is named by nobody: a live broker
without the client's listener, one that does not live, one whose connection to here broke.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.metadata.cache import PartitionInfo
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


class Told(NamedTuple):
    """What is said of one partition; ``leader`` is -1 where ``error`` says why none is named."""

    error: ErrorCode
    leader: int
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one request is answered from. O(brokers) to make, O(replicas) for each partition."""

    broker: Broker
    unreachable: frozenset[int]
    """Live brokers without that listener."""
    unreachable_leader: ErrorCode

    @classmethod
    def of(cls, broker: Broker, listener_name: str, *, names_listeners: bool = True) -> ClusterView:
        """``names_listeners``: whether the version has LISTENER_NOT_FOUND (Metadata from v6 on)."""
        return cls(
            broker,
            broker.metadata.without_listener(listener_name),
            ErrorCode.LISTENER_NOT_FOUND if names_listeners else ErrorCode.LEADER_NOT_AVAILABLE,
        )

    def told(self, partition: PartitionInfo) -> Told:
        """Return what is said of a partition."""
        leader, broker = partition.leader, self.broker
        code = ErrorCode.NONE
        if leader in self.unreachable:
            code = self.unreachable_leader
        elif leader not in broker.metadata.brokers or broker.followers.has_lost(leader):
            code = ErrorCode.LEADER_NOT_AVAILABLE
        offline = partition.offline_replicas
        if self.unreachable:
            away = self.unreachable
            offline = tuple(x for x in partition.replicas if x in offline or x in away)
        return Told(code, -1 if code else leader, offline)
