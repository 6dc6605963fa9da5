"""Stops of former incarnations: notes carry the partition epoch, requests and confirmations too."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Write
from tidelog.controller.decisions.deletion import PendingDelete, confirm, delete_topics
from tidelog.controller.decisions.moves import Placement, cancelled, completed, started, written
from tidelog.controller.decisions.stops import Stop, stops_of
from tidelog.controller.pending import changes_of
from tidelog.controller.requests import Sender
from tidelog.metadata import layout
from tidelog.metadata.records import FormerPartition, PartitionNode, TopicHistory
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition

SENDER = Sender(101, "PLAINTEXT")
T0 = TopicPartition("t", 0)
LIFE = 1
"""The partition epoch of t-0 in a new world."""


def world_at(level: str = "1.5") -> World:
    world = World(1, 2, 3, 4)
    world.cluster.level = level_of(level)
    world.create(TopicToCreate("t", assignment=((0, (1, 2)), (1, (1, 2)))))
    return world


def history_of(world: World) -> TopicHistory:
    return world.cluster.topic_histories["t"]


def changed(world: World, **fields: object) -> tuple[Write, ...]:
    history: TopicHistory = msgspec.structs.replace(history_of(world), **fields)  # type: ignore[arg-type]
    return (Put(layout.topic_history("t"), history),)


def moved(world: World, *targets: int) -> None:
    """Move t-0: it starts, and ends with all targets in sync."""
    world.commit(tuple(written(world.cluster, {T0: started(_now(world), targets)})))
    now = _now(world)
    state = msgspec.structs.replace(now.state, isr=list(targets))
    joined = msgspec.structs.replace(now.state, isr=list(dict.fromkeys((*now.state.isr, *targets))))
    world.commit((Put(layout.state(*T0), joined),))
    ended = completed(Placement.of(world.cluster, T0), targets[0])
    world.commit(tuple(written(world.cluster, {T0: ended})))
    state = msgspec.structs.replace(world.cluster.states[T0], isr=list(targets))
    world.commit((Put(layout.state(*T0), state),))


def _now(world: World) -> Placement:
    return Placement.of(world.cluster, T0)


@pytest.mark.parametrize(("level", "noted", "sent"), [("1.4", {}, -1), ("1.5", LIFE, LIFE)])
def test_a_note_carries_the_partition_epoch_from_level_1_5_on(
    level: str, noted: object, sent: int
) -> None:
    world = world_at(level)
    moved(world, 3, 4)
    epoch = history_of(world).pending_stops[0][1]
    expected = {} if level == "1.4" else {0: {1: noted, 2: noted}}
    assert history_of(world).stop_partition_epochs == expected
    topic_id = world.cluster.topic_id("t")
    (stop,) = stops_of(world.cluster, 1)
    assert stop == Stop("t", topic_id, 0, epoch, partition_epoch=sent)
    (request,) = requests.stop_replica(world.cluster, SENDER, 1, [stop])
    (state,) = request.topic_states[0].partition_states
    assert (state.leader_epoch, state.partition_epoch) == (epoch, sent)
    world.do(confirm(world.cluster, 1, [stop]))
    world.do(confirm(world.cluster, 2, stops_of(world.cluster, 2)))
    assert history_of(world).pending_stops == {} == history_of(world).stop_partition_epochs


def test_a_cancelled_move_notes_it_too() -> None:
    world = world_at()
    world.commit(tuple(written(world.cluster, {T0: started(_now(world), (1, 3))})))
    world.commit(tuple(written(world.cluster, {T0: cancelled(_now(world))})))
    assert history_of(world).stop_partition_epochs == {0: {3: LIFE}}


def test_a_note_without_an_epoch_stays_without_one_at_a_higher_level() -> None:
    world = world_at("1.4")
    moved(world, 3, 4)
    world.cluster.level = level_of("1.5")
    moved(world, 3, 2)
    assert history_of(world).pending_stops[0].keys() == {1, 4}
    assert history_of(world).stop_partition_epochs == {0: {4: LIFE}}


@pytest.mark.parametrize(
    ("partition_epoch", "leader_epoch", "confirmed"),
    [(5, 7, True), (6, 7, False), (-1, 7, False), (5, 8, False)],
)
def test_a_confirmation_of_another_incarnation_leaves_the_note(
    partition_epoch: int, leader_epoch: int, confirmed: bool
) -> None:
    world = world_at()
    notes = {"pending_stops": {0: {3: 7}}, "stop_partition_epochs": {0: {3: 5}}}
    world.commit(changed(world, **notes))
    topic_id = world.cluster.topic_id("t")
    stop = Stop("t", topic_id, 0, leader_epoch, partition_epoch=partition_epoch)
    world.do(confirm(world.cluster, 3, [stop]))
    assert (history_of(world).pending_stops == {}) == confirmed
    assert (history_of(world).stop_partition_epochs == {}) == confirmed


FORMER = FormerPartition(100, 7, 90, 5, 2)


@pytest.mark.parametrize(
    ("present", "former", "stopped"),
    [
        # Removed, and not created again: no state says anything.
        (None, FORMER, True),
        # Removed, and created again on the same brokers, in sync there.
        (9, FORMER, True),
        (9, None, True),
        # Only the nodes are missing: that proves nothing (promise 20).
        (None, None, False),
        # An older incarnation was removed, this one was not.
        (5, msgspec.structs.replace(FORMER, partition_epoch=4), False),
    ],
)
def test_a_replica_of_a_removed_partition_is_stopped_whatever_the_present_state_says(
    present: int | None, former: FormerPartition | None, stopped: bool
) -> None:
    world = world_at()
    at = TopicPartition("t", 1) if present is not None else TopicPartition("t", 6)
    if present is not None:
        world.commit((Put(layout.partition(*at), PartitionNode(present)),))
    world.commit(
        changed(
            world,
            pending_stops={at.partition: {2: 7}},
            stop_partition_epochs={at.partition: {2: 5}},
            former={} if former is None else {at.partition: former},
        )
    )
    found = stops_of(world.cluster, 2)
    assert [(x.partition, x.leader_epoch, x.partition_epoch) for x in found] == (
        [(at.partition, 7, 5)] if stopped else []
    )


def test_a_changed_partition_epoch_alone_is_a_stop_to_send() -> None:
    world = world_at()
    world.commit(changed(world, pending_stops={0: {3: 7}}, stop_partition_epochs={0: {3: 5}}))
    assert not changes_of(world.cluster, changed(world)).stops
    assert changes_of(world.cluster, changed(world, stop_partition_epochs={0: {3: 6}})).stops


def test_a_deletion_waits_for_brokers_that_owe_a_stop_of_a_removed_partition() -> None:
    world = world_at()
    world.commit(
        changed(
            world,
            pending_stops={6: {3: 7}},
            stop_partition_epochs={6: {3: 5}},
            former={6: FORMER},
        )
    )
    topic_id = world.cluster.topic_id("t")
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    node = world.cluster.deletions[topic_id]
    assert node.partitions == {0: [1, 2], 1: [1, 2], 6: [3]}
    # A next topic of this name begins above every incarnation (decision 0016).
    assert node.leader_epochs == {0: 0, 1: 0, 6: 7}
    assert stops_of(world.cluster, 3) == [Stop("t", topic_id, 6, -2)]
