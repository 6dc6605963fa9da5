"""LeaderAndIsr and StopReplica requests, read into one form for all their versions.

Owns the reading of these requests. Not their application: see ``control_channel``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from tidelog.broker.partitions.partition import LeaderAndIsrState
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.command_rules import (
    LeaderAndIsrCommand,
    LeaderAndIsrType,
    StopReplicaCommand,
)

UNKNOWN_EPOCH = -1

STOP_BY_TOPIC_ID = 4
"""From this version of StopReplica on the topic id must match (KIP-516)."""


class PartitionCommand(NamedTuple):
    """One partition of a LeaderAndIsr request, and what the request says of its topic there."""

    topic: str
    topic_id: UUID
    migrated: bool
    undeleted_count: int
    """-1 below v6."""
    resize_epoch: int
    state: Any


def commands_of(request: messages.LeaderAndIsrRequest) -> Iterable[PartitionCommand]:
    """Yield the partitions of a LeaderAndIsr request of any version.

    A topic may be named several times, with some of its partitions each: they stand on different
    sides of a resize (KIP-253).
    """
    for state in request.ungrouped_partition_states:
        yield PartitionCommand(state.topic_name, NO_UUID, False, -1, 0, state)
    for topic in request.topic_states:
        count, epoch = topic.undeleted_partition_count, topic.resize_epoch
        for state in topic.partition_states:
            yield PartitionCommand(
                topic.topic_name, topic.topic_id, topic.migrated, count, epoch, state
            )


def kind_of(request: messages.LeaderAndIsrRequest) -> LeaderAndIsrType:
    """Return the type of a request; an undefined number counts as UNSPECIFIED: nothing is stale."""
    is_known = request.type in tuple(LeaderAndIsrType)
    return LeaderAndIsrType(request.type) if is_known else LeaderAndIsrType.UNSPECIFIED


def command_of(named: PartitionCommand, kind: LeaderAndIsrType) -> LeaderAndIsrCommand:
    """Return the command for one partition, as the rules read it."""
    state = named.state
    return LeaderAndIsrCommand(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr_version=state.isr_version,
        topic_id=named.topic_id,
        partition_epoch=state.partition_epoch,
        migrated=named.migrated,
        kind=kind,
        birth_epoch=state.birth_epoch,
    )


def state_of(named: PartitionCommand) -> LeaderAndIsrState:
    """Return the state that a command sets for its partition."""
    state = named.state
    return LeaderAndIsrState(
        topic_id=named.topic_id,
        partition_epoch=state.partition_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=tuple(state.isr),
        isr_version=state.isr_version,
        replicas=tuple(state.replicas),
        targets=tuple(state.target_replicas or ()),
        controller_epoch=state.controller_epoch,
        is_unclean_leader=state.is_unclean_leader,
        has_debt=state.has_debt,
        undeleted_count=named.undeleted_count,
        resize_epoch=named.resize_epoch,
        sealed=state.sealed,
        birth_epoch=state.birth_epoch,
        start_offset=state.start_offset,
    )


def stops_of(
    request: messages.StopReplicaRequest, version: int
) -> Iterable[tuple[str, int, StopReplicaCommand]]:
    """Yield (topic, partition, command) of a StopReplica request of any version."""
    delete = request.delete_partitions
    for single in request.ungrouped_partitions:
        yield single.topic_name, single.partition_index, StopReplicaCommand(UNKNOWN_EPOCH, delete)
    for listed in request.topics:
        for index in listed.partition_indexes:
            yield listed.name, index, StopReplicaCommand(UNKNOWN_EPOCH, delete)
    for topic in request.topic_states:
        for state in topic.partition_states:
            command = StopReplicaCommand(
                leader_epoch=state.leader_epoch,
                delete=state.delete_partition,
                checks_topic_id=version >= STOP_BY_TOPIC_ID,
                topic_id=topic.topic_id,
                partition_epoch=state.partition_epoch,
            )
            yield topic.topic_name, state.partition_index, command
