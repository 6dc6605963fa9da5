"""Tables for the rules of LeaderAndIsr and StopReplica on one partition."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.replication.command_rules import (
    NO_TOPIC_ID,
    Action,
    Apply,
    CommandRefusal,
    Incarnation,
    LeaderAndIsrCommand,
    LeaderAndIsrType,
    LocalReplica,
    StopAction,
    StopReplicaCommand,
    decide_leader_and_isr,
    decide_stop_replica,
    stale_in_full,
)

A, B = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("local", "order", "expected"),
    [
        (None, LeaderAndIsrCommand(1, 0, 0, A), Action.CREATE),
        (LocalReplica(A, -1, 3, 1), LeaderAndIsrCommand(1, 4, 0, A), Action.BECOME),
        (LocalReplica(A, -1, 3, 1), LeaderAndIsrCommand(1, 3, 2, A), Action.UPDATE),
        (LocalReplica(A, -1, 3, 2), LeaderAndIsrCommand(1, 3, 2, A), Action.IGNORE),
        (LocalReplica(A, -1, 3, 2), LeaderAndIsrCommand(1, 3, 1, A), Action.IGNORE),
        (LocalReplica(A, -1, 3, 2), LeaderAndIsrCommand(-1, -1, 0, B), Action.IGNORE),
        (LocalReplica(A, -1, 9, 2), LeaderAndIsrCommand(1, 0, 0, B), Action.REPLACE),
        (LocalReplica(A, 5, 9, 2), LeaderAndIsrCommand(1, 0, 0, A, 6), Action.REPLACE),
        (LocalReplica(A, -1, 9, 2), LeaderAndIsrCommand(1, 10, 0, A, 6), Action.BECOME),
        (LocalReplica(NO_TOPIC_ID, -1, 3, 2), LeaderAndIsrCommand(1, 4, 0, A), Action.REPLACE),
        (LocalReplica(A, -1, 3, 2), LeaderAndIsrCommand(1, 4, 0), Action.BECOME),
        # Born by a growth: a replica without a partition epoch is of a former incarnation.
        (
            LocalReplica(A, -1, 3, 2),
            LeaderAndIsrCommand(1, 4, 0, A, 6, birth_epoch=2),
            Action.REPLACE,
        ),
        (
            LocalReplica(A, 6, 3, 2),
            LeaderAndIsrCommand(1, 4, 0, A, 6, birth_epoch=2),
            Action.BECOME,
        ),
        # Partition epochs have an order: a command of a former incarnation came late.
        (
            LocalReplica(A, 7, 3, 2),
            LeaderAndIsrCommand(1, 9, 0, A, 6, birth_epoch=2),
            ErrorCode.FENCED_LEADER_EPOCH,
        ),
        # But a FULL is what the store has now: also one that was restored.
        (
            LocalReplica(A, 7, 3, 2),
            LeaderAndIsrCommand(1, 9, 0, A, 6, kind=LeaderAndIsrType.FULL),
            Action.REPLACE,
        ),
        # Level 1.4 sends no partition epoch.
        (LocalReplica(A, 6, 3, 2), LeaderAndIsrCommand(1, 4, 0, A), Action.BECOME),
        (
            LocalReplica(A, 5, 3, 2),
            LeaderAndIsrCommand(1, 4, 0, A, 6, kind=LeaderAndIsrType.UNSPECIFIED),
            ErrorCode.FENCED_LEADER_EPOCH,
        ),
        (
            LocalReplica(A, -1, 3, 2),
            LeaderAndIsrCommand(1, 2, 9, A),
            ErrorCode.STALE_CONTROLLER_EPOCH,
        ),
    ],
)
def test_leader_and_isr(
    local: LocalReplica | None, order: LeaderAndIsrCommand, expected: Action | ErrorCode
) -> None:
    found = decide_leader_and_isr(local, order)
    assert expected == (found.error if isinstance(found, CommandRefusal) else found.action)


def test_only_a_migrated_topic_gives_its_id_to_a_replica_without_one() -> None:
    local = LocalReplica(NO_TOPIC_ID, -1, 3, 2)
    migrated = LeaderAndIsrCommand(1, 3, 3, A, migrated=True)
    assert decide_leader_and_isr(local, migrated) == Apply(Action.UPDATE, adopt_identity=True)
    created = LeaderAndIsrCommand(1, 3, 3, A)
    found = decide_leader_and_isr(local, created)
    assert isinstance(found, Apply) and found.action is Action.REPLACE


@pytest.mark.parametrize(
    ("local", "order", "expected"),
    [
        # v0-v2: no epoch on the wire.
        (LocalReplica(A, -1, 5), StopReplicaCommand(-1, True), StopAction.DELETE),
        # v3: the epoch alone decides (KIP-570).
        (LocalReplica(A, -1, 5), StopReplicaCommand(4, True), ErrorCode.FENCED_LEADER_EPOCH),
        (LocalReplica(A, -1, 5), StopReplicaCommand(4, False), ErrorCode.FENCED_LEADER_EPOCH),
        (LocalReplica(A, -1, 5), StopReplicaCommand(5, True), StopAction.DELETE),
        (LocalReplica(A, -1, 5), StopReplicaCommand(5, False), StopAction.STOP),
        (LocalReplica(A, -1, 5), StopReplicaCommand(6, True), StopAction.DELETE),
        (LocalReplica(A, -1, 5), StopReplicaCommand(-2, True), StopAction.DELETE),
        (None, StopReplicaCommand(0, True), StopAction.NOTHING),
        # v4: the topic id first, whatever the epoch says.
        (
            LocalReplica(A, -1, 5),
            StopReplicaCommand(-2, True, True, B),
            ErrorCode.INCONSISTENT_TOPIC_ID,
        ),
        (
            LocalReplica(A, -1, 5),
            StopReplicaCommand(9, True, True, B),
            ErrorCode.INCONSISTENT_TOPIC_ID,
        ),
        (LocalReplica(A, -1, 5), StopReplicaCommand(-2, True, True, A), StopAction.DELETE),
        (
            LocalReplica(A, 7, 5),
            StopReplicaCommand(-2, True, True, A, 6),
            ErrorCode.FENCED_LEADER_EPOCH,
        ),
        (LocalReplica(A, 7, 5), StopReplicaCommand(-2, True, True, A, 7), StopAction.DELETE),
        (LocalReplica(A, 7, 5), StopReplicaCommand(-2, True, True, A, -1), StopAction.DELETE),
        (LocalReplica(), StopReplicaCommand(-2, True, True, A), ErrorCode.INCONSISTENT_TOPIC_ID),
    ],
)
def test_stop_replica(
    local: LocalReplica | None, order: StopReplicaCommand, expected: StopAction | ErrorCode
) -> None:
    found = decide_stop_replica(local, order)
    assert expected == (found.error if isinstance(found, CommandRefusal) else found)


@pytest.mark.parametrize(
    ("local", "birth_epoch", "adopts"), [(-1, 0, True), (6, 0, False), (6, 2, False)]
)
def test_a_replica_without_a_partition_epoch_adopts_the_first_incarnation(
    local: int, birth_epoch: int, adopts: bool
) -> None:
    command = LeaderAndIsrCommand(1, 3, 2, A, 6, birth_epoch=birth_epoch)
    found = decide_leader_and_isr(LocalReplica(A, local, 3, 2), command)
    assert isinstance(found, Apply)
    # Also where nothing else is to be done.
    assert (found.action, found.adopt_identity) == (Action.IGNORE, adopts)


def test_a_full_request_makes_stale_what_it_does_not_name() -> None:
    local = {("t", 0): A, ("t", 1): A, ("u", 0): B, ("old", 0): NO_TOPIC_ID}
    full = {("t", 0): A, ("u", 0): A, ("old", 0): B}
    found = stale_in_full(
        {key: Incarnation(known) for key, known in local.items()},
        {key: Incarnation(named) for key, named in full.items()},
    )
    assert set(found) == {("t", 1), ("u", 0)}


def test_a_full_request_makes_stale_what_is_of_another_incarnation() -> None:
    local = {("t", index): Incarnation(A, epoch) for index, epoch in enumerate((4, 5, -1, 5))}
    full = {("t", index): Incarnation(A, epoch) for index, epoch in enumerate((4, 6, 6, -1))}
    assert set(stale_in_full(local, full)) == {("t", 1)}
