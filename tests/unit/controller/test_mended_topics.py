"""Nodes of a topic that were torn and put right while a controller runs, and what brokers report.

What a controller knows is newer than the reports of brokers: these are as old as registrations.
"""

from __future__ import annotations

from itertools import count
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.decisions.cluster import ClusterState, LoadedStore, LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Remove
from tidelog.controller.decisions.deletion import (
    PendingDelete,
    confirm,
    delete_topics,
    note_confirmed,
)
from tidelog.controller.decisions.external_changes import Taken, changed, take_up
from tidelog.controller.decisions.nodes import judge_reports, load, note_rewritten
from tidelog.controller.decisions.registration import Address, Registration, expire, register
from tidelog.controller.decisions.settlement import elect_awaited
from tidelog.controller.decisions.soft_state import note_session, presume_all, take_report
from tidelog.controller.decisions.stops import stops_of
from tidelog.controller.decisions.uncertain_replicas import settle_noted
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionNode, PartitionState, Record
from tidelog.metadata.store import Create, Delete, Operation, Set
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TOPIC, STATE, NODE = layout.topic("t"), layout.state(*T0), layout.partition(*T0)
END = LogEnd(1, 0, 5)
_incarnations = count(100)


def made(*replicas: int) -> World:
    """Topic t with one partition; the brokers registered before it was created."""
    world = World(1, 2, 3)
    world.cluster.inventories = {1: {}, 2: {}, 3: {}}
    world.create(TopicToCreate("t", assignment=((0, replicas or (1, 2)),)))
    return world


def reported(world: World) -> UUID:
    """The brokers have registered with the replicas of t, and a controller has loaded the store."""
    cluster = world.cluster
    topic_id = cluster.topic_id("t")
    cluster.inventories = {1: {(topic_id, 0): END}, 2: {(topic_id, 0): END}, 3: {}}
    cluster.held[topic_id] = "t"
    newest = cluster.counters[layout.PARTITION_EPOCH]
    cluster.loaded = LoadedStore(cluster.revision, newest)
    return topic_id


def deleted(world: World) -> None:
    """The topic t is deleted, and both brokers say that they did."""
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    for broker in (1, 2):
        stops = stops_of(world.cluster, broker)
        note_confirmed(world.cluster, broker, stops)
        world.do(confirm(world.cluster, broker, stops))
    assert not world.cluster.deletions


def assigned(world: World, *replicas: int) -> bytes:
    """The node of t with other replicas."""
    return layout.encode(
        msgspec.structs.replace(world.cluster.topics["t"], partitions={0: list(replicas)})
    )


def comes(world: World, broker: int, *, is_empty: bool) -> None:
    """A new process of a broker registers, with its replica of t-0 or without one."""
    cluster = world.cluster
    topic_id = UUID(int=1)
    asked = Registration(
        *(broker, "", UUID(int=next(_incarnations)), UUID(int=broker)),
        (Address("PLAINTEXT", f"h{broker}", 1, "PLAINTEXT"),),
        *(None, FormerRegistration.CLEAN, {} if is_empty else {(topic_id, 0): END}),
        held={topic_id: "t"},
    )
    take_report(cluster, asked)
    world.commit_only(register(cluster, asked, 1).writes)
    note_session(cluster, broker)
    world.commit_only(elect_awaited(cluster, broker).writes)


def outside(world: World, *operations: Operation) -> Taken:
    """Another program writes; the controller, which may know more than the store, acts."""
    assert world.tree.apply(world.session, operations) is None
    nodes = world.nodes()
    found = changed(world.cluster, {x.path: nodes.get(x.path) for x in operations})
    decision = take_up(world.cluster, found, world.chance, deletes=True)
    world.commit_only(decision.writes)
    return decision.answer


def begun_again(world: World, *operations: Operation) -> ClusterState:
    """What another program writes while no controller runs, and the next controller loads."""
    assert world.tree.apply(world.session, operations) is None
    cluster = world.cluster = ClusterState()
    load(cluster, world.nodes())
    presume_all(cluster)
    world.commit_only(settle_noted(cluster).writes)
    return cluster


# What was deleted ---------------------------------------------------------------------------------


def test_a_deleted_replica_is_no_proof_against_a_new_topic_of_the_name() -> None:
    """The new topic was damaged by the repair of a node, and elected no leader."""
    world = made()
    former = reported(world)
    deleted(world)
    world.create(TopicToCreate("t", assignment=((0, (1, 2)),)))
    cluster = world.cluster
    assert cluster.topic_id("t") != former
    whole = world.nodes()[NODE].data
    outside(world, Set(NODE, b"torn"))
    outside(world, Set(NODE, whole))
    assert cluster.damaged == {}
    # The node of the broker is not in the store of these tests.
    world.commit_only(expire(cluster, [1]).writes[:-1])
    assert cluster.states[T0].leader == 2


def test_a_stop_that_has_left_its_replica_forgets_none() -> None:
    """Its broker was assigned the partition again, and answered that the stop is an older one."""
    world = made()
    topic_id = reported(world)
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    (stop,) = stops_of(world.cluster, 1)
    note_confirmed(world.cluster, 1, [stop._replace(delete=False)])
    assert world.cluster.inventories[1] == {(topic_id, 0): END}
    # Nor does one of another incarnation.
    note_confirmed(world.cluster, 1, [stop._replace(partition_epoch=2)])
    assert world.cluster.inventories[1] == {(topic_id, 0): END}
    note_confirmed(world.cluster, 1, [stop._replace(partition_epoch=1)])
    assert world.cluster.inventories[1] == {}


def test_a_topic_that_the_controller_creates_began_here_whatever_was_written_before() -> None:
    """A tool had removed the nodes of a former one: the new topic counted as written by hand."""
    world = made()
    reported(world)
    paths = [STATE, NODE, layout.partitions("t"), TOPIC, layout.topic_history("t")]
    outside(world, *(Delete(path) for path in paths))
    assert world.cluster.loaded.rewritten == {T0}
    world.create(TopicToCreate("t", assignment=((0, (1, 2)),)))
    outside(world, Create(layout.topic_configs("t"), b'{"version":1,"config":{}}'))
    assert world.cluster.damaged == {}


def test_what_another_program_wrote_ends_with_the_partition_or_the_topic() -> None:
    world = made()
    reported(world)
    cluster = world.cluster
    for path in (NODE, STATE, TOPIC):
        whole = world.nodes()[path].data
        outside(world, Set(path, b"torn"))
        outside(world, Set(path, whole))
    note_rewritten(cluster, [layout.partition(*T1)])
    assert cluster.loaded.rewritten == {T0, T1}
    # The controller's own writes to a partition that is there make none.
    retired: Record = PartitionNode(1, retirement_epoch=4)
    world.commit_only((Put(NODE, retired), Put(STATE, cluster.states[T0]), Remove(STATE)))
    world.commit_only((Put(TOPIC, cluster.topics["t"]),))
    assert cluster.loaded.rewritten == {T0, T1}
    world.commit_only((Remove(NODE),))
    assert cluster.loaded.rewritten == {T1}
    cluster.loaded = cluster.loaded._replace(rewritten=frozenset({T1, U0}))
    world.commit_only((Remove(layout.partitions("t")), Remove(TOPIC)))
    assert cluster.loaded.rewritten == {U0}


# What the controller counted ----------------------------------------------------------------------


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_known_state_corrects_an_assignment_that_is_newer_than_the_reports(
    is_empty: bool,
) -> None:
    """The correction was refused: the brokers had registered before the topic was created, and
    "broker 1 has no replica" was said of one that has it."""
    world = made()
    cluster, right = world.cluster, world.nodes()[TOPIC].data
    newest, wrong = cluster.states[T0], assigned(world, 3, 2)
    outside(world, Set(TOPIC, b"torn"))
    outside(world, Set(TOPIC, wrong))
    assert list(cluster.damaged) == [STATE]
    if is_empty:
        # It is noted, and leaves the ISR.
        comes(world, 1, is_empty=True)
    taken = outside(world, Set(TOPIC, right))
    assert (taken.errors, cluster.damaged) == ([], {})
    assert cluster.topics["t"].partitions == {0: [1, 2]}
    now = cluster.states[T0]
    assert now.isr == ([2] if is_empty else newest.isr)
    assert now.leader == now.isr[0] and now.leader_epoch > newest.leader_epoch


@pytest.mark.parametrize("first", ["state", "topic"])
def test_a_state_written_by_hand_is_believed_by_no_assignment_that_was_written_after_it(
    first: str,
) -> None:
    """It was taken up without a line once the topic's node had been torn: all replicas became
    stale."""
    world = made()
    cluster, right = world.cluster, world.nodes()[TOPIC].data
    reported(world)
    newest, wrong = cluster.states[T0], assigned(world, 3)
    by_hand = [Set(STATE, layout.encode(PartitionState(3, 5, 1, [3]))), Set(TOPIC, b"torn")]
    for operation in by_hand if first == "state" else reversed(by_hand):
        outside(world, operation)
    assert cluster.damaged.keys() == {STATE, TOPIC}
    assert f"{TOPIC} cannot be read" in str(cluster.damaged[STATE])
    (line,) = outside(world, Set(TOPIC, wrong)).errors
    assert f"leader epoch 0 and ISR {newest.isr}: put a copy of that state back first" in line
    assert "\n" not in line
    assert list(cluster.damaged) == [STATE] and cluster.damaged[STATE].former == newest
    assert set(cluster.hosts(T0)) == {1, 2, 3}
    # As the line says.
    outside(world, Set(STATE, layout.encode(newest)))
    outside(world, Set(TOPIC, right))
    assert (cluster.damaged, cluster.topics["t"].partitions) == ({}, {0: [1, 2]})
    assert cluster.states[T0].isr == newest.isr


def test_a_state_written_beside_a_torn_topic_counts_where_the_known_one_agrees_too() -> None:
    world = made()
    cluster, right = world.cluster, world.nodes()[TOPIC].data
    outside(world, Set(TOPIC, b"torn"))
    outside(world, Set(STATE, layout.encode(PartitionState(2, 5, 1, [2]))))
    assert cluster.damaged.keys() == {STATE, TOPIC}
    outside(world, Set(TOPIC, right))
    assert (cluster.damaged, cluster.states[T0].isr) == ({}, [2])


def test_the_damage_of_a_state_ends_with_all_nodes_of_its_topic() -> None:
    world = made()
    cluster = world.cluster
    outside(world, Set(STATE, layout.encode(PartitionState(3, 5, 1, [3]))))
    assert list(cluster.damaged) == [STATE]
    paths = [STATE, NODE, layout.partitions("t"), TOPIC, layout.topic_history("t")]
    outside(world, *(Delete(path) for path in paths))
    assert (cluster.damaged, cluster.topics, cluster.states) == ({}, {}, {})


def test_a_state_that_is_taken_up_is_no_proof_of_itself() -> None:
    """A state that cannot be right was restored in the place of the one that is."""
    world = made()
    whole = world.nodes()[STATE].data
    cluster = begun_again(world, Set(STATE, b"torn"))
    outside(world, Set(STATE, layout.encode(PartitionState(3, 11, 1, [3]))))
    assert cluster.damaged[STATE].former is None
    assert outside(world, Set(STATE, whole)).errors == []
    assert (cluster.damaged, cluster.states[T0].isr) == ({}, [1, 2])


@pytest.mark.parametrize("which", ["topic", "state"])
def test_a_replica_that_is_younger_than_the_reports_becomes_stale_by_no_damage(which: str) -> None:
    """A channel that broke began again with a FULL that left it out: its broker deleted it."""
    world = made()
    cluster = world.cluster
    wrong = assigned(world, 2)
    moving = msgspec.structs.replace(cluster.states[T0], isr=[1, 3], target_replicas=[1, 3])
    world.commit_only((Put(STATE, moving),))
    if which == "topic":
        outside(world, Set(TOPIC, b"torn"))
        outside(world, Set(TOPIC, wrong))
    else:
        outside(world, Set(STATE, b"torn"))
    assert list(cluster.damaged) == [STATE]
    for broker in (1, 2, 3):
        full = requests.leader_and_isr(
            *(cluster, requests.Sender(1, "PLAINTEXT"), broker),
            *(cluster.partitions_of(broker), requests.FULL),
        )
        (topic,) = full.topic_states
        (sent,) = topic.partition_states
        assert (sent.partition_index, sent.leader, sent.leader_epoch) == (0, -1, -1)
    # Of a broker that is not here a deletion does not wait for a replica.
    del cluster.inventories[3]
    assert 3 not in cluster.hosts(T0)


def empty_third(world: World) -> ClusterState:
    """All brokers have registered, the third one without a replica."""
    for broker in (1, 2, 3):
        comes(world, broker, is_empty=broker == 3)
    return world.cluster


@pytest.mark.parametrize("beside", ["a start", "a later damage"])
def test_a_state_that_was_read_beside_a_torn_topic_is_no_known_one(beside: str) -> None:
    """It counted as known, though no assignment had ever agreed with it: a member without a replica
    led, and the right state was replaced by it."""
    world = made()
    state, topic = world.nodes()[STATE].data, world.nodes()[TOPIC].data
    wrong = Set(STATE, layout.encode(PartitionState(3, 11, 1, [3])))
    if beside == "a start":
        begun_again(world, Set(TOPIC, b"torn"), wrong)
        cluster = empty_third(world)
    else:
        begun_again(world, Set(STATE, b"torn"))
        cluster = empty_third(world)
        outside(world, Set(TOPIC, b"torn"))
        outside(world, wrong)
    assert list(cluster.damaged) == [TOPIC]
    outside(world, Set(TOPIC, topic))
    assert list(cluster.damaged) == [STATE] and cluster.damaged[STATE].former is None
    errors = outside(world, Set(TOPIC, assigned(world, 1, 2, 3))).errors
    assert any("none of [3]" in x and "has a replica" in x for x in errors)
    assert cluster.topics["t"].partitions == {0: [1, 2]} and list(cluster.damaged) == [STATE]
    assert outside(world, Set(STATE, state)).errors == []
    assert (cluster.damaged, cluster.states[T0].isr) == ({}, [1, 2])


def test_a_newer_state_is_taken_up_though_an_old_one_stood_beside_a_torn_topic() -> None:
    """It stayed damaged: the copy that no assignment agreed with counted as the newest one."""
    world = made()
    topic = world.nodes()[TOPIC].data
    old = layout.encode(PartitionState(3, 0, 1, [3]))
    cluster = begun_again(world, Set(TOPIC, b"torn"), Set(STATE, old))
    outside(world, Set(STATE, layout.encode(PartitionState(2, 5, 1, [2]))))
    outside(world, Set(TOPIC, topic))
    assert (cluster.damaged, cluster.states[T0].isr) == ({}, [2])


def test_a_state_stays_known_where_a_report_has_shown_its_topic_as_wrong() -> None:
    world = made()
    cluster, other = world.cluster, UUID(int=4711)
    newest, wrong = cluster.states[T0], assigned(world, 3)
    cluster.inventories, cluster.held = {1: {(other, 0): END}}, {other: "t"}
    assert judge_reports(cluster, {(other, 0): END}, {other: "t"})
    assert list(cluster.damaged) == [TOPIC]
    cluster.inventories = {}
    outside(world, Set(TOPIC, wrong))
    assert list(cluster.damaged) == [STATE] and cluster.damaged[STATE].former == newest


# Members that came back empty ---------------------------------------------------------------------


def test_an_empty_member_is_noted_where_neither_its_state_nor_its_topic_is_right() -> None:
    """It led once both were repaired: no assignment named it, and no state was known."""
    world = made()
    for broker in (1, 2, 3):
        comes(world, broker, is_empty=broker == 3)
    topic, state = world.nodes()[TOPIC].data, world.nodes()[STATE].data
    cluster = begun_again(world, Set(STATE, b"torn"), Set(TOPIC, assigned(world, 3)))
    assert list(cluster.damaged) == [STATE]
    comes(world, 2, is_empty=True)
    assert cluster.past.uncertain.topics == {"t": {0: [2]}}
    cluster = begun_again(world, Set(STATE, state), Set(TOPIC, topic))
    assert not cluster.damaged and cluster.states[T0].isr == [1]
    world.commit_only(expire(cluster, [1]).writes)
    assert cluster.states[T0].leader == -1


def test_where_all_disks_are_lost_both_nodes_are_put_right_while_no_controller_runs() -> None:
    """As the line says that refuses the correction; it named no way out."""
    world = made(1)
    for broker in (1, 2, 3):
        comes(world, broker, is_empty=broker != 1)
    right = world.nodes()[TOPIC].data
    cluster = begun_again(world, Set(TOPIC, assigned(world, 3)))
    for broker in (1, 2, 3):
        comes(world, broker, is_empty=True)
    assert cluster.past.uncertain.topics == {"t": {0: [1, 3]}}
    (line,) = [x for x in outside(world, Set(TOPIC, right)).errors if "not corrected" in x]
    assert "If their disks are lost, put both nodes right while no controller runs" in line
    cluster = begun_again(world, Set(TOPIC, right))
    comes(world, 1, is_empty=True)
    now = cluster.states[T0]
    assert (now.leader, now.isr, now.is_unclean_leader) == (1, [1], True)
    assert layout.UNCERTAIN_REPLICAS not in world.nodes()
