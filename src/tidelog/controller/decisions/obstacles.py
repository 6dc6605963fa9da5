"""Obstacles of a resize: why a partition could not commit a fence now, and what helps. Pure.

Owns the causes that the controller knows, with the words for operators: what is wrong, with the
names of the partition and of brokers, and the remedy of that cause. Not what follows: a request for
a resize is refused (``resize_requests``), a running one is undone (``resizing``), and the doctor
says what one waits for (``resizes_condition``).

| a partition | known from | is undone at once |
|---|---|---|
| has no nodes yet | the store | no |
| has no leader, and each of its replicas is damaged | the store, heartbeats | yes |
| has no leader, and no replica that was in sync can lead | the store, sessions | yes |
| the same, and what was in sync is damaged | the store, heartbeats | yes |
| has no leader, and one that was in sync is there | the store, sessions | no: it is elected |
| has a leader that is suspected, or about to shut down | sessions, heartbeats | yes |
| has a replica in sync in a log directory without room | heartbeats | yes |
| has too few replicas in sync, and too few live ones | the store, sessions | yes |
| has too few replicas in sync, and live ones catch up | the store, sessions | no |

For a child of a growth, which has no records, the remedy is another request: new partitions go to
brokers that are alive and have room.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.machines import missing_machines
from tidelog.controller.decisions.problems import names_of_brokers
from tidelog.metadata.records import PartitionState
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

AGAIN = "send the request again"


class Obstacle(NamedTuple):
    """Why a partition cannot commit a fence. ``what`` and ``remedy`` are clauses.

    ``ends_resize``: it does not pass by itself in the time of a resize.
    """

    error: ErrorCode
    what: str
    remedy: str
    ends_resize: bool


def obstacle_of(
    cluster: ClusterState, tp: TopicPartition, *, is_child: bool = False
) -> Obstacle | None:
    """Return why a partition could not commit a fence now, or None.

    ``is_child``: a growth that is not published has made it.
    """
    state = cluster.states.get(tp)
    if state is None or tp not in cluster.partition_nodes:
        what = f"{tp} has no nodes yet"
        remedy = f"{AGAIN} when it has a leader"
        return Obstacle(ErrorCode.LEADER_NOT_AVAILABLE, what, remedy, ends_resize=False)
    obstacle = _of_leader(cluster, tp, state)
    obstacle = obstacle or _of_room(cluster, tp, state.isr) or _of_isr(cluster, tp, state)
    if is_child:
        # A broker without room does not even host it.
        obstacle = obstacle or _of_new_room(cluster, tp, state.isr)
    if obstacle is None or not is_child:
        return obstacle
    remedy = f"{AGAIN}: new partitions go to brokers that are alive and have room"
    return obstacle._replace(remedy=remedy)


def of_unborn(cluster: ClusterState, tp: TopicPartition) -> Obstacle | None:
    """Return why a child of a growth that has no nodes yet could not have them, or not commit the
    fence of its birth; None: it can, as far as is known."""
    replicas = cluster.replicas(tp)
    if cluster.fit.isdisjoint(replicas):
        what = f"no broker of the new {tp} ({_numbers(replicas)}) is alive"
        remedy = f"{AGAIN}, with live brokers if it names some"
        return Obstacle(ErrorCode.LEADER_NOT_AVAILABLE, what, remedy, ends_resize=True)
    return _of_new_room(cluster, tp, replicas)


def why_not_placed(
    cluster: ClusterState, tp: TopicPartition, replicas: Collection[int]
) -> Obstacle | None:
    """Return why a new partition with these replicas could not commit its first fence, or None."""
    return _of_new_room(cluster, tp, replicas)


def of_silent(brokers: Collection[int]) -> Obstacle:
    """Return the obstacle of live brokers that did not respond in the time of a resize."""
    what = f"{_named(brokers)} did not respond, and no partition is closed before that"
    logs = "its log" if len(brokers) == 1 else "their logs"
    remedy = f"see why not ({logs}, tidelog doctor), then {AGAIN}"
    return Obstacle(ErrorCode.NOT_ENOUGH_REPLICAS, what, remedy, ends_resize=False)


def _of_leader(cluster: ClusterState, tp: TopicPartition, state: PartitionState) -> Obstacle | None:
    leader, error = state.leader, ErrorCode.LEADER_NOT_AVAILABLE
    if leader in cluster.fit:
        return None
    if leader in cluster.suspected:
        what = (
            f"{tp} has no live leader (broker {leader}, which alone can lead it, is suspected: "
            "its connection closed or it is silent)"
        )
        remedy = f"see whether it runs, and its log, then {AGAIN}"
        return Obstacle(error, what, remedy, ends_resize=True)
    if leader in cluster.shutting_down:
        what = (
            f"{tp} loses its leader (broker {leader}, which alone can lead it, is about to shut "
            "down)"
        )
        return Obstacle(error, what, f"start it again, then {AGAIN}", ends_resize=True)
    replicas = cluster.replicas(tp)
    if replicas and all((broker, tp) in cluster.broken for broker in replicas):
        what = f"{tp} has no leader (each of its replicas, on {_named(replicas)}, is damaged)"
        remedy = (
            "see their logs (tidelog doctor names the case): put back what is missing in a disk, "
            f"or delete the topic and create it again, then {AGAIN}"
        )
        return Obstacle(error, what, remedy, ends_resize=True)
    members = {*state.isr, *state.eligible_replicas} or {leader} - {NO_LEADER}
    holders = {x for x in members if (x, tp) not in cluster.broken}
    unclean = "tidelog elect-leaders --election-type unclean, which may lose records"
    if holders & cluster.electable:
        what = f"{tp} has no leader now"
        return Obstacle(error, what, f"{AGAIN} when one is elected", ends_resize=False)
    if not holders:
        what = f"{tp} has no leader (what was in sync, on {_named(members)}, is damaged)"
        return Obstacle(error, what, f"{unclean}; then {AGAIN}", ends_resize=True)
    what = f"{tp} has no live leader ({_named(holders)} had its records last)"
    remedy = (
        f"start {'it' if len(holders) == 1 else 'one of them'}, then {AGAIN}; if the disk is lost: "
        f"{unclean}"
    )
    return Obstacle(error, what, remedy, ends_resize=not holders & cluster.fit)


def _of_room(
    cluster: ClusterState, tp: TopicPartition, members: Collection[int]
) -> Obstacle | None:
    """Return an obstacle if a replica in sync is in a log directory without room."""
    for broker in members:
        short = cluster.shortages.get(broker)
        log_dir = None if short is None else short.replicas.get(tp)
        if short is not None and log_dir is not None:
            what = f"broker {broker} cannot write {tp} ({log_dir}: {short.reasons[log_dir]})"
            remedy = f"make room there, or move the partition to another broker, then {AGAIN}"
            return Obstacle(ErrorCode.KAFKA_STORAGE_ERROR, what, remedy, ends_resize=True)
    return None


def _of_new_room(
    cluster: ClusterState, tp: TopicPartition, replicas: Collection[int]
) -> Obstacle | None:
    for broker in replicas:
        if broker in cluster.roomless:
            reasons = cluster.shortages[broker].reasons
            listed = "; ".join(f"{path}: {reason}" for path, reason in reasons.items())
            what = f"broker {broker} has no room for the new {tp} ({listed})"
            remedy = f"make room there, or name other brokers (--replica-assignment), then {AGAIN}"
            return Obstacle(ErrorCode.KAFKA_STORAGE_ERROR, what, remedy, ends_resize=True)
    return None


def _of_isr(cluster: ClusterState, tp: TopicPartition, state: PartitionState) -> Obstacle | None:
    replicas = cluster.replicas(tp)
    minimum = cluster.min_insync(tp.topic, len(replicas))
    if len(state.isr) >= minimum:
        return _of_machines(cluster, tp, state)
    what = f"{tp} has {len(state.isr)} replicas in sync and needs {minimum} (min.insync.replicas)"
    dead = sorted(set(replicas) - cluster.fit)
    lagging = sorted((set(replicas) & cluster.fit).difference(state.isr))
    can_pass = len(set(replicas) & cluster.fit) >= minimum
    if can_pass and lagging:
        remedy = f"wait until {_named(lagging)} has caught up, then {AGAIN}"
    else:
        remedy = f"start {_named(dead)}, and wait until it has caught up, then {AGAIN}"
    return Obstacle(ErrorCode.NOT_ENOUGH_REPLICAS, what, remedy, ends_resize=not can_pass)


def _of_machines(
    cluster: ClusterState, tp: TopicPartition, state: PartitionState
) -> Obstacle | None:
    """Return an obstacle if the replicas in sync are on too few machines (decision 0131)."""
    replicas = cluster.replicas(tp)
    minimum = cluster.resolve(tp.topic).configs.min_insync_machines
    missing = missing_machines(cluster, state.isr, minimum, len(replicas))
    if missing == 0:
        return None
    required = min(minimum, len(replicas))
    what = (
        f"{tp} has replicas in sync on {required - missing} machines and needs {required} "
        "(min.insync.machines)"
    )
    # What waits for a commit waits for a broker, or for a move of the partition.
    can_pass = missing_machines(cluster, set(replicas) & cluster.fit, minimum, len(replicas)) == 0
    absent = sorted(set(replicas).difference(state.isr))
    if absent:
        remedy = f"start {_named(absent)}, and wait until it has caught up, then {AGAIN}"
    else:
        remedy = f"move the partition to more machines, then {AGAIN}"
    return Obstacle(ErrorCode.NOT_ENOUGH_REPLICAS, what, remedy, ends_resize=not can_pass)


def _named(brokers: Collection[int]) -> str:
    return names_of_brokers(sorted(brokers))


def _numbers(brokers: Collection[int]) -> str:
    return ", ".join(map(str, brokers))
