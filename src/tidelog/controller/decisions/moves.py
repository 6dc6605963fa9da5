"""The moves of one partition (KIP-455): what each step changes, and the writes of many partitions.

Owns the transitions of R (replicas), I (ISR), T (targets) and O (the replicas before the first
change), and of the stops that brokers owe. Which requests are accepted: see ``reassignments``.

| step | R | T | O | stops noted, with the new leader epoch |
|---|---|---|---|---|
| start | | the targets | R | |
| change | | the new targets | | former targets outside of R and T |
| a target joins I | + it | | | |
| completion, I has all of T | := T | null | removed | R outside of T |
| cancellation | | null | removed if R is O | targets outside of R |

Start, change, completion and cancellation raise the leader epoch, so a stop is older than any later
assignment of its broker. A broker that becomes a host again owes no stop: that note goes in the
same write. A start drops members of I outside of R, which a completion left there: their replica
may be gone, so they join again by fetching. A topic's assignment and its record are written once
for all its partitions, in one multi-write with their states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.elections import within
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.stops import epochs_of_notes
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState
from tidelog.model.topics import TopicPartition, by_topic, hosts_of

Value = TypeVar("Value")

AT_ONCE = 100
"""The most partitions whose moves one decision ends: some 50 kB of states."""

ASSIGNED_AT_ONCE = 5_000
"""The most partitions of all topics whose assignments one decision writes, if it writes several."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one partition is: R, the state with I and T, O, and the stops by broker."""

    replicas: Sequence[int]
    state: PartitionState
    original: Sequence[int] | None = None
    stops: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(cluster: ClusterState, tp: TopicPartition) -> Placement:
        """Return where a partition is now; it has a state."""
        history = cluster.topic_histories[tp.topic]
        return Placement(
            cluster.replicas(tp),
            cluster.states[tp],
            history.original_replicas.get(tp.partition),
            history.pending_stops.get(tp.partition, {}),
        )


def started(now: Placement, targets: Sequence[int]) -> Placement:
    """Return the placement after a start, or after a change of the targets of a running move.

    Targets equal to R end the move where it stands, or only accept R.
    """
    if list(targets) == list(now.replicas):
        if now.state.target_replicas is not None:
            now = cancelled(now)
        return replace(now, original=None)
    if targets == now.state.target_replicas:
        return now
    state = within(now.state, now.replicas)
    state = msgspec.structs.replace(
        state, leader_epoch=state.leader_epoch + 1, target_replicas=list(targets)
    )
    original = now.replicas if now.original is None else now.original
    return _with_stops(replace(now, state=state, original=original), now.state.target_replicas)


def completed(now: Placement, leader: int) -> Placement:
    """Return the placement after the completion of a move whose targets are all in the ISR.

    The ISR keeps members that are removed: the leader drops them when it learns R.
    """
    targets = now.state.target_replicas or []
    state = msgspec.structs.replace(
        now.state,
        leader=leader,
        leader_epoch=now.state.leader_epoch + 1,
        target_replicas=None,
        eligible_replicas=[],
        unclean_members=[x for x in now.state.unclean_members if x in targets],
        # The election of a replica in sync clears the flag.
        is_unclean_leader=now.state.is_unclean_leader and leader == now.state.leader,
    )
    after = replace(now, replicas=list(targets), state=state, original=None)
    return _with_stops(after, now.replicas)


def cancelled(now: Placement) -> Placement:
    """Return the placement after a cancellation: it reverts nothing, replicas that joined stay."""
    state = msgspec.structs.replace(
        now.state, leader_epoch=now.state.leader_epoch + 1, target_replicas=None
    )
    original = None if now.original == now.replicas else now.original
    return _with_stops(replace(now, state=state, original=original), now.state.target_replicas)


def _with_stops(after: Placement, former: Sequence[int] | None) -> Placement:
    """Note the former hosts that are none any more; a host owes no stop."""
    hosts = hosts_of(after.replicas, after.state.target_replicas)
    stops = {broker: epoch for broker, epoch in after.stops.items() if broker not in hosts}
    epoch = after.state.leader_epoch
    # With the epoch of this write: any later assignment fences a stop that comes late (promise 18).
    stops |= {broker: epoch for broker in former or () if broker not in hosts}
    return replace(after, stops=stops)


def written(cluster: ClusterState, after: Mapping[TopicPartition, Placement]) -> list[Write]:
    """Return the writes that bring partitions to their placements: one multi-write."""
    writes: list[Write] = []
    for name, places in by_topic(after).items():
        node, history = cluster.topics[name], cluster.topic_histories[name]
        assigned = dict(node.partitions)
        original, stops = dict(history.original_replicas), dict(history.pending_stops)
        epochs = dict(history.stop_partition_epochs)
        for tp in places:
            placed, index = after[tp], tp.partition
            assigned[index] = list(placed.replicas)
            _set(original, index, list(placed.original or ()))
            _set(stops, index, dict(placed.stops))
            _set(epochs, index, epochs_of_notes(cluster, tp, placed.stops))
        if assigned != node.partitions:
            writes.append(
                Put(layout.topic(name), msgspec.structs.replace(node, partitions=assigned))
            )
        noted = msgspec.structs.replace(
            history,
            original_replicas=original,
            pending_stops=stops,
            stop_partition_epochs=epochs,
        )
        if noted != history:
            writes.append(Put(layout.topic_history(name), noted))
    for tp, placed in after.items():
        if placed.state != cluster.states[tp]:
            writes.append(put_state(cluster, tp, placed.state))
    return writes


def _set(values: dict[int, Value], index: int, value: Value) -> None:
    if value:
        values[index] = value
    else:
        values.pop(index, None)


def complete(cluster: ClusterState) -> Decision[list[TopicPartition]]:
    """Complete moves whose targets are all in the ISR; the answer names them, at most ``AT_ONCE``.

    The leader stays if it is a target; otherwise the first target that is fit and in sync leads.
    While there is none the move waits for one. O(moves that may be completed).
    """
    after: dict[TopicPartition, Placement] = {}
    assigned: dict[str, int] = {}
    if cluster.went_back is not None:
        return Decision([])
    for tp in sorted(cluster.arrived):
        if tp.topic in cluster.marked or why_damaged(cluster, tp) is not None:
            continue
        leader = _leader(cluster, tp)
        if leader is None:
            continue
        assigned[tp.topic] = len(cluster.topics[tp.topic].partitions)
        # A topic's assignment is written whole, so one alone may be longer than the limit.
        if after and sum(assigned.values()) > ASSIGNED_AT_ONCE and len(assigned) > 1:
            break
        after[tp] = completed(Placement.of(cluster, tp), leader)
        if len(after) == AT_ONCE:
            break
    return Decision(list(after), tuple(written(cluster, after)))


def _leader(cluster: ClusterState, tp: TopicPartition) -> int | None:
    state, targets = cluster.states[tp], cluster.moves[tp]
    if state.leader in targets:
        return state.leader
    # A member that came back and may lack committed records can be in the ISR, and must not lead.
    certain = cluster.electable.difference(state.unclean_members)
    for member in targets:
        if member in certain and member in state.isr and (member, tp) not in cluster.broken:
            return member
    return None


def why_damaged(cluster: ClusterState, tp: TopicPartition) -> str | None:
    """Return a sentence if a node of a partition cannot be read or is not there yet, or None."""
    for path in (
        layout.topic(tp.topic),
        layout.topic_history(tp.topic),
        layout.state(*tp),
    ):
        if path in cluster.damaged:
            return str(cluster.damaged[path])
    if tp.topic not in cluster.topic_histories or tp not in cluster.states:
        return f"{tp} is not complete yet: none of its brokers has registered."
    return None
