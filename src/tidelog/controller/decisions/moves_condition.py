"""What holds up reassignments, and what they leave: for the condition of the cluster (KIP-455).

Owns the findings about moves, stops and throttles of replication. Not their form: see
``condition``. A copy in a full directory waits on its broker: ``tidelog doctor`` shows it with the
log directories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.reassignments import moves_of
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work

MOVING_RATE = "reassignment.throttled.rate"
SIDES = ("leader", "follower")


@dataclass(slots=True)
class MoveFinding:
    """One finding about partitions; ``what`` follows their number."""

    kind: str
    is_bad: bool
    places: Collection[TopicPartition]
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class IdleThrottle:
    """Throttles that limit nothing now, by the names of their configurations."""

    names: list[str]
    topics: list[str]
    """Those with a list of throttled replicas, sorted."""


def of_moves(cluster: ClusterState) -> Work[list[MoveFinding]]:
    """Return the findings about moves, in steps: each move is in the first one that fits."""
    dead: list[TopicPartition] = []
    damaged: list[TopicPartition] = []
    running: list[TopicPartition] = []
    awaited: set[int] = set()
    for tp in moves_of(cluster):
        yield None
        state = cluster.states.get(tp)
        isr = () if state is None else state.isr
        missing = [x for x in cluster.moves[tp] if x not in isr]
        away = [x for x in missing if x not in cluster.fit]
        if away:
            awaited.update(away)
            dead.append(tp)
        elif any((x, tp) in cluster.broken for x in missing):
            damaged.append(tp)
        else:
            running.append(tp)
    owed, owing = yield from _owed(cluster)
    start = _brokers(", ".join(map(str, sorted(owing))), len(owing))
    names = ", ".join(map(str, sorted(awaited)))
    rate, stopped = _limits(cluster), _stopped(cluster)
    return [
        MoveFinding(
            "moves_wait_for_dead",
            True,
            dead,
            "whose move waits for a target that is dead",
            f"Start {_brokers(names, len(awaited))}, or move the partitions to others, or cancel: "
            "tidelog reassign-partitions.",
        ),
        MoveFinding(
            "moves_wait_for_damaged",
            True,
            damaged,
            "whose move waits for a damaged replica of a target",
            "See the log of the target: its directory failed, or its copy is damaged.",
        ),
        MoveFinding(
            "moves_wait_for_throttle",
            True,
            running if stopped else (),
            f"whose move may wait for ever, as a throttle is 0: {', '.join(stopped)}",
            "Remove it: tidelog reassign-partitions --cancel-all, or tidelog configs --alter "
            "--delete-config.",
        ),
        MoveFinding(
            "moves_running",
            False,
            () if stopped else running,
            "being moved" + (f", throttled by {rate}" if rate else ""),
            "Nothing: see tidelog reassign-partitions --list; --watch shows the progress of a plan."
            + (" A higher throttle makes them faster." if rate else ""),
        ),
        MoveFinding(
            "stops_owed",
            False,
            owed,
            "moved away from a broker that is missing and may still hold a copy",
            f"Nothing, or start {start}: the copies are deleted then.",
        ),
    ]


def on_record(cluster: ClusterState) -> Work[list[dict[str, Any]]]:
    """Return the partitions whose replicas before the first change are on record, in steps.

    They move, or a cancellation has left other replicas (docs/design/moving.md); as data for JSON.
    """
    rows: list[dict[str, Any]] = []
    for name in sorted(cluster.topic_histories):
        yield None
        history = cluster.topic_histories.get(name)
        if history is None or name not in cluster.topics or name in cluster.marked:
            continue
        for index, before in sorted(history.original_replicas.items()):
            yield None
            if name not in cluster.topics:
                break  # it was deleted meanwhile
            tp = TopicPartition(name, index)
            rows.append(
                {
                    "topic": name,
                    "partition": index,
                    "replicas": list(cluster.replicas(tp)),
                    "original_replicas": list(before),
                    "target_replicas": cluster.moves.get(tp),
                }
            )
    return rows


def idle_throttle(cluster: ClusterState) -> Work[IdleThrottle]:
    """Return the throttles that limit no copy now, in steps.

    They limit replicas outside of the ISR alone: without a move or such a replica they are idle.
    """
    names: list[str] = []
    if not any(True for _ in _moving(cluster)) and MOVING_RATE in _set(cluster):
        names.append(MOVING_RATE)
    topics: set[str] = set()
    for side in SIDES:
        rate, listing = (
            f"{side}.replication.throttled.rate",
            f"{side}.replication.throttled.replicas",
        )
        listed = [name for name, own in cluster.topic_configs.items() if own.get(listing)]
        if rate in _set(cluster) and (yield from _has_copy(cluster, listed)):
            continue
        if rate in _set(cluster):
            names.append(rate)
        if listed:
            names.append(listing)
            topics.update(listed)
    return IdleThrottle(names, sorted(topics))


def _owed(
    cluster: ClusterState,
) -> Work[tuple[list[TopicPartition], set[int]]]:
    """Return the partitions that missing brokers must still stop, and these brokers."""
    owed: list[TopicPartition] = []
    owing: set[int] = set()
    for name, history in cluster.topic_histories.items():
        yield None
        for index, stops in history.pending_stops.items():
            away = stops.keys() - cluster.fit
            if away:
                owed.append(TopicPartition(name, index))
                owing.update(away)
    return owed, owing


def _has_copy(cluster: ClusterState, topics: Collection[str]) -> Work[bool]:
    """Whether a partition of these topics has a host outside of its ISR."""
    for name in topics:
        yield None
        node = cluster.topics.get(name)
        for index in () if node is None else node.partitions:
            tp = TopicPartition(name, index)
            state = cluster.states.get(tp)
            if state is not None and set(cluster.hosts(tp)).difference(state.isr):
                return True
    return False


def _moving(cluster: ClusterState) -> Iterator[TopicPartition]:
    return (tp for tp in cluster.moves if tp.topic not in cluster.marked)


def _limits(cluster: ClusterState) -> str:
    """Return the throttles that may limit a move as text; "" without one."""
    limits = []
    for name in (MOVING_RATE, *(f"{side}.replication.throttled.rate" for side in SIDES)):
        rates = sorted(
            {own[name] for own in cluster.broker_configs.values() if name in own}, key=len
        )
        if rates:
            limits.append(f"{name}={'/'.join(rates)}")
    return ", ".join(limits)


def _stopped(cluster: ClusterState) -> list[str]:
    """Return the throttles by which nothing is copied: Kafka's rates may be 0."""
    return [
        name
        for name in (f"{side}.replication.throttled.rate" for side in SIDES)
        if any(own.get(name) == "0" for own in cluster.broker_configs.values())
    ]


def _set(cluster: ClusterState) -> set[str]:
    """Return the names of the dynamic configurations of brokers that are set."""
    return {name for own in cluster.broker_configs.values() for name in own}


def _brokers(names: str, count: int) -> str:
    return f"broker{'' if count == 1 else 's'} {names}"
