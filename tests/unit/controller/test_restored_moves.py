"""Stores restored from before, during and after a move: no copy is given up, and the move goes on.

A whole move and a cancelled one are recorded write by write. Every store of a record is then the
backup of every later state of the brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.cluster import LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.deletion import confirm
from tidelog.controller.decisions.isr import Proposal, alter_isr
from tidelog.controller.decisions.moves import Placement, complete, written
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.controller.decisions.registration import Address, Registration, register
from tidelog.controller.decisions.restoration import accept
from tidelog.controller.decisions.restoration_report import report
from tidelog.controller.decisions.stops import stops_of
from tidelog.metadata import layout
from tidelog.metadata.records import WentBack
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)
BROKERS = (1, 2, 3, 4)
BEFORE, TARGETS = (1, 2), (3, 4)


class Moment(NamedTuple):
    """What the store has at one moment, and the replicas that brokers then have."""

    placed: Placement
    ends: dict[int, LogEnd]


def begun() -> World:
    world = World()
    for broker in BROKERS:
        world.cluster.inventories[broker] = {}
        request = Registration(
            broker,
            "",
            UUID(int=broker),
            UUID(int=broker),
            (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
            None,
            FormerRegistration.CLEAN,
            {},
        )
        world.do(register(world.cluster, request, 1))
    world.create(TopicToCreate("t", assignment=((0, BEFORE),)))
    return world


def propose(world: World, *isr: int) -> None:
    state = world.cluster.states[T0]
    version = world.cluster.isr_version(T0)
    proposal = Proposal(T0, UUID(int=0), state.leader_epoch, isr, version)
    (outcome,) = world.do(alter_isr(world.cluster, state.leader, [proposal]))
    assert not outcome.error


def recorded(*, cancelled: bool) -> list[Moment]:
    """A move from BEFORE to TARGETS, or one that is cancelled on the way and asked for again."""
    world, found = begun(), []

    def note(at: int) -> None:
        cluster = world.cluster
        state = cluster.states[T0]
        held = {*cluster.hosts(T0), *cluster.topic_histories["t"].pending_stops.get(0, {})}
        ends = {}
        for broker in held:
            is_whole = broker in state.isr and broker in cluster.hosts(T0)
            epoch = state.leader_epoch if is_whole else max(0, state.leader_epoch - 1)
            ends[broker] = LogEnd(1, epoch, 100 + at if is_whole else 10)
        found.append(Moment(Placement.of(cluster, T0), ends))

    def ask(targets: tuple[int, ...] | None) -> None:
        world.do(reassign(world.cluster, [Asked(T0, targets)]))

    steps = [
        lambda: None,
        lambda: ask(TARGETS),
        lambda: propose(world, 1, 2, 3),
        *((lambda: ask(None), lambda: ask(TARGETS)) if cancelled else ()),
        lambda: propose(world, 1, 2, 3, 4),
        lambda: world.do(complete(world.cluster)),
        lambda: propose(world, 3, 4),
        *(
            (lambda x=x: world.do(confirm(world.cluster, x, stops_of(world.cluster, x))))
            for x in BEFORE
        ),
    ]
    for at, step in enumerate(steps):
        step()
        note(at)
    return found


def pairs() -> Iterator[tuple[str, Moment, Moment]]:
    for cancelled in (False, True):
        moments = recorded(cancelled=cancelled)
        for backup, then in enumerate(moments):
            for later, now in enumerate(moments[backup:], backup):
                kind = "cancelled" if cancelled else "whole"
                yield f"{kind}-{backup}-{later}", then, now


PAIRS = list(pairs())


@pytest.mark.parametrize(
    ("backup", "now"), [pair[1:] for pair in PAIRS], ids=[pair[0] for pair in PAIRS]
)
def test_a_backup_of_any_moment_is_restored_at_any_later_one(backup: Moment, now: Moment) -> None:
    world = begun()
    cluster = world.cluster
    world.commit(tuple(written(cluster, {T0: backup.placed})))
    world.commit((Put(layout.WENT_BACK, WentBack("why")),))
    topic_id = cluster.topic_id("t")
    for broker in BROKERS:
        held = {(topic_id, 0): now.ends[broker]} if broker in now.ends else {}
        cluster.inventories[broker] = held
    assert (report(cluster)["brokers_missing"], report(cluster)["brokers_heard"]) == (
        [],
        [*BROKERS],
    )
    answer = world.do(accept(cluster, (), (), world.chance))
    assert not isinstance(answer, RequestRefusal)
    state, replicas = cluster.states[T0], cluster.replicas(T0)
    best = max(end[1:] for end in now.ends.values())
    assert state.leader in replicas and state.isr == [state.leader]
    assert now.ends[state.leader][1:] == best, "the replica with the newest records leads"
    newest = {x for x, end in now.ends.items() if end[1:] == best}
    assert newest <= set(cluster.hosts(T0)), "no copy with all records is given up"
    assert state.target_replicas == backup.placed.state.target_replicas, "the move goes on"
    assert set(backup.placed.replicas) <= set(replicas)
    waiting = set(state.target_replicas or ()).difference(backup.placed.replicas)
    assert waiting.intersection(replicas) <= {state.leader}, "a copy is partial until it joins"
    owed = cluster.topic_histories["t"].pending_stops.get(0, {})
    assert not set(owed).intersection(cluster.hosts(T0))
    assert all(epoch < state.leader_epoch for epoch in owed.values())
    if state.target_replicas is not None:
        propose(world, state.leader, *(x for x in TARGETS if x != state.leader))
        assert world.do(complete(cluster)) == [T0]
        assert cluster.replicas(T0) == list(TARGETS)


def test_a_target_that_is_away_is_waited_for() -> None:
    world = begun()
    cluster = world.cluster
    world.do(reassign(cluster, [Asked(T0, TARGETS)]))
    world.commit((Put(layout.WENT_BACK, WentBack("why")),))
    del cluster.inventories[4]
    world.commit((Put(layout.broker(1), msgspec.structs.replace(cluster.brokers[1])),))
    cluster.brokers.pop(4)
    refused = accept(cluster, (), (), world.chance).answer
    assert isinstance(refused, RequestRefusal) and "Brokers 4 have replicas" in refused.sentence
