"""The words of a hosted partition: its role, and what LeaderAndIsr says of it.

Owns types only; what becomes of them is ``partition``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from tidelog.protocol.primitives import NO_UUID

NO_LEADER = -1
NO_VERSION = -1
"""The ISR version of a replica that no LeaderAndIsr holds for."""


class StorageFailed(Exception):
    """A log directory did not do what was asked of it; the text is one line."""


class Role(Enum):
    """What this broker does with the partition."""

    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrState:
    """What LeaderAndIsr says of a partition; the defaults where its version has no such field."""

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
    hosts: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """The brokers that host the partition: ``hosts_of``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", hosts_of(self.replicas, self.targets))


def hosts_of(replicas: tuple[int, ...], _targets: tuple[int, ...]) -> tuple[int, ...]:
    """Return the brokers that host a partition: they may fetch it and join its ISR.

    These are its replicas; while partitions move, the targets will be among them.
    """
    return replicas
