"""Partitions that move: which brokers host them, and what brokers are sent meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.announcements import Announcements
from tidelog.controller.decisions.cluster import LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.stops import holders
from tidelog.controller.pending import changes_of
from tidelog.controller.requests import Sender
from tidelog.metadata import layout
from tidelog.metadata.store import Set
from tidelog.model.levels import LEVELS, level_of
from tidelog.model.topics import TopicPartition, hosts_of, with_joined

SENDER = Sender(101, "PLAINTEXT")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def moving(replicas: tuple[int, ...] = (1, 2), targets: tuple[int, ...] = (2, 3)) -> World:
    """Partition 0 of two moves from `replicas` to `targets`."""
    world = World(1, 2, 3)
    world.create(TopicToCreate("t", assignment=((0, replicas), (1, replicas))))
    state = msgspec.structs.replace(world.cluster.states[T0], target_replicas=list(targets))
    world.commit((put_state(world.cluster, T0, state),))
    return world


@pytest.mark.parametrize(
    ("replicas", "targets", "hosts"),
    [
        ([1, 2], None, (1, 2)),
        ([1, 2], [], (1, 2)),
        ([1, 2], [2, 1], (1, 2)),
        ([1, 2], [3, 2], (1, 2, 3)),
        ([1], [4, 5, 6], (1, 4, 5, 6)),
    ],
)
def test_hosts_are_the_replicas_and_then_the_targets(
    replicas: list[int], targets: list[int] | None, hosts: tuple[int, ...]
) -> None:
    assert hosts_of(replicas, targets) == hosts


@pytest.mark.parametrize(
    ("replicas", "targets", "isr", "after"),
    [
        ([1, 2], None, [1, 2, 3], (1, 2)),
        ([1, 2], [3, 4], [1, 2], (1, 2)),
        ([1, 2], [3, 4], [1, 2, 4], (1, 2, 4)),
        ([1, 2, 4], [3, 4], [1, 4], (1, 2, 4)),
        ([1], [3, 4, 1], [4, 1, 3], (1, 4, 3)),
    ],
)
def test_targets_that_join_the_isr_join_the_replicas(
    replicas: list[int], targets: list[int] | None, isr: list[int], after: tuple[int, ...]
) -> None:
    assert with_joined(replicas, targets, isr) == after


def test_a_target_hosts_its_partition_until_the_move_ends() -> None:
    world = moving()
    cluster = world.cluster
    assert cluster.moves == {T0: [2, 3]} and cluster.arrived == set()
    assert list(cluster.partitions_of(3)) == [T0]
    assert list(cluster.partitions_of(1)) == [T0, T1]
    assert list(holders(cluster, "t", 0)) == [1, 2, 3]
    joined = msgspec.structs.replace(cluster.states[T0], isr=[1, 2, 3])
    world.commit((put_state(cluster, T0, joined),))
    assert cluster.arrived == {T0}
    ended = msgspec.structs.replace(joined, isr=[1, 2], target_replicas=None)
    world.commit((put_state(cluster, T0, ended),))
    assert cluster.moves == {} and cluster.arrived == set()
    assert list(cluster.partitions_of(3)) == []


@pytest.mark.parametrize("kind", [requests.FULL, requests.INCREMENTAL, requests.UNSPECIFIED])
def test_a_target_gets_the_commands_of_its_partition_only(kind: int) -> None:
    cluster = moving().cluster
    sent = requests.leader_and_isr(cluster, SENDER, 3, cluster.all_partitions(), kind)
    (topic,) = sent.topic_states
    (state,) = topic.partition_states
    assert (state.partition_index, state.replicas, state.target_replicas) == (0, [1, 2], [2, 3])
    split = requests.by_broker(cluster, cluster.all_partitions())
    assert split == {1: {"t": [T0, T1]}, 2: {"t": [T0, T1]}, 3: {"t": [T0]}}


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_below_level_1_2_targets_are_among_the_replicas(level) -> None:  # type: ignore[no-untyped-def]
    cluster = moving().cluster
    cluster.level = level
    sent = requests.leader_and_isr(cluster, SENDER, 3, [T0], requests.INCREMENTAL)
    (state,) = sent.topic_states[0].partition_states
    assert state.replicas == ([1, 2, 3] if level in LEVELS[:2] else [1, 2])
    metadata = requests.update_metadata(cluster, SENDER, 1, [T0])
    assert metadata.topic_states[0].partition_states[0].replicas == [1, 2], "clients see R"


def test_a_damaged_state_makes_no_reported_copy_stale() -> None:
    """Its targets are unknown then: every broker that reported a replica counts (promise 20)."""
    world = moving()
    cluster = world.cluster
    cluster.inventories[3] = {(cluster.topic_id("t"), 0): LogEnd(-1, 0, 5)}
    world.tree.apply(world.session, [Set(layout.state("t", 0), b"{")])
    load(cluster, world.nodes())
    assert cluster.moves == {}
    assert list(cluster.partitions_of(3)) == [T0]
    full = requests.leader_and_isr(cluster, SENDER, 3, cluster.partitions_of(3), requests.FULL)
    (state,) = full.topic_states[0].partition_states
    assert (state.partition_index, state.leader, state.leader_epoch) == (0, -1, -1)
    cluster.inventories[3] = {}
    assert list(cluster.partitions_of(3)) == []


def test_a_move_in_a_topic_of_a_thousand_partitions_sends_commands_for_one() -> None:
    world = World(1, 2, 3)
    world.create(TopicToCreate("t", assignment=tuple((x, (1, 2)) for x in range(1000))))
    cluster = world.cluster
    cluster.level = level_of("1.4")
    where = TopicPartition("t", 500)
    state = msgspec.structs.replace(cluster.states[where], target_replicas=[2, 3])
    node = cluster.topics["t"]
    joins = msgspec.structs.replace(node, partitions={**node.partitions, 500: [1, 2, 3]})
    for writes in (
        (put_state(cluster, where, state),),
        (Put(layout.topic("t"), joins), put_state(cluster, where, state)),
    ):
        changes = changes_of(cluster, writes)
        world.commit(writes)
        assert changes.partitions == {where}
        for broker in (1, 2, 3):
            sent = Announcements().commands(cluster, SENDER, broker, changes)
            places = [
                (x.topic_name, y.partition_index)
                for x in sent.topic_states
                for y in x.partition_states
            ]
            assert places == [("t", 500)]
