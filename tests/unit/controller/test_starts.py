"""What holds after a controller became active: eligible replicas, leaders, commands to brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import DEFAULTS, World
from tidelog.controller import requests
from tidelog.controller.announcements import Announcements
from tidelog.controller.decisions import config_effects
from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.creation import TopicToCreate, create_topics
from tidelog.controller.decisions.elections import Standing, eligible_now, with_isr
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    register,
    replace_unfit,
)
from tidelog.controller.decisions.settlement import settle_all
from tidelog.controller.pending import Changes
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode, PartitionState
from tidelog.metadata.store import Set
from tidelog.model.configs.resolve import BrokerLayers
from tidelog.model.levels import LEVELS
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SENDER = requests.Sender(101, "PLAINTEXT")
MINIMUM = "min.insync.replicas"


def short_of_two(*, in_the_store: bool) -> World:
    """Broker 1 leads alone, 2 is held for eligible: the minimum is two."""
    world = World(1, 2)
    configs = ((MINIMUM, "2"),) if in_the_store else ()
    if not in_the_store:
        world.cluster.layers = BrokerLayers({MINIMUM: "2"})
    topic = TopicToCreate("t", 1, 2, configs=configs)
    world.commit_only(create_topics(world.cluster, [topic], DEFAULTS, world.chance).writes)
    world.cluster.suspected = {2}
    world.commit_only(replace_unfit(world.cluster).writes)
    state = world.cluster.states[T0]
    assert (state.leader, state.isr, state.eligible_replicas) == (1, [1], [2])
    return world


def started_again(world: World, minimum: str, *, in_the_store: bool) -> ClusterState:
    """The minimum is changed while no controller is active; then the next one loads."""
    if in_the_store:
        path = layout.topic_configs("t")
        node = Set(path, layout.encode(ConfigNode({MINIMUM: minimum})))
        assert world.tree.apply(world.session, [node]) is None
    layers = BrokerLayers({} if in_the_store else {MINIMUM: minimum})
    cluster = ClusterState(layers=layers, brokers=world.cluster.brokers)
    load(cluster, world.nodes())
    world.cluster = cluster
    return cluster


@pytest.mark.parametrize("in_the_store", [True, False], ids=["topic", "file"])
def test_a_minimum_lowered_while_no_controller_is_active_leaves_no_replica_eligible(
    in_the_store: bool,
) -> None:
    """C1: the leader acknowledges alone by the lower one, and the other lacks those records."""
    world = short_of_two(in_the_store=in_the_store)
    cluster = started_again(world, "1", in_the_store=in_the_store)
    # Even before the start has cleared it, the rule of elections does not believe it.
    for write in settle_all(cluster, [T0], Standing.of(cluster, [1])):
        assert write.record.leader == -1  # type: ignore[union-attr]
    world.commit_only(config_effects.of_a_start(cluster).writes)
    assert cluster.states[T0].eligible_replicas == []
    assert config_effects.of_a_start(cluster).writes == ()
    world.commit_only(tuple(settle_all(cluster, [T0], Standing.of(cluster, [1]))))
    state = cluster.states[T0]
    assert (state.leader, state.isr) == (-1, [1]), "2 leads without flag or debt"


@pytest.mark.parametrize("minimum", ["2", "3"])
def test_a_start_keeps_replicas_eligible_by_the_minimum_that_holds(minimum: str) -> None:
    world = short_of_two(in_the_store=True)
    cluster = started_again(world, minimum, in_the_store=True)
    assert config_effects.of_a_start(cluster).writes == ()
    world.commit_only(tuple(settle_all(cluster, [T0], Standing.of(cluster, [1]))))
    assert (cluster.states[T0].leader, cluster.states[T0].isr) == (2, [2])


def test_a_start_in_an_old_copy_of_the_store_changes_nothing() -> None:
    world = short_of_two(in_the_store=True)
    cluster = started_again(world, "1", in_the_store=True)
    cluster.went_back = "planted"
    assert config_effects.of_a_start(cluster).writes == ()


def test_eligible_under_a_higher_minimum_ends_once_the_isr_had_the_present_one() -> None:
    stale = PartitionState(1, 5, 1, [1, 2], eligible_replicas=[3])
    assert eligible_now(stale, 2) == []
    assert with_isr(stale, [1], 2).eligible_replicas == [2]
    assert with_isr(stale, [1], 3).eligible_replicas == [3, 2]


# -- leaders of new partitions


def test_a_broker_not_registered_with_this_controller_leads_no_new_partition() -> None:
    """C7: it may be dead, and has no channel for the command."""
    world = World(1, 2)
    world.cluster.presumed = {1}
    world.create(TopicToCreate("t", 2, 2))
    for state in world.cluster.states.values():
        assert (state.leader, state.isr) == (2, [2])


def test_no_replica_leaves_an_isr_in_favour_of_a_leader_that_has_not_registered_here() -> None:
    """It may be dead: then the one that was silent for a moment holds all that is left."""
    world = World(1, 2)
    world.commit_only(
        create_topics(world.cluster, [TopicToCreate("t", 1, 2)], DEFAULTS, world.chance).writes
    )
    cluster = world.cluster
    cluster.presumed, cluster.suspected = {1}, {2}
    assert replace_unfit(cluster).writes == ()
    # Once it has registered the other one leaves.
    cluster.presumed = set()
    world.commit_only(replace_unfit(cluster).writes)
    assert (cluster.states[T0].leader, cluster.states[T0].isr) == (1, [1])


def test_a_partition_of_brokers_that_are_all_awaited_gets_its_leader_when_one_registers() -> None:
    world = World(1, 2)
    world.cluster.presumed = {1, 2}
    (created,) = world.create(TopicToCreate("t", 2, 2))
    assert created.refusal is None and world.cluster.states == {}
    assert requests.why_no_full(world.cluster) is None
    world.cluster.presumed = {2}
    world.do(complete(world.cluster, world.chance))
    assert world.cluster.states == {}, "2 may come back, and no request waits for it"
    world.cluster.presumed = set()
    world.do(complete(world.cluster, world.chance))
    assert {state.leader for state in world.cluster.states.values()} == {1, 2}
    epochs = [world.cluster.partition_nodes[where].partition_epoch for where in (T0, T1)]
    assert len(set(epochs)) == 2
    assert world.cluster.topic_histories["t"].unclean == {}


# -- what a registration tells others


def registration(broker: int, host: str = "h") -> Registration:
    return Registration(
        broker,
        "",
        UUID(int=broker),
        UUID(int=100 + broker),
        (Address("PLAINTEXT", host, 1, "PLAINTEXT"),),
        None,
        FormerRegistration.SAME,
        {},
    )


def test_registering_again_in_the_same_life_changes_nothing() -> None:
    """C9: otherwise all others get all its partitions again, because of a time."""
    world = World()
    first = register(world.cluster, registration(1), 5)
    world.do(first)
    world.create(TopicToCreate("t", 2, 1))
    where = world.cluster.topic_id("t")
    world.cluster.inventories[1] = {(where, index): LogEnd(-1, 0, 0) for index in (0, 1)}
    again = register(world.cluster, registration(1), 6)
    assert (again.answer, again.writes) == (first.answer, ())
    moved = register(world.cluster, registration(1, "elsewhere"), 7)
    assert [write.path for write in moved.writes] == [layout.broker(1)]


# -- commands that name a topic


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_topic_is_sent_once_it_has_an_id(level: Any) -> None:
    """C11, KIP-516: an INCREMENTAL names no topic without an id, as a FULL does not."""
    world = World(1)
    world.create(TopicToCreate("t", 1, 1), TopicToCreate("u", 1, 1))
    cluster = world.cluster
    cluster.level = level
    cluster.topics["t"] = msgspec.structs.replace(cluster.topics["t"], topic_id=None)
    changes = Changes(partitions={T0, TopicPartition("u", 0)})
    orders = Announcements().commands(cluster, SENDER, 1, changes)
    metadata = requests.update_metadata(cluster, SENDER, 1, changes.partitions)
    wanted = ["u"] if level.topic_ids else ["t", "u"]
    assert [topic.topic_name for topic in orders.topic_states] == wanted
    assert [topic.topic_name for topic in metadata.topic_states] == wanted
    named = replace(changes, partitions={TopicPartition("u", 0)})
    assert len(Announcements().commands(cluster, SENDER, 1, named).topic_states) == 1
