"""Bugs of moves (KIP-455), to be planted in a run, and the courses that find them.

Owns the plants and their table. Not the search for a seed: see ``search``; nor the runs:
``test_cluster_moves`` begins where a seed finds each one, `make soak MOVERS=N` at the first seed.
A shortcut of a single replica that is kept while it moves is found by no seed: a story of
`tests/regressions/test_simulated_moves.py` finds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tests.simulation.planted.search import Patch, Planted, directed
from tests.simulation.scenarios.course import Course
from tidelog.controller import requests
from tidelog.controller.decisions import moves, nodes, reassignments, settlement, stops
from tidelog.storage.directory.log_directory import LogDirectory

REDUNDANCY = ("a_move_keeps_redundancy",)
EPOCH = ("a_move_raises_the_epoch",)


def stop_before_the_shrink(patch: Patch) -> None:
    patch.setattr(
        stops, "_may_stop", lambda cluster, broker, where: broker not in cluster.hosts(where)
    )


def keep_the_epoch_at_a_start(patch: Patch) -> None:
    started = moves.started

    def quiet(now: Any, targets: Any) -> Any:
        return _in_epoch(started(now, targets), now.state.leader_epoch)

    patch.setattr(reassignments, "started", quiet)


def keep_the_epoch_at_a_cancellation(patch: Patch) -> None:
    cancelled = moves.cancelled
    patch.setattr(
        reassignments, "cancelled", lambda now: _in_epoch(cancelled(now), now.state.leader_epoch)
    )


def _in_epoch(placed: Any, epoch: int) -> Any:
    return replace(placed, state=msgspec.structs.replace(placed.state, leader_epoch=epoch))


def complete_with_one_missing(patch: Patch) -> None:
    note = nodes._note_move

    def early(cluster: Any, where: Any, state: Any) -> None:
        note(cluster, where, state)
        targets = () if state is None else state.target_replicas or ()
        if targets and len({*targets}.difference(state.isr)) <= 1:
            cluster.arrived.add(where)

    patch.setattr(nodes, "_note_move", early)


def send_a_full_without_targets(patch: Patch) -> None:
    build = requests.leader_and_isr

    def partial(cluster: Any, sender: Any, broker: int, places: Any, kind: int) -> Any:
        if kind == requests.FULL:
            places = [where for where in places if broker in cluster.replicas(where)]
        return build(cluster, sender, broker, places, kind)

    patch.setattr(requests, "leader_and_isr", partial)


def stop_without_the_epoch_of_the_decision(patch: Patch) -> None:
    """As a deletion does: it overrides every epoch."""

    def timeless(name: Any, topic_id: Any, partition: int, leader_epoch: int, **more: Any) -> Any:
        return STOP(name, topic_id, partition, stops.DELETED_EPOCH, **more)

    patch.setattr(stops, "Stop", timeless)


STOP = stops.Stop


def elect_a_target_that_has_not_joined(patch: Patch) -> None:
    settle = settlement.settle

    def hasty(state: Any, replicas: Any, standing: Any, *more: Any) -> Any:
        new = settle(state, replicas, standing, *more)
        targets = [x for x in state.target_replicas or () if x not in replicas]
        other = next((x for x in targets if x in standing.electable), -1)
        if new.leader_epoch == state.leader_epoch or other < 0:
            return new
        return msgspec.structs.replace(new, leader=other, isr=[other])

    patch.setattr(settlement, "settle", hasty)


def remember_the_second_change(patch: Patch) -> None:
    started = moves.started

    def forgetful(now: Any, targets: Any) -> Any:
        after = started(now, targets)
        is_change = None not in (now.state.target_replicas, after.state.target_replicas)
        return replace(after, original=now.replicas) if is_change else after

    patch.setattr(reassignments, "started", forgetful)


def revert_at_a_cancellation(patch: Patch) -> None:
    cancelled = moves.cancelled
    patch.setattr(
        reassignments,
        "cancelled",
        lambda now: replace(cancelled(now), replicas=now.original or now.replicas, original=None),
    )


def keep_what_a_full_made_stale(patch: Patch) -> None:
    """A copy that no longer belongs to its broker is quarantined without a limit."""
    mark = LogDirectory.mark_stray

    def for_ever(self: Any, partition: Any, **more: Any) -> str:
        return mark(self, partition, **{**more, "remove_after_ms": None})

    patch.setattr(LogDirectory, "mark_stray", for_ever)


def moving(weights: dict[str, float], **more: Any) -> Course:
    """Return a directed course with a mover that seldom rests."""
    options = {"moves": True, "movers_pause": (0.1, 1.0), "brokers": 4, "deletes": False, **more}
    return directed(weights, **options)


AWAY = {"kill_broker": 3.0, "isolate": 2.0}

PLANTED = (
    Planted(stop_before_the_shrink, ("a_stop_follows_the_shrink",), moving({"cut": 1.0})),
    Planted(keep_the_epoch_at_a_start, EPOCH, moving({"cut": 1.0})),
    Planted(keep_the_epoch_at_a_cancellation, EPOCH, moving(AWAY), first_seed=1),
    Planted(complete_with_one_missing, REDUNDANCY, moving({"cut": 1.0})),
    Planted(
        send_a_full_without_targets,
        ("no_late_deletion", "a_move_ends_exactly"),
        moving({"kill_broker": 3.0, "kill_controller": 1.0}, fetch_bytes=500),
        first_seed=17,
    ),
    Planted(
        stop_without_the_epoch_of_the_decision,
        ("no_late_deletion", "no_delete_without_proof"),
        moving({"replay": 1.0}, pause=(0.05, 0.4), brokers=3),
    ),
    Planted(
        elect_a_target_that_has_not_joined,
        ("only_the_complete_lead",),
        moving({"kill_broker": 1.0}, fetch_bytes=500),
        first_seed=1,
    ),
    Planted(remember_the_second_change, ("a_move_keeps_its_record",), moving(AWAY)),
    Planted(revert_at_a_cancellation, REDUNDANCY, moving(AWAY), first_seed=5),
    Planted(
        keep_what_a_full_made_stale,
        ("no_copy_is_left_over",),
        moving({"kill_broker": 3.0, "kill_controller": 1.0}, fetch_bytes=500),
        first_seed=1,
    ),
)
