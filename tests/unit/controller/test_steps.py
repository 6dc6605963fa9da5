"""A controller killed between any two steps: the next one finishes what the last one began.

A store with a small limit cuts large changes into several commits; here the controller dies after
each of them in turn, and another loads what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from tests.support.controller_world import DEFAULTS, KEPT, World
from tidelog.controller.decisions import deletion, journal
from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.creation import TopicToCreate, create_topics
from tidelog.controller.decisions.decision import Decision, Put
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics, take_up
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    expire,
    register,
)
from tidelog.controller.decisions.restoration import accept
from tidelog.metadata import layout
from tidelog.metadata.records import WentBack
from tidelog.model.levels import level_of
from tidelog.model.registration import FormerRegistration

PARTITIONS = 12
LIMIT = 700
"""So small that every change below takes several commits."""

Step = Callable[[ClusterState, World], Decision[Any]]


@pytest.fixture(autouse=True)
def small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MANY", 1)


def request(
    broker: int, incarnation: int, ended: FormerRegistration, cluster: ClusterState
) -> Registration:
    return Registration(
        broker,
        "",
        UUID(int=incarnation),
        UUID(int=broker),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        None,
        ended,
        cluster.inventories.get(broker, {}),
    )


def create(cluster: ClusterState, world: World) -> Decision[Any]:
    return create_topics(cluster, [TopicToCreate("t", PARTITIONS, 2)], DEFAULTS, world.chance)


def grow(cluster: ClusterState, world: World) -> Decision[Any]:
    """As below level 1.5: after that a growth is a plan."""
    cluster.level = level_of("1.4")
    return create_partitions(cluster, [Growth("t", 2 * PARTITIONS)], world.chance)


def die(cluster: ClusterState, world: World) -> Decision[Any]:
    return expire(cluster, [1])


def return_unclean(cluster: ClusterState, world: World) -> Decision[Any]:
    return register(cluster, request(1, 99, FormerRegistration.UNCLEAN, cluster), 1)


def delete(cluster: ClusterState, world: World) -> Decision[Any]:
    return delete_topics(cluster, [PendingDelete("t")])


def accept_restored(cluster: ClusterState, world: World) -> Decision[Any]:
    return accept(cluster, (), (), world.chance)


def prepared(*, topic: bool, gone_back: bool = False) -> World:
    world = World()
    for broker in (1, 2, 3):
        world.do(
            register(
                world.cluster, request(broker, broker, FormerRegistration.CLEAN, world.cluster), 1
            )
        )
    if topic:
        world.do(create(world.cluster, world))
        topic_id = world.cluster.topic_id("t")
        for broker in (1, 2, 3):
            world.cluster.inventories[broker] = {
                (topic_id, where.partition): LogEnd(-1, 0, 10 * broker)
                for where in world.cluster.partitions_of(broker)
            }
    if gone_back:
        world.commit((Put(layout.WENT_BACK, WentBack("why")),))
    return world


def killed_after(world: World, step: Step, commits: int) -> bool:
    """Take so many commits of a step, and let another controller load; False: it was done."""
    decision = step(world.cluster, world)
    cut = list(journal.parts(decision, LIMIT))
    assert decision.splits and len(cut) > 2, "the limit is too large to cut this change"
    for part in cut[:commits]:
        world.commit_only(tuple(part))
    next_one = ClusterState(brokers={})
    load(next_one, world.nodes())
    for kept in KEPT:
        setattr(next_one, kept, getattr(world.cluster, kept))
    world.cluster = next_one
    return commits < len(cut)


def check(world: World, partitions: int) -> None:
    cluster = world.cluster
    assert cluster.damaged == {}
    assert len(cluster.topics["t"].partitions) == len(cluster.states) == partitions
    epochs = [life.partition_epoch for life in cluster.partition_nodes.values()]
    assert len(set(epochs)) == len(epochs) == partitions, "an epoch was given twice"
    assert max(epochs) <= cluster.counters[layout.PARTITION_EPOCH]
    for where, state in cluster.states.items():
        assert state.leader in cluster.brokers, (where, state)
        assert state.leader in state.isr
        if state.is_unclean_leader:
            assert where.partition in cluster.topic_histories["t"].unclean


@pytest.mark.parametrize(
    ("step", "topic", "partitions"), [(create, False, PARTITIONS), (grow, True, 2 * PARTITIONS)]
)
def test_creating_and_growing(step: Step, topic: bool, partitions: int) -> None:
    for commits in count():
        world = prepared(topic=topic)
        went_on = killed_after(world, step, commits)
        if "t" in world.cluster.topics and commits:
            world.do(complete(world.cluster, world.chance))
            expected = len(world.cluster.topics["t"].partitions)
            assert expected in (partitions, PARTITIONS)
            check(world, expected)
        assert world.do(complete(world.cluster, world.chance)) == []
        if not went_on:
            check(world, partitions)
            return


def test_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "AT_ONCE", 1)
    for commits in count():
        world = prepared(topic=True)
        topic_id = world.cluster.topic_id("t")
        went_on = killed_after(world, delete, commits)
        cluster = world.cluster
        assert cluster.damaged == {}, "what is half gone must not stop the others"
        assert cluster.marked or not commits or not went_on
        world.do(complete(cluster, world.chance))
        world.do(take_up(cluster))
        if commits:
            assert cluster.topics == {} and cluster.states == {} and cluster.marked == set()
            held = cluster.deletions[topic_id].partitions
            assert {index: len(brokers) for index, brokers in held.items()} == dict.fromkeys(
                range(PARTITIONS), 2
            )
            assert [path for path in world.tree.nodes if "/t" in path.partition("topics")[2]] == []
        if not went_on:
            return


def test_a_death() -> None:
    for commits in count():
        world = prepared(topic=True)
        went_on = killed_after(world, die, commits)
        assert (1 in world.cluster.brokers) is went_on, "its node goes last"
        world.do(expire(world.cluster, [1]))
        check(world, PARTITIONS)
        assert all(1 not in state.isr for state in world.cluster.states.values())
        if not went_on:
            return


def test_a_return_without_certainty() -> None:
    for commits in count():
        world = prepared(topic=True)
        before = dict(world.cluster.states)
        went_on = killed_after(world, return_unclean, commits)
        # It registers with the next controller as the life that it is.
        world.do(return_unclean(world.cluster, world))
        check(world, PARTITIONS)
        for where, state in world.cluster.states.items():
            if before[where].leader == 1:
                assert state.leader_epoch > before[where].leader_epoch
            assert 1 not in state.isr, "it may lack what was committed"
        if not went_on:
            return


def test_accepting_a_restored_store() -> None:
    for commits in count():
        world = prepared(topic=True, gone_back=True)
        went_on = killed_after(world, accept_restored, commits)
        assert (world.cluster.went_back is not None) is went_on, "it is accepted with the last one"
        if went_on:
            assert isinstance(world.do(accept_restored(world.cluster, world)), dict)
        check(world, PARTITIONS)
        if not went_on:
            return
