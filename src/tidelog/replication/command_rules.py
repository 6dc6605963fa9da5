"""Rules of LeaderAndIsr and StopReplica, partition by partition: which command a broker applies.

Owns the checks of topic id, partition epoch, leader epoch and ISR version; pure. Not applying a
decision: see `broker.control_plane`. Each check holds alone, even where the one before it would
have sufficed.

LeaderAndIsr, in this order (KIP-516, KIP-253; docs/design/control-channel.md):

| local replica | request | decision |
|---|---|---|
| none | any | CREATE |
| another topic id, or another partition epoch | UNSPECIFIED | refused: it makes nothing stale |
| a newer partition epoch | not FULL | refused with FENCED_LEADER_EPOCH: it came late |
| another topic id, or another partition epoch | | REPLACE: the local one is stale |
| no topic id | has one, topic marked as migrated | adopts it, then as below |
| no topic id | has one, topic was created with it | REPLACE |
| no partition epoch (from below level 1.5) | has one, birth epoch 0 | adopts it, then as below |
| no partition epoch | has one, it was born by a growth | REPLACE |
| any | leader -1 and epoch -1 (a damaged state node) | IGNORE |
| leader epoch e | epoch < e | refused with STALE_CONTROLLER_EPOCH, as by Kafka |
| leader epoch e | epoch = e, newer ISR version | UPDATE: ISR, targets, flags; truncates nothing |
| leader epoch e | epoch = e, ISR version not newer | IGNORE |
| leader epoch e | epoch > e | BECOME |

StopReplica (KIP-570): older epoch is fenced; equal or newer is accepted; -2 overrides; -1 skips
the check. From v4 the topic id must match, and the partition epoch unless it is -1, whatever the
leader epoch says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple
from uuid import UUID

from tidelog.model.errors import ErrorCode

NO_TOPIC_ID = UUID(int=0)

NO_EPOCH = -1
"""Leader epoch of a StopReplica older than v3: the check is skipped (KIP-570)."""

DELETED_EPOCH = -2
"""Leader epoch of a StopReplica for a topic being deleted: overrides any epoch (KIP-570)."""

ANY_PARTITION_EPOCH = -1


class LeaderAndIsrType(IntEnum):
    """The type of a LeaderAndIsr request from v5 on (KIP-516)."""

    UNSPECIFIED = 0
    INCREMENTAL = 1
    FULL = 2


class Incarnation(NamedTuple):
    """Which incarnation of a partition a replica or a command is of, as far as it says so."""

    topic_id: UUID = NO_TOPIC_ID
    partition_epoch: int = ANY_PARTITION_EPOCH


@dataclass(frozen=True, slots=True)
class LocalReplica:
    """What a broker knows of one replica that it hosts."""

    topic_id: UUID = NO_TOPIC_ID
    partition_epoch: int = ANY_PARTITION_EPOCH
    leader_epoch: int = -1
    isr_version: int = -1

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation as the disk names it."""
        return Incarnation(self.topic_id, self.partition_epoch)


@dataclass(frozen=True, slots=True)
class LeaderAndIsrCommand:
    """One partition of a LeaderAndIsr request; no id and epoch -1 where the version has none."""

    leader: int
    leader_epoch: int
    isr_version: int
    topic_id: UUID = NO_TOPIC_ID
    partition_epoch: int = ANY_PARTITION_EPOCH
    migrated: bool = False
    kind: LeaderAndIsrType = LeaderAndIsrType.INCREMENTAL
    """That of its request."""
    birth_epoch: int = 0
    """The resize epoch of the growth that made the partition; 0: its topic was created with it."""

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation as the request names it."""
        return Incarnation(self.topic_id, self.partition_epoch)


class Action(Enum):
    """What to do with a partition of a LeaderAndIsr request."""

    CREATE = "create"
    REPLACE = "replace"
    BECOME = "become"
    UPDATE = "update"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Apply:
    """Do ``action``; with ``adopt_identity`` write the request's topic id and partition epoch to
    the replica first."""

    action: Action
    adopt_identity: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class CommandRefusal:
    """Change nothing and respond with ``error``; ``why`` is one clause for the log."""

    error: ErrorCode
    why: str


_CREATE = Apply(Action.CREATE)


def decide_leader_and_isr(
    local: LocalReplica | None, command: LeaderAndIsrCommand
) -> Apply | CommandRefusal:
    """Decide one partition of a LeaderAndIsr request by the table above."""
    # Before all else: a damaged node must make no replica stale (promise 20).
    if command.leader == -1 and command.leader_epoch == -1:
        return Apply(Action.IGNORE, why="its state is damaged in the store")
    if local is None:
        return _CREATE
    adopt = False
    # The incarnation first: leader epochs order the commands of one incarnation only.
    if command.topic_id != NO_TOPIC_ID:
        if local.topic_id == NO_TOPIC_ID:
            if not command.migrated:
                why = f"it has no topic id, but its topic was created with {command.topic_id}"
                return _stale(command, ErrorCode.INCONSISTENT_TOPIC_ID, why)
            adopt = True
        elif local.topic_id != command.topic_id:
            why = f"its topic id is {local.topic_id}, the topic's is {command.topic_id}"
            return _stale(command, ErrorCode.INCONSISTENT_TOPIC_ID, why)
    if not may_be_of(local.partition_epoch, command.partition_epoch, command.birth_epoch):
        local_epoch = local.partition_epoch
        # A FULL begins a channel, and only the newest channel counts: it cannot have come late.
        if local_epoch > command.partition_epoch and command.kind != LeaderAndIsrType.FULL:
            why = f"partition epoch {command.partition_epoch} is older than {local_epoch}"
            return CommandRefusal(ErrorCode.FENCED_LEADER_EPOCH, why)
        why = f"its partition epoch is {local_epoch}, not {command.partition_epoch}"
        if local_epoch == ANY_PARTITION_EPOCH:
            born = f"born in resize epoch {command.birth_epoch}"
            why = f"it has no partition epoch, and partition epoch {command.partition_epoch} {born}"
        return _stale(command, ErrorCode.FENCED_LEADER_EPOCH, why)
    adopt = adopt or (local.partition_epoch == ANY_PARTITION_EPOCH != command.partition_epoch)
    if command.leader_epoch < local.leader_epoch:
        why = f"leader epoch {command.leader_epoch} is older than {local.leader_epoch}"
        return CommandRefusal(ErrorCode.STALE_CONTROLLER_EPOCH, why)
    if command.leader_epoch > local.leader_epoch:
        return Apply(Action.BECOME, adopt)
    if command.isr_version > local.isr_version:
        return Apply(Action.UPDATE, adopt)
    return Apply(Action.IGNORE, adopt, "it is already applied")


def _stale(command: LeaderAndIsrCommand, error: ErrorCode, why: str) -> Apply | CommandRefusal:
    """Replace a replica of another topic id or partition epoch, if the request may (KIP-516)."""
    if command.kind == LeaderAndIsrType.UNSPECIFIED:
        return CommandRefusal(
            error, f"{why}, and a request of type UNSPECIFIED makes nothing stale"
        )
    return Apply(Action.REPLACE, why=why)


def may_be_of(held: int, partition_epoch: int, birth_epoch: int) -> bool:
    """Return whether a replica is one of this incarnation; ``held`` is the epoch on its disk.

    Without one it was made below level 1.5, where no partition was ever removed: it belongs to the
    first incarnation, whose birth epoch is 0 (KIP-253, docs/design/elastic.md).
    """
    if ANY_PARTITION_EPOCH in (held, partition_epoch):
        return partition_epoch == ANY_PARTITION_EPOCH or birth_epoch == 0
    return held == partition_epoch


def _other_incarnation(held: int, asked: int) -> bool:
    return ANY_PARTITION_EPOCH not in (held, asked) and held != asked


@dataclass(frozen=True, slots=True)
class StopReplicaCommand:
    """One partition of a StopReplica request; ``checks_topic_id`` is true from v4 on."""

    leader_epoch: int
    delete: bool
    checks_topic_id: bool = False
    topic_id: UUID = NO_TOPIC_ID
    partition_epoch: int = ANY_PARTITION_EPOCH


class StopAction(Enum):
    """What to do with a partition of a StopReplica request."""

    STOP = "stop"
    DELETE = "delete"
    NOTHING = "nothing"


def decide_stop_replica(
    local: LocalReplica | None, command: StopReplicaCommand
) -> StopAction | CommandRefusal:
    """Decide one partition of a StopReplica request (KIP-570, "Proposed Changes").

    A partition without a local replica is confirmed: a repeated request must succeed.
    """
    if local is None:
        return StopAction.NOTHING
    # Before the leader epoch: -2 overrides the check of that, never of the incarnation (promise
    # 18).
    if command.checks_topic_id and local.topic_id != command.topic_id:
        why = f"the replica's topic id is {local.topic_id}, the request's {command.topic_id}"
        return CommandRefusal(ErrorCode.INCONSISTENT_TOPIC_ID, why)
    if command.checks_topic_id and _other_incarnation(
        local.partition_epoch, command.partition_epoch
    ):
        why = f"partition epoch {command.partition_epoch} is not {local.partition_epoch}"
        return CommandRefusal(ErrorCode.FENCED_LEADER_EPOCH, why)
    unchecked = command.leader_epoch in (NO_EPOCH, DELETED_EPOCH)
    if not unchecked and command.leader_epoch < local.leader_epoch:
        why = f"leader epoch {command.leader_epoch} is older than {local.leader_epoch}"
        return CommandRefusal(ErrorCode.FENCED_LEADER_EPOCH, why)
    return StopAction.DELETE if command.delete else StopAction.STOP


def stale_in_full(
    local: Mapping[tuple[str, int], Incarnation], full: Mapping[tuple[str, int], Incarnation]
) -> dict[tuple[str, int], str]:
    """Return the local partitions that a FULL LeaderAndIsr makes stale, each with the reason.

    ``full`` has what the request says of (topic, partition), ``local`` what is on disk. A replica
    in the request that lacks an id or an epoch on disk is judged by ``decide_leader_and_isr``.
    An empty FULL is valid: no partition is assigned to this broker (KIP-516). The controller must
    prove that it may send one (promise 20). O(local partitions).
    """
    stale: dict[tuple[str, int], str] = {}
    for key, (topic_id, epoch) in local.items():
        assigned = full.get(key)
        if assigned is None:
            stale[key] = "it is not assigned to this broker"
        elif NO_TOPIC_ID not in (topic_id, assigned.topic_id) and topic_id != assigned.topic_id:
            stale[key] = f"its topic id is {topic_id}, the topic's is {assigned.topic_id}"
        elif _other_incarnation(epoch, assigned.partition_epoch):
            stale[key] = f"its partition epoch is {epoch}, not {assigned.partition_epoch}"
    return stale
