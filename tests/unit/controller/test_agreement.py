"""What the nodes of the store say of each other: which one counts as damaged, and for how long."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tests.support.resizing_world import ResizingWorld
from tidelog.controller.decisions.cluster import ClusterState, LogEnd, StorePast
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.external_changes import changed, take_up
from tidelog.controller.decisions.nodes import judge_reports, load
from tidelog.controller.decisions.stops import stops_of
from tidelog.metadata import layout
from tidelog.metadata.records import (
    DeletionNode,
    FormerPartition,
    PartitionNode,
    PartitionState,
    Record,
    UncertainReplicas,
)
from tidelog.metadata.store import Node
from tidelog.model.levels import LATEST, Level, level_of
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)


def made() -> World:
    world = World(1, 2, 3)
    world.create(TopicToCreate("t", assignment=((0, (1, 2)), (1, (2, 3)))))
    return world


def read_with(world: World, **records: Record) -> ClusterState:
    """Load the store with other nodes: "state" and "node" are those of t-0."""
    paths = {
        "topic": layout.topic("t"),
        "state": layout.state(*T0),
        "node": layout.partition(*T0),
        "history": layout.topic_history("t"),
        "deletion": layout.deletion(world.cluster.topic_id("t")),
    }
    nodes = world.nodes()
    for name, record in records.items():
        path = paths[name]
        nodes[path] = Node(layout.encode(record), nodes[path].version if path in nodes else 0)
    again = ClusterState()
    load(again, nodes)
    return again


def test_a_state_whose_members_are_not_assigned_is_damaged_and_no_replica_becomes_stale() -> None:
    world = made()
    state = world.cluster.states[T0]
    for wrong, said in (
        (PartitionState(3, 1, 1, [3]), "its leader is 3, and /brokers/topics/t assigns"),
        (PartitionState(1, 1, 1, [1, 3]), "its ISR is [1, 3]"),
        (PartitionState(-1, 1, 1, [], eligible_replicas=[3]), "its members are [3]"),
    ):
        cluster = read_with(world, state=wrong)
        (damaged,) = cluster.damaged.values()
        assert said in str(damaged)
        assert "cannot be right" in str(damaged)
        assert T0 not in cluster.states
    # A member that was moved away owes a stop until it has left the ISR.
    history = msgspec.structs.replace(world.cluster.topic_histories["t"], pending_stops={0: {3: 1}})
    cluster = read_with(world, state=PartitionState(1, 1, 1, [1, 3]), history=history)
    assert not cluster.damaged
    # The same when the topic's node is the wrong one: broker 1 keeps what it holds.
    topic = msgspec.structs.replace(world.cluster.topics["t"], partitions={0: [3, 2], 1: [2, 3]})
    cluster = read_with(world, topic=topic, state=state)
    assert list(cluster.damaged) == [layout.state(*T0)]


def test_a_contradicted_state_counts_again_when_the_other_node_is_repaired() -> None:
    world = made()
    right = world.cluster.topics["t"]
    wrong = msgspec.structs.replace(right, partitions={0: [3, 2], 1: [2, 3]})
    cluster = read_with(world, topic=wrong)
    path = layout.topic("t")
    found = changed(cluster, {path: Node(layout.encode(right), 7)})
    assert found
    # The controller knew the wrong assignment only: it takes the node for a move, which no tool
    # makes this way, so it is put back. A removal and a new node is what repairs it.
    draft = cluster.draft()
    take_up(draft, {path: None}, world.chance, deletes=True)
    take_up(draft, found, world.chance, deletes=True)
    assert not draft.damaged
    assert draft.states[T0] == world.cluster.states[T0]


@pytest.mark.parametrize("level", [LATEST, level_of("1.4")])
def test_a_wrong_assignment_is_corrected_if_that_makes_no_replica_stale(level: Level) -> None:
    """The wrong one was restored: the operator had to remove the topic's node and create it."""
    world, path = made(), layout.topic("t")
    right, topic_id = world.cluster.topics["t"], world.cluster.topic_id("t")
    wrong = msgspec.structs.replace(right, partitions={0: [3, 2], 1: [2, 3]})
    replica = {(topic_id, 0): LogEnd(1, 0, 5)}
    hosts: dict[int, dict[tuple[UUID, int], LogEnd]] = {1: replica, 2: replica, 3: {}}
    one, both = (StorePast(uncertain=UncertainReplicas({"t": {0: x}})) for x in ([1], [1, 2]))
    eligible = PartitionState(-1, 1, 1, [], eligible_replicas=[1])

    def written(partitions: dict[int, list[int]], **changes: Any) -> tuple[ClusterState, list[str]]:
        state = changes.pop("state", world.cluster.states[T0])
        cluster = read_with(world, topic=wrong, state=state)
        assert list(cluster.damaged) == [layout.state(*T0)]
        cluster.level, cluster.brokers = level, world.cluster.brokers
        cluster.inventories = hosts
        for name, value in changes.items():
            setattr(cluster, name, value)
        node = msgspec.structs.replace(wrong, partitions=partitions)
        found = {path: Node(layout.encode(node), 7)}
        return cluster, take_up(cluster, found, world.chance, deletes=True).answer.errors

    cluster, errors = written(right.partitions)
    assert (cluster.topics["t"], cluster.damaged, errors) == (right, {}, [])
    assert cluster.states[T0].isr == [1, 2]
    # A member that came back without its replica was noted: it leaves the ISR.
    for empty in ({**hosts, 1: {}}, {1: {}, 2: replica, 3: {}}):
        cluster, errors = written(right.partitions, inventories=empty, past=one)
        assert (cluster.topics["t"], cluster.damaged, errors) == (right, {}, [])
    for refused, changes in (
        # What it leaves out has a replica, or may have one.
        (right.partitions, {"inventories": {**hosts, 3: replica}}),
        (right.partitions, {"inventories": {1: replica, 2: replica}}),
        (right.partitions, {"presumed": {3}}),
        # It has lost one: by damage, or with all its disks.
        (right.partitions, {"broken": {(3, T0)}}),
        (right.partitions, {"diskless": {3}}),
        # What is to lead then has none, and was not noted; or no member has one.
        (right.partitions, {"inventories": {**hosts, 1: {}}}),
        (right.partitions, {"inventories": {1: {}, 2: {}, 3: {}}, "past": both}),
        # Nor has the only eligible one.
        (right.partitions, {"state": eligible, "inventories": {**hosts, 1: {}}}),
        # What a member has is not known yet.
        (right.partitions, {"presumed": {1}}),
        # The state agrees with neither, or it does not contradict what is known.
        ({0: [3, 1], 1: [2, 3]}, {}),
        ({0: [3, 2], 1: [2, 1]}, {}),
    ):
        cluster, errors = written(refused, **dict(changes))
        assert cluster.topics["t"] == wrong
        assert list(cluster.damaged) == [layout.state(*T0)]
        assert "the former ones are restored" in errors[0]
        why = [x for x in errors if "is not corrected" in x]
        assert len(why) == bool(changes) and not any("\n" in x for x in why)


@pytest.mark.parametrize("written_id", [None, layout.id_text(UUID(int=999))])
def test_a_correction_without_the_topics_id_makes_no_replica_stale(written_id: str | None) -> None:
    """No broker had a replica of that id: what the correction left out was always without one."""
    world, path = made(), layout.topic("t")
    right, topic_id = world.cluster.topics["t"], world.cluster.topic_id("t")
    known = msgspec.structs.replace(right, partitions={0: [3, 2], 1: [2, 3]})
    node = msgspec.structs.replace(right, topic_id=written_id)
    for has_replica in (True, False):
        cluster = read_with(world, topic=known)
        cluster.brokers = world.cluster.brokers
        replica = {(topic_id, 0): LogEnd(1, 0, 5)}
        cluster.inventories = {1: replica, 2: replica, 3: replica if has_replica else {}}
        take_up(cluster, {path: Node(layout.encode(node), 7)}, world.chance, deletes=True)
        assert cluster.topics["t"] == (known if has_replica else right)
        assert list(cluster.damaged) == ([layout.state(*T0)] if has_replica else [])


def test_a_state_that_was_written_by_hand_corrects_no_assignment() -> None:
    """All replicas became stale: the reports of brokers were older than the topic."""
    world, path = made(), layout.topic("t")
    cluster, right = world.cluster, world.cluster.topics["t"]
    cluster.inventories = {1: {}, 2: {}, 3: {}}
    state = {layout.state(*T0): Node(layout.encode(PartitionState(3, 5, 1, [3])), 1)}
    take_up(cluster, state, world.chance, deletes=True)
    wrong = msgspec.structs.replace(right, partitions={0: [3], 1: [2, 3]})
    node = {path: Node(layout.encode(wrong), 1)}
    errors = take_up(cluster, node, world.chance, deletes=True).answer.errors
    (line,) = [x for x in errors if "is not corrected" in x]
    assert f"{layout.state(*T0)} is the wrong node, put a copy of it back" in line
    assert cluster.topics["t"] == right and list(cluster.damaged) == [layout.state(*T0)]


@pytest.mark.parametrize("between", ["nothing", "a registration", "a repair"])
@pytest.mark.parametrize("what", ["state", "topic"])
def test_a_controller_knows_the_newest_state_beside_one_that_other_nodes_contradict(
    what: str, between: str
) -> None:
    """It forgot it: an older copy was believed, and a replica led that had left the ISR."""
    world, path = made(), layout.state(*T0)
    cluster, right = world.cluster, world.cluster.topics["t"]
    topic_id = cluster.topic_id("t")
    newest = cluster.states[T0] = PartitionState(2, 10, 1, [2])
    cluster.inventories = {x: {(topic_id, 0): LogEnd(1, 8, 50)} for x in (1, 2)}

    def put(path: str, record: Record, version: int) -> list[str]:
        nodes = {path: Node(layout.encode(record), version)}
        return take_up(cluster, nodes, world.chance, deletes=True).answer.errors

    if what == "state":
        put(path, PartitionState(3, 11, 1, [3]), 1)
    else:
        # Removed and created: what is written to a known node is restored.
        take_up(cluster, {layout.topic("t"): None}, world.chance, deletes=True)
        put(layout.topic("t"), msgspec.structs.replace(right, partitions={0: [1], 1: [2, 3]}), 1)
    assert list(cluster.damaged) == [path] and cluster.damaged[path].former == newest
    if between == "a registration":
        judge_reports(cluster, {(UUID(int=4711), 0): LogEnd(1, 0, 5)}, {UUID(int=4711): "t"})
    elif between == "a repair":
        put(layout.partition("t", 1), cluster.partition_nodes[TopicPartition("t", 1)], 9)
    assert list(cluster.damaged) == [path] and cluster.damaged[path].former == newest
    errors = put(path, PartitionState(1, 9, 1, [1, 2]), 2)
    assert any("the newest one is restored, leader epoch 10 and ISR [2]" in x for x in errors)
    if what == "topic":
        take_up(cluster, {layout.topic("t"): None}, world.chance, deletes=True)
        put(layout.topic("t"), right, 2)
    now = cluster.states[T0]
    assert (now.isr, cluster.damaged) == ([2], {})
    assert now.leader_epoch >= 10


def test_the_deletion_of_a_living_topic_is_damaged_and_deletes_nothing() -> None:
    world = made()
    cluster = read_with(world, deletion=DeletionNode("gone", {0: [1, 2]}))
    (damaged,) = cluster.damaged.values()
    assert "the topic t has this id and is not being deleted" in str(damaged)
    assert not stops_of(cluster, 1)
    # A large topic leaves the store in several commits, while it is marked.
    nodes = world.nodes()
    nodes[layout.deletion_mark("t")] = Node(b"", 0)
    path = layout.deletion(world.cluster.topic_id("t"))
    nodes[path] = Node(layout.encode(DeletionNode("t", {0: [1, 2]})), 0)
    load(again := ClusterState(), nodes)
    assert not again.damaged


def test_no_epoch_is_given_twice_by_a_counter_that_went_back() -> None:
    world = made()
    assert world.cluster.counters[layout.PARTITION_EPOCH] == 2
    cluster = read_with(world, node=PartitionNode(40))
    assert cluster.counters[layout.PARTITION_EPOCH] == 40
    assert not cluster.damaged
    cluster = read_with(world, node=PartitionNode(2_000_000))
    assert cluster.counters[layout.PARTITION_EPOCH] == 2
    assert "far above /partition_epoch" in str(cluster.damaged[layout.partition(*T0)])
    # It is judged so again, whatever is registered or written meanwhile.
    assert judge_reports(cluster, {}, {}) == []
    assert "far above /partition_epoch" in str(cluster.damaged[layout.partition(*T0)])


def test_no_epoch_of_a_removed_incarnation_is_given_twice() -> None:
    """A partition that was born again got the epoch of the replicas that it had to replace."""
    world = made()
    assert world.cluster.counters[layout.PARTITION_EPOCH] == 2
    history = msgspec.structs.replace(world.cluster.topic_histories["t"], resize_epoch=2)
    path = layout.topic_history("t")
    for removed in (
        {"former": {2: FormerPartition(9, 1, 9, 40, 2)}},
        {"pending_stops": {2: {3: 1}}, "stop_partition_epochs": {2: {3: 40}}},
    ):
        cluster = read_with(world, history=msgspec.structs.replace(history, **removed))
        assert not cluster.damaged
        assert cluster.counters[layout.PARTITION_EPOCH] == 40
    # The same when another program writes it while a controller is active.
    cluster = read_with(world)
    right = msgspec.structs.replace(history, former={2: FormerPartition(9, 1, 9, 40, 2)})
    take_up(cluster, {path: Node(layout.encode(right), 7)}, world.chance, deletes=True)
    assert cluster.counters[layout.PARTITION_EPOCH] == 40
    # By what is far above it no sound node of a partition counts as removed.
    far = msgspec.structs.replace(history, former={1: FormerPartition(9, 1, 9, 2_000_000, 2)})
    cluster = read_with(world, history=far)
    assert cluster.counters[layout.PARTITION_EPOCH] == 2
    assert list(cluster.damaged) == [path]
    assert "its epoch 2000000 is far above /partition_epoch, 2" in str(cluster.damaged[path])


def test_a_repaired_state_gives_an_active_controller_no_epoch_that_it_does_not_own() -> None:
    """It sent the epoch of a state that was written by hand, and no broker took its requests."""
    world, path = made(), layout.state(*T0)
    cluster = read_with(world)
    take_up(cluster, {path: Node(b"{", 7)}, world.chance, deletes=True)
    assert path in cluster.damaged
    own = cluster.controller_epoch
    by_hand = PartitionState(1, 9, own + 43, [1])
    nodes = {path: Node(layout.encode(by_hand), 8)}
    take_up(cluster, nodes, world.chance, deletes=True)
    assert (cluster.states[T0], cluster.damaged) == (by_hand, {})
    assert cluster.controller_epoch == own
    # The next controller begins above it.
    assert read_with(world, state=by_hand).controller_epoch == own + 43
    far = PartitionState(1, 10, own + 2_000_000, [1])
    take_up(cluster, {path: Node(layout.encode(far), 9)}, world.chance, deletes=True)
    assert "far above /controller_epoch" in str(cluster.damaged[path])
    assert cluster.controller_epoch == own
    # The partition epoch is no such name: it goes on above what is written by hand.
    node = {layout.partition(*T0): Node(layout.encode(PartitionNode(40)), 9)}
    take_up(cluster, node, world.chance, deletes=True)
    assert cluster.counters[layout.PARTITION_EPOCH] == 40


def test_a_count_that_is_not_that_of_the_partitions_is_counted_again() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.settle()
    right = world.cluster.topics["t"]
    assert right.undeleted_partition_count == 4
    for wrong in (0, 2, 3, 5, 2**40):
        again = ClusterState(level=world.cluster.level)
        nodes = world.nodes()
        node = msgspec.structs.replace(right, undeleted_partition_count=wrong)
        nodes[layout.topic("t")] = Node(layout.encode(node), 9)
        load(again, nodes)
        assert again.topics["t"].undeleted_partition_count is None
        # No request for a shrink: the look at each node after a start finds it as it was loaded.
        assert not changed(again, {layout.topic("t"): nodes[layout.topic("t")]})
        (put,) = complete(again, world.chance).writes
        assert put.record == right  # type: ignore[union-attr]


def test_a_stop_names_no_topic_whose_id_is_unknown() -> None:
    world = made()
    history = msgspec.structs.replace(world.cluster.topic_histories["t"], pending_stops={0: {3: 0}})
    topic = msgspec.structs.replace(world.cluster.topics["t"], topic_id=None)
    assert [x.topic_id for x in stops_of(read_with(world, history=history), 3)] == [UUID(int=1)]
    assert not stops_of(read_with(world, history=history, topic=topic), 3)


def test_a_topic_of_kafka_that_lacks_a_state_was_not_resized() -> None:
    """A controller that stopped between the nodes of its partitions and its record left it so: the
    record never existed, and could not be put back."""
    world = made()
    topic = msgspec.structs.replace(
        world.cluster.topics["t"],
        topic_id=None,
        initial_partition_count=None,
        undeleted_partition_count=None,
    )
    nodes = world.nodes()
    for path in (layout.topic_history("t"), layout.partition("t", 1), layout.state("t", 1)):
        del nodes[path]
    nodes[layout.topic("t")] = Node(layout.encode(topic), 0)
    again = ClusterState()
    load(again, nodes)
    assert not again.damaged
    again.brokers = world.cluster.brokers
    put = {x.path for x in complete(again, world.chance).writes}
    assert {layout.topic_history("t"), layout.topic("t"), layout.state("t", 1)} <= put


def test_a_missing_node_of_a_topic_that_was_resized_is_named_and_not_made_again() -> None:
    """Its birth would be forgotten, and with it the order of keys that came from its parent."""
    world = ResizingWorld(2)
    world.ask(4)
    world.settle()
    path, nodes = layout.partition("t", 3), world.nodes()
    lost = nodes.pop(path)
    again = ClusterState(level=world.cluster.level)
    load(again, nodes)
    assert "it is missing, and t was resized" in str(again.damaged[path])
    assert not complete(again, world.chance).writes
    # Put back.
    found = changed(again, {path: lost})
    draft = again.draft()
    take_up(draft, found, world.chance, deletes=True)
    assert not draft.damaged
    assert draft.partition_nodes == world.cluster.partition_nodes
