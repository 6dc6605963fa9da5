"""Plans micro-batches: from where the last one ended, up to where may the next one read?

Owns the rule of spark.md 3.2 as a pure function of start positions, snapshot and limits; nothing
else is remembered, so a restart needs nothing. The rule: a range passes a gate only if its
prerequisites are met by the *start* positions, never by this batch's own ends:

    end[q] = min(readable end, first gate at or above pos[q] whose prerequisites are not met)

Until topics grow and shrink no snapshot has gates, and the rule is `readable end`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.pipeline.planning.admission import Limits, admit
from tidelog.pipeline.planning.losses import Loss, adjust
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import Gate, PartitionState, Snapshot


@dataclass(frozen=True, slots=True)
class Plan:
    """The end of the next micro-batch; equal to its start when there is nothing to do.

    `losses` are jumps over records that are gone: the caller refuses them or warns.
    """

    end: Positions
    losses: tuple[Loss, ...] = ()


def plan(start: Positions, snapshot: Snapshot, limits: Limits, waited_ms: int) -> Plan:
    """The next micro-batch, `waited_ms` after the last one that was planned."""
    at, losses = adjust(start, snapshot)
    reach = {
        pid: _reachable(at[pid], state, at, snapshot) for pid, state in snapshot.partitions.items()
    }
    ready = {pid: reach[pid] - at[pid] for pid in reach}
    # Gated records count as available: they may wait for nothing but this query's own progress.
    available = sum(state.end - at[pid] for pid, state in snapshot.partitions.items())
    if not losses and limits.should_wait(available, waited_ms):
        return Plan(start)
    taken = admit(ready, limits.max_offsets, prerequisites(at, snapshot))
    end = {pid: at[pid] + taken.get(pid, 0) for pid in at}
    ids = {topic: snapshot.topic_ids[topic] for topic in snapshot.topic_ids}
    return Plan(Positions(end, ids), losses)


def _reachable(
    position: int, state: PartitionState, at: Mapping[Pid, int], snapshot: Snapshot
) -> int:
    shut = [
        gate.offset
        for gate in state.gates
        if gate.offset >= position and not _is_open(gate, at, snapshot)
    ]
    return max(position, min([state.end, *shut]))


def _is_open(gate: Gate, at: Mapping[Pid, int], snapshot: Snapshot) -> bool:
    return all(_is_met(pid, offset, at, snapshot) for pid, offset in gate.needs)


def _is_met(pid: Pid, offset: int, at: Mapping[Pid, int], snapshot: Snapshot) -> bool:
    if pid in at:
        return at[pid] >= offset
    # A removed partition counts as drained (elastic.md, Gates).
    return pid in snapshot.gone or pid not in snapshot.partitions


def prerequisites(at: Mapping[Pid, int], snapshot: Snapshot) -> frozenset[Pid]:
    """The partitions that hold others back: their backlog is read first."""
    return frozenset(
        pid
        for state_pid, state in snapshot.partitions.items()
        for gate in state.gates
        if gate.offset >= at[state_pid]
        for pid, offset in gate.needs
        if not _is_met(pid, offset, at, snapshot)
    )
