"""The fences and seals that a leader writes, as the first records of its leader epoch (KIP-253).

Owns which ones a leader owes its log, and the write. Not where a log keeps them: see
``storage.log.fences``. Not what a client gets while one is unwritten: see ``resize_checks``.

| the log's newest fence | the leader writes, in this order |
|---|---|
| older than the birth epoch (born by a growth) | the fence of its birth epoch |
| older than the resize epoch | its seal if the partition is retired, otherwise its fence |
| of the resize epoch or a newer one | nothing |

A leader that is elected after a resize owes what its log lacks: the former leader's fence may have
died with it. Neither the ISR nor acks matter, and nothing waits for them. On a full disk the fence
stays unwritten, and clients' appends are refused, until there is room: the registry tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.records.batch import Rejected
from tidelog.records.control_records import ChangeKind, FenceRecord, change_batch
from tidelog.storage.log.rolling import puts_roll_off

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.state import LeaderAndIsrState
    from tidelog.storage.log.fences import Fences


def owed(state: LeaderAndIsrState, partition: int, fences: Fences) -> list[FenceRecord]:
    """Return what a leader in this state writes before any other record; see the table.

    A partition that no LeaderAndIsr v6 has named owes nothing. Where a later resize came between,
    the count of the birth epoch is unknown: the fence of the birth then has the lowest count that
    includes the partition. No reader of fences uses it: they are found by their resize epoch.
    """
    if state.undeleted_count < 0:
        return []
    newest = fences.newest.resize_epoch if fences.newest is not None else 0
    owing = []
    birth, epoch, count = state.birth_epoch, state.resize_epoch, state.undeleted_count
    if newest < birth < epoch:
        owing.append(FenceRecord(ChangeKind.FENCE, birth, partition + 1))
    if newest < epoch:
        kind = ChangeKind.SEAL if state.sealed else ChangeKind.FENCE
        owing.append(FenceRecord(kind, epoch, count))
    return owing


def write_owed(partition: HostedPartition, now_ms: int) -> None:
    """Write what a leader owes its log, and note whether anything is left.

    A follower owes nothing. Called in the turn in which the leader epoch begins, and again until
    all is written.
    """
    log = partition.log
    partition.fence_unwritten = False
    if not partition.is_leader:
        return
    for change in owed(partition.state, partition.partition, log.fences):
        batch = change_batch(change, leader_epoch=partition.leader_epoch, timestamp_ms=now_ms)
        if isinstance(partition.append(batch, now_ms, from_client=False), Rejected):
            partition.fence_unwritten = partition.is_leader
            return


def is_closed(partition: HostedPartition, now_ms: int) -> bool:
    """Close the segment that a leader's seal is in, if that need not wait for a sync; return
    whether nothing of that is left to do. Then retention reaches all data of a retired partition.
    """
    log = partition.log
    seal = log.fences.newest
    if not (partition.is_leader and partition.state.sealed and seal is not None):
        return True
    if log.segments.active.base_offset > seal.offset:
        return True
    return not puts_roll_off(log) and log.roll(now_ms) is None
