"""Leaders go back to preferred replicas: Kafka's rule as a table, and the timer over it."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.rebalance import imbalanced, rebalance
from tidelog.controller.decisions.settlement import put_state
from tidelog.metadata.records import PartitionState
from tidelog.model.topics import TopicPartition


def world_with(*leaders: int) -> World:
    """Ten partitions that prefer broker 1; those given first are led by others."""
    world = World(1, 2, 3)
    assignment = tuple((index, (1, 2, 3)) for index in range(10))
    (created,) = world.create(TopicToCreate("t", -1, -1, assignment))
    assert created.refusal is None
    for index, leader in enumerate(leaders):
        state = PartitionState(leader, 4, 1, [1, 2, 3])
        world.commit((put_state(world.cluster, TopicPartition("t", index), state),))
    return world


@pytest.mark.parametrize(
    ("leaders", "percentage", "moved"),
    [
        ((), 10, 0),
        ((2,), 10, 0),
        ((2, 3), 10, 2),
        ((2, 3), 20, 0),
        ((2,), 0, 1),
        ((2,) * 10, 99, 10),
        ((-1, -1), 10, 0),
    ],
)
def test_a_broker_is_out_of_balance_above_the_percentage(
    leaders: tuple[int, ...], percentage: int, moved: int
) -> None:
    world = world_with(*leaders)
    places = world.do(rebalance(world.cluster, percentage))
    assert places == [TopicPartition("t", index) for index in range(moved)]
    for where in places:
        state = world.cluster.states[where]
        assert (state.leader, state.leader_epoch, state.isr) == (1, 5, [1, 2, 3])
    assert moved == 0 or imbalanced(world.cluster, percentage) == []


def test_what_cannot_move_stays() -> None:
    where = TopicPartition("t", 0)
    for change in (
        "out of sync",
        "suspected",
        "leaving",
        "presumed",
        "damaged",
        "moving",
        "marked",
    ):
        world = world_with(2)
        cluster = world.cluster
        state = cluster.states[where]
        if change == "out of sync":
            cluster.states[where] = msgspec.structs.replace(state, isr=[2, 3])
        elif change == "moving":
            cluster.states[where] = msgspec.structs.replace(state, target_replicas=[2, 3])
        elif change == "damaged":
            cluster.broken.add((1, where))
        elif change == "marked":
            cluster.marked.add("t")
        else:
            brokers = {"suspected": cluster.suspected, "leaving": cluster.shutting_down}
            brokers.get(change, cluster.presumed).add(1)
        assert imbalanced(cluster, 0) == [], change
