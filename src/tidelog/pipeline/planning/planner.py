"""The planner of micro-batches: how far may the next batch read? Pure.

Owns the rule of docs/design/pipeline.md as a function of start positions, snapshot and limits; it
keeps no state, so a restart needs none. The rule: a range passes a gate only if its prerequisites
are met by the *start* positions, never by this batch's own ends:

    end[q] = max(pos[q], min(readable end, first gate of q whose prerequisites are not met))

Gates below the position also count, and an unknown prerequisite is not met. Neither is one that is
after a shut gate: a query that begins in the middle may be there. Until topics grow and shrink no
snapshot has gates, and the rule is `readable end`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from tidelog.pipeline.planning.admission import AdmissionLimits, admit
from tidelog.pipeline.planning.losses import LossVerdict, PartitionLoss, judge
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import Gate, Snapshot


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The end of the next micro-batch; equal to its start when there is nothing to do.

    `losses` are jumps over records that are gone: the caller refuses them or warns. `held` are
    partitions that this batch leaves where they are, each with the reason.
    """

    end: Positions
    losses: tuple[PartitionLoss, ...] = ()
    held: Mapping[Pid, str] = field(default_factory=dict)


def plan(
    start: Positions, snapshot: Snapshot, limits: AdmissionLimits, waited_ms: int
) -> BatchPlan:
    """The next micro-batch, `waited_ms` after the last one that was planned."""
    judged = judge(start, snapshot)
    at, readable = judged.at, judged.readable
    shut = shut_gates(judged, snapshot)
    ready = {
        pid: max(0, min(state.end, _lowest(shut, pid, state.end)) - at[pid])
        for pid, state in readable.items()
    }
    # Gated records count as available: they may wait only for this query's own progress.
    available = sum(max(0, state.end - at[pid]) for pid, state in readable.items())
    losses = tuple(judged.losses)
    if not losses and limits.should_wait(available, waited_ms):
        return BatchPlan(start, held=judged.held)
    taken = admit(ready, limits.max_offsets, prerequisites(judged, snapshot, shut))
    end = {pid: at[pid] + taken.get(pid, 0) for pid in at}
    if end == start.at:
        return BatchPlan(start, losses, judged.held)
    return BatchPlan(_positions(end, start, snapshot, judged), losses, judged.held)


def _positions(
    end: Mapping[Pid, int], start: Positions, snapshot: Snapshot, judged: LossVerdict
) -> Positions:
    ids = {pid.topic: pid.topic_id for pid in end}
    epochs = {}
    for pid, offset in end.items():
        state = snapshot.partitions.get(pid)
        moved = state is not None and start.at.get(pid) != offset
        # An end that was looked up in an epoch has nothing of a later one before it.
        epoch = state.leader_epoch if state is not None and moved else start.epoch(pid)
        if epoch >= 0:
            epochs[pid] = epoch
    resized = {}
    for topic, topic_id in ids.items():
        known = start.resize_epochs.get(topic, 0) if start.topic_ids.get(topic) == topic_id else 0
        same = snapshot.topic_ids.get(topic) == topic_id
        resized[topic] = max(known, snapshot.resize_epochs.get(topic, 0) if same else 0)
    return Positions(end, ids, epochs, resized, dict(judged.new))


def shut_gates(judged: LossVerdict, snapshot: Snapshot) -> dict[Pid, list[Gate]]:
    """The shut gates of each partition, lowest first.

    The prerequisites of a gate are after gates of lower resize epochs only, so one pass in that
    order is enough. Grows with the gates, and with their logarithm for the order.
    """
    by_pid = {pid: state.gates for pid, state in snapshot.partitions.items()}
    by_pid |= snapshot.gone_gates
    gates = sorted(
        ((gate, pid) for pid, gates in by_pid.items() for gate in gates),
        key=lambda pair: pair[0].resize_epoch,
    )
    lowest: dict[Pid, int] = {}
    shut: dict[Pid, list[Gate]] = {}
    for _, same_epoch in groupby(gates, key=lambda pair: pair[0].resize_epoch):
        closed = [
            (gate, pid)
            for gate, pid in same_epoch
            if not all(
                _is_met(needed, offset, judged, snapshot) and lowest.get(needed, offset) >= offset
                for needed, offset in gate.needs
            )
        ]
        for gate, pid in closed:
            lowest[pid] = min(gate.offset, lowest.get(pid, gate.offset))
            shut.setdefault(pid, []).append(gate)
    return {pid: sorted(each, key=lambda gate: gate.offset) for pid, each in shut.items()}


def _lowest(shut: Mapping[Pid, list[Gate]], pid: Pid, otherwise: int) -> int:
    return shut[pid][0].offset if pid in shut else otherwise


def _is_met(pid: Pid, offset: int, judged: LossVerdict, snapshot: Snapshot) -> bool:
    if pid in judged.ended:
        # No gate waits for records that are lost for good.
        return True
    if pid not in snapshot.partitions and pid not in snapshot.gone:
        # Whatever its position is: its gates are unknown.
        return False
    if pid in judged.at:
        return judged.at[pid] >= offset
    # A partition that was removed before the query began has no records for it.
    return pid in snapshot.gone


def prerequisites(
    judged: LossVerdict, snapshot: Snapshot, shut: Mapping[Pid, list[Gate]]
) -> frozenset[Pid]:
    """The partitions that hold others back: their backlog is read first."""
    return frozenset(
        pid
        for gates in shut.values()
        for gate in gates
        for pid, offset in gate.needs
        if not _is_met(pid, offset, judged, snapshot)
    )
