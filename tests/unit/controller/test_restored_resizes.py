"""Resized topics of a restored store: what the acceptance writes, and what brokers are sent."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.decisions.cluster import InventoryFence, LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, RequestRefusal
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    register,
    why_gone_back,
)
from tidelog.controller.decisions.restoration import JUMP, accept
from tidelog.controller.decisions.restoration_report import report
from tidelog.controller.decisions.restored_counts import OFFSET_JUMP
from tidelog.controller.decisions.sides import Side, Sides
from tidelog.metadata import layout
from tidelog.metadata.records import (
    FormerPartition,
    PartitionNode,
    ResizeKind,
    ResizePlan,
    ResizeStep,
    WentBack,
)
from tidelog.model.levels import level_of
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition
from tidelog.records.control_records import ChangeKind

FENCE, SEAL = ChangeKind.FENCE, ChangeKind.SEAL
_incarnations = count(1)


def registration(broker: int, **fields: Any) -> Registration:
    return Registration(
        broker,
        "",
        UUID(int=next(_incarnations)),
        UUID(int=broker),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        None,
        FormerRegistration.CLEAN,
        **{"inventory": {}, **fields},
    )


def restored(partitions: int = 4) -> World:
    """A store restored from a backup with one topic, on which brokers 1, 2 and 3 registered."""
    world = World()
    world.cluster.level = level_of("1.5")
    for broker in (1, 2, 3):
        world.cluster.inventories[broker] = {}
        world.do(register(world.cluster, registration(broker), 1))
    assignment = tuple((index, (1, 2)) for index in range(partitions))
    world.create(TopicToCreate("t", assignment=assignment))
    world.commit((Put(layout.WENT_BACK, WentBack("why")),))
    return world


def grew(world: World, **fields: Any) -> None:
    """The store knows a growth from 4 to 8 in resize epoch 1."""
    cluster = world.cluster
    history = msgspec.structs.replace(
        cluster.topic_histories["t"],
        **{"initial_partition_count": 4, "resize_epoch": 1, **fields},
    )
    node = msgspec.structs.replace(cluster.topics["t"], initial_partition_count=4)
    writes = [Put(layout.topic_history("t"), history), Put(layout.topic("t"), node)]
    for index in range(4, 8):
        known = cluster.partition_nodes[TopicPartition("t", index)]
        born = msgspec.structs.replace(known, birth_epoch=1, birth_offset=0)
        writes.append(Put(layout.partition("t", index), born))
    world.commit(tuple(writes))


def holds(
    world: World,
    broker: int,
    index: int,
    *fences: tuple[int, int] | tuple[int, int, ChangeKind],
    life: int | None = None,
    birth: tuple[int, int] = (0, 0),
    end: int = 50,
    epoch: int = 7,
) -> None:
    topic_id = world.cluster.topic_id("t")
    world.cluster.held[topic_id] = "t"
    found = tuple(InventoryFence(x[0], x[1], x[2] if len(x) > 2 else FENCE) for x in fences)
    life = index + 1 if life is None else life
    log = LogEnd(life, epoch, end, *birth, found)
    world.cluster.inventories[broker][topic_id, index] = log


def accepted(world: World, *without: int, dropped: tuple[str, ...] = ()) -> dict[str, Any]:
    answer = world.do(accept(world.cluster, without, dropped, world.chance))
    assert isinstance(answer, dict), answer
    return answer


def nodes_of(world: World) -> dict[int, PartitionNode]:
    return {x.partition: node for x, node in sorted(world.cluster.partition_nodes.items())}


def sides_of(world: World) -> dict[int, Side]:
    """What LeaderAndIsr brings to each partition."""
    cluster = world.cluster
    node = cluster.topics["t"]
    sides = Sides("t", node, cluster.topic_histories["t"], cluster.partition_nodes)
    return {index: sides.of(index) for index in node.partitions}


def test_partitions_born_since_the_backup_come_back_with_their_births() -> None:
    world = restored()
    for index in range(4):
        holds(world, 1, index, (1, 8))
    for index in range(4, 8):
        holds(world, 3, index, (1, 8), life=20 + index, birth=(1, 5), end=9)
    answer = accepted(world)
    assert answer["resized"] == [
        {
            "topic": "t",
            "count": 8,
            "resize_epoch": 1,
            "newest_resize_epoch": 1,
            "retired": [],
            "lost": [],
        }
    ]
    cluster = world.cluster
    node, history = cluster.topics["t"], cluster.topic_histories["t"]
    assert (node.initial_partition_count, node.undeleted_partition_count) == (4, 8)
    assert (history.initial_partition_count, history.resize_epoch) == (4, 1 + JUMP)
    born = {
        index: PartitionNode(20 + index, birth_epoch=1, birth_offset=5) for index in range(4, 8)
    }
    assert {x: y for x, y in nodes_of(world).items() if x >= 4} == born
    assert node.partitions[6] == [3]
    assert cluster.states[TopicPartition("t", 6)].leader == 3
    # Every leader begins a leader epoch with this, and appends the fence of the new resize epoch.
    assert set(sides_of(world).values()) == {Side(8, 1 + JUMP)}
    assert all(state.leader_epoch >= 7 + JUMP for state in cluster.states.values())
    sender = requests.Sender(101, "PLAINTEXT")
    commands = requests.leader_and_isr(cluster, sender, 3, [TopicPartition("t", 6)], requests.FULL)
    (topic,) = commands.topic_states
    (state,) = topic.partition_states
    assert (topic.undeleted_partition_count, topic.resize_epoch) == (8, 1 + JUMP)
    assert (state.partition_epoch, state.birth_epoch, state.start_offset) == (26, 1, 5)


def test_an_interrupted_growth_leaves_the_count_and_its_fences_are_passed() -> None:
    world = restored()
    plan = ResizePlan(ResizeKind.GROW, 4, 8, 1, ResizeStep.FENCE)
    history = msgspec.structs.replace(
        world.cluster.topic_histories["t"], resize_epoch=1, resize=plan
    )
    wider = {**world.cluster.topics["t"].partitions, **{x: [1, 2] for x in range(4, 8)}}
    node = msgspec.structs.replace(
        world.cluster.topics["t"], partitions=wider, undeleted_partition_count=8
    )
    world.commit((Put(layout.topic_history("t"), history), Put(layout.topic("t"), node)))
    for index in range(4):
        holds(world, 1, index, *([(1, 8)] if index < 2 else []))
    accepted(world)
    history = world.cluster.topic_histories["t"]
    assert (history.resize, history.resize_epoch) == (None, 1 + JUMP)
    assert world.cluster.topics["t"].undeleted_partition_count == 4
    assert sorted(world.cluster.topics["t"].partitions) == [0, 1, 2, 3]
    assert set(sides_of(world).values()) == {Side(4, 1 + JUMP)}


def test_what_was_retired_since_the_backup_is_retired() -> None:
    world = restored(8)
    grew(world)
    for index in range(4):
        holds(world, 1, index, (1, 8), (2, 4))
    for index in range(4, 8):
        holds(world, 2, index, (1, 8), (2, 4, SEAL), birth=(1, 0))
    accepted(world)
    found = nodes_of(world)
    assert [found[index].retirement_epoch for index in range(8)] == [-1] * 4 + [2] * 4
    assert [found[index].partition_epoch for index in range(8)] == list(range(1, 9))
    sides = sides_of(world)
    assert sides[0] == Side(4, 2 + JUMP) and sides[7] == Side(4, 2)


def test_what_was_removed_since_the_backup_does_not_come_back_and_its_offsets_go_on() -> None:
    world = restored(8)
    grew(world, former={7: FormerPartition(100, 3, 90, 2, 0)})
    for index in range(4):
        holds(world, 1, index, (1, 8), (2, 4))
    accepted(world)
    cluster = world.cluster
    assert sorted(cluster.topics["t"].partitions) == [0, 1, 2, 3]
    assert sorted(nodes_of(world)) == [0, 1, 2, 3]
    assert sorted(where.partition for where in cluster.states) == [0, 1, 2, 3]
    former = cluster.topic_histories["t"].former
    assert sorted(former) == [4, 5, 6, 7]
    assert former[7].end_offset == 100 + OFFSET_JUMP
    assert former[4].end_offset == OFFSET_JUMP
    assert all(one.leader_epoch >= JUMP for one in former.values())
    assert [former[index].partition_epoch for index in range(4, 8)] == [5, 6, 7, 8]


def test_what_the_store_knows_as_removed_stays_so() -> None:
    world = restored()
    removed = FormerPartition(100, 3, 90, 30, 2)
    grew_and_shrank = {"resize_epoch": 2, "former": dict.fromkeys(range(4, 8), removed)}
    history = msgspec.structs.replace(world.cluster.topic_histories["t"], **grew_and_shrank)
    world.commit((Put(layout.topic_history("t"), history),))
    for index in range(4):
        holds(world, 1, index, (1, 8), (2, 4))
    # A broker that was away has not been stopped yet.
    holds(world, 3, 6, (1, 8), (2, 4, SEAL), life=29, birth=(1, 0))
    assert report(world.cluster)["unknown"] == []
    accepted(world)
    assert sorted(world.cluster.topics["t"].partitions) == [0, 1, 2, 3]
    assert world.cluster.topic_histories["t"].former == dict.fromkeys(range(4, 8), removed)


def test_a_partition_regrown_since_the_backup_is_that_of_its_newest_replicas() -> None:
    world = restored(8)
    grew(world)
    for index in range(4):
        holds(world, 1, index, (1, 8), (2, 4), (3, 8))
    for index in range(4, 8):
        holds(world, 3, index, (3, 8), life=40 + index, birth=(3, 100), end=101, epoch=4)
        # The former incarnation has more records, in a later epoch than any: it is stale.
        holds(world, 2, index, (1, 8), (2, 4, SEAL), birth=(1, 0), end=999, epoch=8)
    accepted(world)
    found = nodes_of(world)
    assert found[6] == PartitionNode(46, birth_epoch=3, birth_offset=100)
    state = world.cluster.states[TopicPartition("t", 6)]
    assert (state.leader, state.isr) == (3, [3])
    assert world.cluster.topics["t"].undeleted_partition_count == 8


def test_a_broker_that_is_given_up_takes_a_partition_along() -> None:
    world = restored()
    world.cluster.inventories.pop(3)
    for index in range(4):
        holds(world, 1, index, (1, 8))
    for index in (4, 5, 7):
        holds(world, 2, index, (1, 8), life=20 + index, birth=(1, 0), end=30)
    found = accept(world.cluster, (), (), world.chance).answer
    assert isinstance(found, RequestRefusal), "broker 3 may have it"
    (resized,) = report(world.cluster)["resized"]
    assert (resized["count"], resized["lost"]) == (8, [6])
    answer = accepted(world, 3)
    assert answer["resized"] == [resized]
    node = nodes_of(world)[6]
    assert node.birth_epoch == 1 + JUMP and node.birth_offset == OFFSET_JUMP
    assert node.partition_epoch > 27
    assert world.cluster.topics["t"].undeleted_partition_count == 8


def test_children_of_an_unpublished_growth_are_retired_and_sealed() -> None:
    world = restored()
    for index in range(4):
        holds(world, 1, index, (1, 8))
    for index in (4, 6):
        holds(world, 2, index, (1, 8), life=20 + index, birth=(1, 0), end=1)
    accepted(world)
    found = nodes_of(world)
    assert world.cluster.topics["t"].undeleted_partition_count == 4
    assert [found[index].retirement_epoch for index in (4, 5, 6)] == [1 + JUMP] * 3
    assert sorted(found) == list(range(7))
    assert sides_of(world)[6] == Side(4, 1 + JUMP)


def test_a_topic_that_the_store_does_not_know_comes_back_with_its_counts() -> None:
    world = restored()
    unknown = UUID(int=4711)
    world.cluster.held[unknown] = "u"
    fences = (InventoryFence(1, 8, FENCE), InventoryFence(2, 4, FENCE))
    seal = InventoryFence(2, 4, SEAL)
    for index in range(6):
        kept = fences if index < 4 else (fences[0], seal)
        birth = (0, 0) if index < 2 else (1, 7)
        log = LogEnd(50 + index, 3, 20, *birth, kept)
        world.cluster.inventories[2][unknown, index] = log
    accepted(world)
    node, history = world.cluster.topics["u"], world.cluster.topic_histories["u"]
    assert (node.initial_partition_count, node.undeleted_partition_count) == (2, 4)
    assert len(node.partitions) == 6
    assert history.resize_epoch == 2 + JUMP
    kept_nodes = world.cluster.partition_nodes
    assert kept_nodes[TopicPartition("u", 5)] == PartitionNode(
        55, birth_epoch=1, birth_offset=7, retirement_epoch=2
    )


def test_a_topic_that_was_never_resized_keeps_resize_epoch_0() -> None:
    world = restored()
    for index in range(4):
        holds(world, 1, index)
    assert accepted(world)["resized"] == []
    assert world.cluster.topic_histories["t"].resize_epoch == 0
    assert set(sides_of(world).values()) == {Side(4, 0)}


@pytest.mark.parametrize(
    ("life", "fences", "gone_back"),
    [
        (1, (), False),
        (1, ((1, 8, FENCE),), False),
        (1, ((1, 8, FENCE), (2, 4, FENCE)), True),
        # A partition that this store has not created.
        (9, (), True),
        (-1, (), False),
    ],
)
def test_what_the_store_never_made_shows_that_it_has_gone_back(
    life: int, fences: tuple[tuple[int, int, ChangeKind], ...], gone_back: bool
) -> None:
    world = restored(8)
    grew(world)
    known = tuple(InventoryFence(*each) for each in fences)
    key = (world.cluster.topic_id("t"), 0)
    asked = registration(1, inventory={key: LogEnd(life, 0, 5, 0, 0, known)})
    assert (why_gone_back(world.cluster, asked) is not None) is gone_back
    world.cluster.level = level_of("1.4")
    assert why_gone_back(world.cluster, asked) is None
