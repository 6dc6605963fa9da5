"""Rules of LeaderAndIsr and StopReplica, partition by partition: which command a broker applies.

Owns the checks of topic id, partition epoch, leader epoch and ISR version; pure. Not applying a
decision: see `broker.control_plane`. Each check holds alone, even where the one before it would
have sufficed.

LeaderAndIsr, in this order (KIP-516, KIP-253; docs/design/control-channel.md):

| local replica | request | decision |
|---|---|---|
| none | any | CREATE |
| another topic id, or another partition epoch | UNSPECIFIED | refused: it makes nothing stale |
| another topic id, or another partition epoch | | REPLACE: the local one is stale |
| no topic id | has one, topic marked as migrated | adopts it, then as below |
| no topic id | has one, topic was created with it | REPLACE |
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

from dataclasses import dataclass
from enum import Enum, IntEnum
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


@dataclass(frozen=True, slots=True)
class LocalReplica:
    """What a broker knows of one replica that it hosts."""

    topic_id: UUID = NO_TOPIC_ID
    partition_epoch: int = ANY_PARTITION_EPOCH
    leader_epoch: int = -1
    isr_version: int = -1


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


class Action(Enum):
    """What to do with a partition of a LeaderAndIsr request."""

    CREATE = "create"
    REPLACE = "replace"
    BECOME = "become"
    UPDATE = "update"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Apply:
    """Do ``action``; with ``adopt_topic_id`` write the request's topic id to the replica first."""

    action: Action
    adopt_topic_id: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Change nothing and respond with ``error``; ``why`` is one clause for the log."""

    error: ErrorCode
    why: str


def decide_leader_and_isr(
    local: LocalReplica | None, command: LeaderAndIsrCommand
) -> Apply | Refusal:
    """Decide one partition of a LeaderAndIsr request by the table above."""
    if command.leader == -1 and command.leader_epoch == -1:
        return Apply(Action.IGNORE, why="its state is damaged in the store")
    if local is None:
        return Apply(Action.CREATE)
    adopt = False
    if command.topic_id != NO_TOPIC_ID:
        if local.topic_id == NO_TOPIC_ID:
            if not command.migrated:
                why = f"it has no topic id, but its topic was created with {command.topic_id}"
                return _stale(command, ErrorCode.INCONSISTENT_TOPIC_ID, why)
            adopt = True
        elif local.topic_id != command.topic_id:
            why = f"its topic id is {local.topic_id}, the topic's is {command.topic_id}"
            return _stale(command, ErrorCode.INCONSISTENT_TOPIC_ID, why)
    if _other_incarnation(local.partition_epoch, command.partition_epoch):
        why = f"its partition epoch is {local.partition_epoch}, not {command.partition_epoch}"
        return _stale(command, ErrorCode.FENCED_LEADER_EPOCH, why)
    if command.leader_epoch < local.leader_epoch:
        why = f"leader epoch {command.leader_epoch} is older than {local.leader_epoch}"
        return Refusal(ErrorCode.STALE_CONTROLLER_EPOCH, why)
    if command.leader_epoch > local.leader_epoch:
        return Apply(Action.BECOME, adopt)
    if command.isr_version > local.isr_version:
        return Apply(Action.UPDATE, adopt)
    return Apply(Action.IGNORE, adopt, "it is already applied")


def _stale(command: LeaderAndIsrCommand, error: ErrorCode, why: str) -> Apply | Refusal:
    """Replace a replica of another topic id or partition epoch, if the request may (KIP-516)."""
    if command.kind == LeaderAndIsrType.UNSPECIFIED:
        return Refusal(error, f"{why}, and a request of type UNSPECIFIED makes nothing stale")
    return Apply(Action.REPLACE, why=why)


def _other_incarnation(known: int, asked: int) -> bool:
    return ANY_PARTITION_EPOCH not in (known, asked) and known != asked


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
) -> StopAction | Refusal:
    """Decide one partition of a StopReplica request (KIP-570, "Proposed Changes").

    A partition without a local replica is confirmed: a repeated request must succeed.
    """
    if local is None:
        return StopAction.NOTHING
    if command.checks_topic_id and local.topic_id != command.topic_id:
        why = f"the replica's topic id is {local.topic_id}, the request's {command.topic_id}"
        return Refusal(ErrorCode.INCONSISTENT_TOPIC_ID, why)
    if command.checks_topic_id and _other_incarnation(
        local.partition_epoch, command.partition_epoch
    ):
        why = f"partition epoch {command.partition_epoch} is not {local.partition_epoch}"
        return Refusal(ErrorCode.FENCED_LEADER_EPOCH, why)
    unchecked = command.leader_epoch in (NO_EPOCH, DELETED_EPOCH)
    if not unchecked and command.leader_epoch < local.leader_epoch:
        why = f"leader epoch {command.leader_epoch} is older than {local.leader_epoch}"
        return Refusal(ErrorCode.FENCED_LEADER_EPOCH, why)
    return StopAction.DELETE if command.delete else StopAction.STOP


def stale_in_full(
    local: dict[tuple[str, int], UUID], full: dict[tuple[str, int], UUID]
) -> dict[tuple[str, int], str]:
    """Return the local partitions that a FULL LeaderAndIsr makes stale, each with the reason.

    ``full`` maps (topic, partition) to the topic id in the request, ``local`` to the id on disk.
    A partition without a local id that is in the request is judged by ``decide_leader_and_isr``.
    An empty FULL is valid: no partition is assigned to this broker (KIP-516). The controller must
    prove that it may send one (promise 20). O(local partitions).
    """
    stale: dict[tuple[str, int], str] = {}
    for key, topic_id in local.items():
        assigned = full.get(key)
        if assigned is None:
            stale[key] = "it is not assigned to this broker"
        elif NO_TOPIC_ID not in (topic_id, assigned) and topic_id != assigned:
            stale[key] = f"its topic id is {topic_id}, the topic's is {assigned}"
    return stale
