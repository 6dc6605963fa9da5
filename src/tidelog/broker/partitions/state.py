"""Types of a hosted partition: its role, its state from LeaderAndIsr, and what syncs its log.

Owns the types only. Not the changes of role: see ``partition``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

from tidelog.broker.partitions.produce_tags import NO_TAGS, tags_of
from tidelog.model.topics import hosts_of
from tidelog.protocol.primitives import NO_UUID

NO_LEADER = -1
NO_VERSION = -1
"""The ISR version of a replica before its first LeaderAndIsr, and after a stop."""


class StorageFailed(Exception):
    """A log directory refused an operation, or it failed; the text is one line."""

    level = logging.ERROR
    """Of the line in the log."""


class NotYet(StorageFailed):
    """Nothing failed: the controller sends its command again, and finds it changed."""

    level = logging.INFO


class Role(Enum):
    """The role of this broker for the partition."""

    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrState:
    """A partition's state from LeaderAndIsr; defaults for fields that its version lacks."""

    topic_id: UUID = NO_UUID
    partition_epoch: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    isr_version: int = -1
    replicas: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    controller_epoch: int = -1
    is_unclean_leader: bool = False
    has_debt: bool = False
    undeleted_count: int = -1
    """C of this partition (KIP-253): -1 until a LeaderAndIsr v6 names it, and no count of a client
    is checked before. Count, resize epoch and seal change in one step with the leader epoch."""
    resize_epoch: int = 0
    sealed: bool = False
    """Whether it is retired: it takes no data after its seal."""
    birth_epoch: int = 0
    start_offset: int = -1
    """Where the log of a new incarnation begins; -1: not said, so at 0."""
    original: tuple[int, ...] = field(default=(), compare=False)
    """While targets are set: the replicas before the move, as far as this broker saw them. A metric
    counts by them; no command names them."""
    hosts: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """The brokers that host the partition, its replicas and targets: they may fetch it and join
    its ISR."""
    produce_tags: bytes = field(init=False, compare=False, repr=False)
    """The tags of a producer that sends its count; none while there is no count to send."""

    @property
    def is_assigned(self) -> bool:
        """Whether a LeaderAndIsr was applied, and no StopReplica after it: the controller knows the
        replica, and sends its topic's configurations."""
        is_stopped = self.leader == NO_LEADER and self.isr_version == NO_VERSION
        return self.leader_epoch >= 0 and not is_stopped

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", hosts_of(self.replicas, self.targets))
        named = self.undeleted_count, self.resize_epoch, self.partition_epoch
        object.__setattr__(self, "produce_tags", tags_of(*named) if min(named) >= 0 else NO_TAGS)

    def is_copied_to(self, broker: int) -> bool:
        """Whether the partition moves to a broker that has not joined its replicas yet."""
        return broker in self.targets and broker not in self.replicas

    def after(self, former: LeaderAndIsrState) -> LeaderAndIsrState:
        """Return this state with the replicas before its move: those of the last state without
        targets. A broker that starts in mid-move takes the first ones that it sees."""
        if not self.targets:
            return self
        before = former.original if former.targets else former.replicas
        return replace(self, original=before or self.replicas)


UNASSIGNED = LeaderAndIsrState()
"""The state of a replica before its first LeaderAndIsr. It cannot change, so all share it."""


class Commit(Protocol):
    """Background syncs of logs, as a partition asks for them: ``group_commit``."""

    before_ack: bool

    def want(self, partition: Any, /) -> None:
        """Sync all present records of the partition's log soon."""
