"""Reports of the hosted replicas to the controller: the inventory and the failures.

Owns the inventory of BrokerRegistration, the failures in heartbeats, and the view of a replica for
``replication.command_rules``. Not when they are sent: see ``control_plane.session``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from tidelog.broker.partitions.partition import HostedPartition
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.command_rules import LocalReplica
from tidelog.storage.directory.log_directory import LogDirectory

MOST_NAMED = 10_000
"""Replicas in a directory without room that one heartbeat names: it has 40 kB then. A resize of the
topic of another one begins, and is undone."""


def inventory(replicas: Iterable[HostedPartition]) -> list[Any]:
    """Return the replicas for BrokerRegistration (tag 10002).

    Damaged replicas and those on a failed disk have the end offset -1; a name that replicas of
    several topics have is there with each topic id. Each replica comes with its fences and its
    birth, so that a restored store knows all resizes, and with the newest command that this process
    has applied to it (docs/decisions/0125). Each topic comes with its own configurations, as the
    first of its replicas keeps them (docs/decisions/0024).
    """
    request = messages.BrokerRegistrationRequest
    by_topic: dict[tuple[str, UUID], Any] = {}
    for partition in replicas:
        key = (partition.topic, partition.topic_id)
        if key not in by_topic:
            by_topic[key] = request.InventoryTopic(*key, [], kept_configs(partition))
        log = partition.log
        ends = (log.latest_epoch, log.end_offset)
        if _may_be_named(partition):
            ends = (-1, -1)
        by_topic[key].partitions.append(
            request.InventoryPartition(
                partition.partition,
                partition.partition_epoch,
                *ends,
                [
                    request.InventoryFence(*entry[:2], entry.kind, entry.offset)
                    for entry in log.fences.entries
                ],
                _birth_of(partition),
                _record_epoch_of(partition),
                _command_of(partition),
            )
        )
    return list(by_topic.values())


def _birth_of(partition: HostedPartition) -> Any:
    """Return the birth of a partition that a growth made (KIP-253), None of any other.

    The fence of the birth epoch stands where the incarnation began; a log without it is empty, and
    its leader will write it at the log's beginning.
    """
    metadata = partition.log.metadata
    epoch = 0 if metadata is None else metadata.birth_epoch
    if not epoch:
        return None
    log = partition.log
    fence = log.fences.of(epoch)
    birth = messages.BrokerRegistrationRequest.InventoryBirth
    return birth(epoch, log.start_offset if fence is None else fence.offset)


def _record_epoch_of(partition: HostedPartition) -> int:
    """Return the leader epoch of the last record: a leader that wrote none has a later epoch."""
    log = partition.log
    return log.epochs.epoch_at(log.end_offset - 1) if log.end_offset > log.start_offset else -1


def _command_of(partition: HostedPartition) -> Any:
    """Return the newest leader and ISR that a controller has given, None where this process has
    none: no disk has them, so a broker that restarted knows them from the next command on.

    While a change of the ISR is in flight that is the ISR before it: each member has all that is
    below the high watermark, which waits for the larger ISR.
    """
    state = partition.state
    if not state.is_assigned:
        return None
    command = messages.BrokerRegistrationRequest.InventoryCommand
    return command(state.leader_epoch, state.isr_version, state.leader, list(state.isr))


def failures(
    replicas: Iterable[HostedPartition], directories: Sequence[LogDirectory], away: int = 0
) -> Any:
    """Return the damaged replicas, and the failed and full directories for heartbeats; or None.

    Each damaged replica once the note of its damage is durable: what the controller knows, the next
    start of this broker must know too. ``away``: log directories that could not be used at the
    start; their ids are not known. Directories without room come with the replicas in them: none of
    these takes a record now.
    """
    damaged = []
    short = [directory for directory in directories if directory.resources.shortage is not None]
    held: dict[int, dict[UUID, list[int]]] = {id(directory.resources): {} for directory in short}
    for replica in replicas:
        if _may_be_named(replica):
            damaged.append(replica)
        elif (kept := held.get(id(replica.log.resources))) is not None:
            kept.setdefault(replica.topic_id, []).append(replica.partition)
    failed = [directory for directory in directories if directory.failed is not None]
    if not damaged and not failed and not away and not short:
        return None
    request = messages.BrokerHeartbeatRequest
    return request.Failures(
        [*(UUID(int=directory.meta.directory_id.int) for directory in failed), *[NO_UUID] * away],
        [request.DamagedReplica(x.topic, x.topic_id, x.partition) for x in damaged],
        [_shortage(directory, held[id(directory.resources)]) for directory in short],
    )


def _shortage(directory: LogDirectory, held: Mapping[UUID, Sequence[int]]) -> Any:
    """Return a log directory without room, with at most ``MOST_NAMED`` replicas in it."""
    request = messages.BrokerHeartbeatRequest
    named, left = [], MOST_NAMED
    for topic_id, indexes in held.items():
        if left > 0:
            named.append(request.ShortTopic(topic_id, list(indexes[:left])))
            left -= len(indexes)
    return request.Shortage(directory.path, directory.resources.shortage or "", named)


def local_replica(partition: HostedPartition) -> LocalReplica:
    """Return a local replica as the rules of LeaderAndIsr and StopReplica need it."""
    return LocalReplica(
        topic_id=partition.topic_id,
        partition_epoch=partition.partition_epoch,
        leader_epoch=partition.leader_epoch,
        isr_version=partition.state.isr_version,
    )


def _may_be_named(partition: HostedPartition) -> bool:
    """Whether a controller may know that a replica is out of service."""
    if partition.offline_reason is None:
        return False
    log = partition.log
    return not log.damage_unsynced or log.resources.failed is not None


def kept_configs(partition: HostedPartition) -> list[Any]:
    """Return the topic configurations stored with a replica, for the inventory."""
    metadata = partition.log.metadata
    config = messages.BrokerRegistrationRequest.InventoryConfig
    return [] if metadata is None else [config(*row) for row in metadata.configs]
