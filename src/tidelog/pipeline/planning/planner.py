"""The planner of micro-batches: how far may the next batch read? Pure.

Owns the rule of docs/design/pipeline.md as a function of start positions, snapshot and limits; it
keeps no state, so a restart needs none. The rule: a range passes a gate only if its prerequisites
are met by the *start* positions, never by this batch's own ends:

    end[q] = max(pos[q], min(readable end, first gate of q whose prerequisites are not met))

Gates below the position also count, and an unknown prerequisite is not met. Which gates a partition
has, and which are shut, is `partitioning.gates`'s rule, as for consumers. Where nothing was resized
no partition has gates, and the rule is `readable end`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.partitioning.gates import GroupPosition, deliverable_ends
from tidelog.pipeline.planning.admission import AdmissionLimits, admit
from tidelog.pipeline.planning.losses import LossVerdict, PartitionLoss, judge
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.snapshot import Snapshot

# Of a partition whose records are lost for good.
_NO_GATE_WAITS = 2**63 - 1


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
    kept, readable = judged.at, judged.readable
    shut = shut_ends(judged, snapshot)
    ready = {
        pid: min(state.end, shut.get(pid, state.end)) - kept[pid] for pid, state in readable.items()
    }
    # Gated records count as available: they may wait only for this query's own progress.
    available = sum(max(0, state.end - kept[pid]) for pid, state in readable.items())
    losses = tuple(judged.losses)
    if not losses and limits.should_wait(available, waited_ms):
        return BatchPlan(start, held=judged.held)
    taken = admit(ready, limits.max_offsets, prerequisites(judged, snapshot))
    end = {pid: kept[pid] + taken.get(pid, 0) for pid in kept}
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
        least = start.resize_epochs.get(topic, 0) if start.topic_ids.get(topic) == topic_id else 0
        same = snapshot.topic_ids.get(topic) == topic_id
        resized[topic] = max(least, snapshot.resize_epochs.get(topic, 0) if same else 0)
    return Positions(end, ids, epochs, resized, dict(judged.new))


def shut_ends(judged: LossVerdict, snapshot: Snapshot) -> dict[Pid, int]:
    """The offset up to which each partition with a shut gate may be read. Grows with the gates."""
    shut: dict[Pid, int] = {}
    # What a partition without a trace has gates with, or holds back, is not known.
    lost_track = {pid.topic for pid in judged.doubted if pid not in snapshot.partitions}
    for topic, gates in snapshot.gates.items():
        topic_id = snapshot.topic_ids[topic]
        if topic in lost_track:
            shut |= {pid: 0 for pid in judged.at if (pid.topic, pid.topic_id) == (topic, topic_id)}
            continue
        positions = {
            pid.partition: GroupPosition(_NO_GATE_WAITS if pid in judged.ended else position)
            for pid, position in judged.at.items()
            if (pid.topic, pid.topic_id) == (topic, topic_id)
        }
        ends = deliverable_ends(gates, positions)
        shut |= {Pid(topic, number, topic_id): end for number, end in ends.items()}
    return shut


def prerequisites(judged: LossVerdict, snapshot: Snapshot) -> frozenset[Pid]:
    """The partitions that hold others back: their backlog is read first."""
    pids = set()
    for topic, gates in snapshot.gates.items():
        for need in (need for of_one in gates.values() for gate in of_one for need in gate.needs):
            pid = Pid(topic, need.partition, snapshot.topic_ids[topic])
            if need.upto is not None and judged.at.get(pid, 0) < need.upto.offset:
                pids.add(pid)
    return frozenset(pids)
