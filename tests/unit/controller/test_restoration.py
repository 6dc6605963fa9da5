"""A store that went back in time: how it is noticed, what accepting it does (promises 14, 20)."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions import losses, soft_state
from tidelog.controller.decisions.cluster import ClusterState, LoadedStore, LogEnd
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Decision, Put, Remove, RequestRefusal
from tidelog.controller.decisions.deletion import take_up
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.journal import MANY, parts
from tidelog.controller.decisions.new_partitions import MAX_PARTITIONS
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.producer_ids import next_block
from tidelog.controller.decisions.registration import (
    Address,
    Registration,
    register,
    why_gone_back,
)
from tidelog.controller.decisions.restoration import JUMP, accept
from tidelog.controller.decisions.restoration_report import report
from tidelog.controller.decisions.settlement import elect_put_off, put_state, settle_all
from tidelog.controller.decisions.uncertain_replicas import settle_noted
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigNode,
    DeletionMark,
    DeletionNode,
    PartitionState,
    ProducerIdBlock,
    UncertainReplicas,
    WentBack,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.registration import FormerRegistration
from tidelog.model.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_incarnations = count(1)


def request(broker: int, seen: tuple[int, int] = (-1, -1)) -> Registration:
    return Registration(
        broker,
        "",
        UUID(int=next(_incarnations)),
        UUID(int=broker),
        (Address("PLAINTEXT", "h", 1, "PLAINTEXT"),),
        None,
        FormerRegistration.CLEAN,
        {},
        seen=seen,
    )


def restored() -> World:
    """A store restored from a backup, on which brokers 1, 2 and 3 have registered."""
    world = World()
    for broker in (1, 2, 3):
        world.cluster.inventories[broker] = {}
        world.do(register(world.cluster, request(broker), 1))
    world.create(TopicToCreate("t", 2, 2))
    world.commit(
        (
            put_state(world.cluster, T0, PartitionState(1, 5, 1, [1, 2])),
            put_state(world.cluster, T1, PartitionState(2, 3, 1, [2, 3])),
            Put(layout.WENT_BACK, WentBack("why")),
        )
    )
    return world


def holds(world: World, broker: int, partition: int, epoch: int, end: int) -> None:
    topic_id = world.cluster.topic_id("t")
    world.cluster.held[topic_id] = "t"
    world.cluster.inventories[broker][topic_id, partition] = LogEnd(1, epoch, end)


@pytest.mark.parametrize(
    ("seen", "gone_back"),
    [
        ((-1, -1), False),
        ((7, 100), False),
        ((7, 101), True),
        ((8, 50), True),
        # Of an earlier epoch nothing after what this controller loaded can have been seen.
        ((6, 90), False),
        ((6, 91), True),
    ],
)
def test_a_broker_that_has_seen_more_shows_it(seen: tuple[int, int], gone_back: bool) -> None:
    cluster = ClusterState()
    cluster.counters = {layout.CONTROLLER_EPOCH: 7, layout.REVISION: 100}
    cluster.loaded = LoadedStore(90)
    assert (why_gone_back(cluster, request(1, seen)) is not None) is gone_back


def test_records_of_a_later_leader_epoch_show_it_too() -> None:
    world = restored()
    cluster = world.cluster
    topic_id = cluster.topic_id("t")
    for epoch, partition_epoch, gone_back in ((5, 1, False), (6, 1, True), (6, 2, False)):
        inventory = {(topic_id, 0): LogEnd(partition_epoch, epoch, 1)}
        asked = replace(request(1), inventory=inventory)
        assert (why_gone_back(cluster, asked) is not None) is gone_back


def test_it_stays_known_over_restarts_and_no_full_is_sent() -> None:
    world = restored()
    loaded = ClusterState()
    load(loaded, world.nodes())
    assert loaded.went_back == "why"
    assert requests.why_no_full(loaded) == "why"


def accepted(world: World, *without: int, dropped: tuple[str, ...] = ()) -> dict[str, Any]:
    answer = world.do(accept(world.cluster, without, dropped, world.chance))
    assert isinstance(answer, dict), answer
    return answer


def test_what_the_record_has_no_room_for_is_elected_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = restored()
    cluster = world.cluster
    for partition in (0, 1):
        for broker, end in ((2, 10), (3, 20)):
            holds(world, broker, partition, 5, end)
    monkeypatch.setattr(losses, "KEPT_BYTES", 450)
    accepted(world)
    first, second = cluster.states[T0], cluster.states[T1]
    assert (first.leader, first.is_unclean_leader) == (3, True)
    assert (second.leader, second.isr, second.unclean_members) == (-1, [3], [2, 3])
    assert set(cluster.topic_histories["t"].unclean) == {0}
    monkeypatch.undo()
    world.do(elect_put_off(cluster, {"t"}))
    second = cluster.states[T1]
    assert (second.leader, second.isr, second.is_unclean_leader) == (3, [3], True)
    assert second.leader_epoch == 5 + JUMP + 1
    assert set(cluster.topic_histories["t"].unclean) == {0, 1}


def test_the_newest_replica_leads_flagged_and_everything_jumps() -> None:
    world = restored()
    cluster = world.cluster
    refused = next_block(cluster, 1).answer
    assert isinstance(refused, RequestRefusal), "it may have been handed out already"
    cluster.producer_ids = ProducerIdBlock(1, "0", "999")
    holds(world, 1, 0, 5, 100)
    holds(world, 2, 0, 9, 80)
    holds(world, 2, 1, 3, 10)
    holds(world, 3, 1, 3, 20)
    cluster.seen = {1: (40, 5000), 2: (41, 4000)}
    before = {broker: node.broker_epoch for broker, node in cluster.brokers.items()}
    accepted(world)
    one, two = cluster.states[T0], cluster.states[T1]
    assert (one.leader, one.isr, one.leader_epoch, one.is_unclean_leader) == (
        2,
        [2],
        9 + JUMP,
        True,
    )
    assert (two.leader, two.isr, two.leader_epoch) == (3, [3], 3 + JUMP)
    assert {index: debt.leader for index, debt in cluster.topic_histories["t"].unclean.items()} == {
        0: 2,
        1: 3,
    }
    assert cluster.controller_epoch == 41 + JUMP
    assert cluster.revision == 5000 + JUMP
    assert cluster.counters[layout.PARTITION_EPOCH] > JUMP
    assert all(x.broker_epoch > before[b] + JUMP for b, x in cluster.brokers.items())
    assert cluster.went_back is None
    block = next_block(cluster, 1).answer
    assert not isinstance(block, RequestRefusal)
    assert block.first > 1_000_000_000
    again = accept(cluster, (), (), world.chance).answer
    assert isinstance(again, RequestRefusal)
    assert again.error is ErrorCode.INVALID_REQUEST


def test_an_acceptance_is_one_line_of_the_audit_log() -> None:
    world = restored()
    for partition in (0, 1):
        holds(world, 2, partition, 5, 10)
    decision = accept(world.cluster, (), (), world.chance)
    (line,) = [x for x in audit_lines(world.cluster, decision.writes) if x.level > logging.INFO]
    assert "leads each of 2 partitions" in str(line) and "partitions of t 0-1;" in str(line)


def test_a_second_acceptance_is_above_the_leader_epochs_of_the_first_one() -> None:
    """A log without records shows no leader epoch, and its broker remembers the first one."""
    first = restored()
    holds(first, 1, 0, -1, 0)
    accepted(first)
    known = first.cluster.states[T0].leader_epoch
    second = restored()
    holds(second, 1, 0, -1, 0)
    second.cluster.seen = {1: (first.cluster.controller_epoch, first.cluster.revision)}
    accepted(second)
    assert second.cluster.states[T0].leader_epoch > known


def test_producer_ids_jump_although_the_backup_has_none() -> None:
    world = restored()
    assert world.cluster.producer_ids is None
    accepted(world)
    block = next_block(world.cluster, 1).answer
    assert not isinstance(block, RequestRefusal)
    assert block.first >= 1_000_000_000, "the first ids were handed out after the backup"


def test_a_replica_elsewhere_joins_the_assignment() -> None:
    world = restored()
    holds(world, 3, 0, 9, 80)
    assert world.cluster.topics["t"].partitions[0] == [1, 2]
    found = report(world.cluster)["partitions"]
    assert found[0]["replicas"] == [
        {"broker": 3, "partition": 0, "leader_epoch": 9, "end_offset": 80}
    ]
    accepted(world)
    assert world.cluster.topics["t"].partitions[0] == [1, 2, 3]
    assert world.cluster.states[T0].leader == 3


def test_a_broker_that_is_away_is_waited_for_unless_it_is_named() -> None:
    world = restored()
    cluster = world.cluster
    holds(world, 1, 0, 5, 10)
    del cluster.inventories[3]
    refusal = accept(cluster, (), (), world.chance).answer
    assert isinstance(refusal, RequestRefusal)
    assert refusal.error is ErrorCode.BROKER_NOT_AVAILABLE
    assert "--without 3" in refusal.sentence
    accepted(world, 3)
    # Of t-1 only the missing broker can have anything.
    state = cluster.states[T1]
    assert (state.leader, state.isr, state.leader_epoch) == (-1, [3], 3 + JUMP)
    assert set(cluster.topic_histories["t"].unclean) == {0}


def test_a_partition_without_a_replica_has_no_leader_until_an_empty_one_is_asked_for() -> None:
    """Another broker may have it: an empty leader would use its offsets a second time (0103)."""
    world = restored()
    cluster = world.cluster
    holds(world, 1, 0, 5, 10)
    accepted(world)
    state = cluster.states[T1]
    assert (state.leader, state.isr, state.leader_epoch) == (-1, [], 3 + JUMP)
    world.commit(tuple(settle_all(cluster, [T1], Standing.of(cluster))))
    assert cluster.states[T1] == state
    world.commit(tuple(settle_all(cluster, [T1], Standing.of(cluster), allow_unclean=True)))
    state = cluster.states[T1]
    assert (state.leader, state.isr, state.is_unclean_leader) == (2, [2], True)


def test_damaged_replicas_do_not_lead_and_damaged_states_are_rebuilt() -> None:
    world = restored()
    cluster = world.cluster
    holds(world, 1, 0, 9, 90)
    holds(world, 2, 0, 5, 10)
    cluster.broken = {(1, T0)}
    accepted(world)
    assert cluster.states[T0].leader == 2


def test_unknown_topics_are_listed() -> None:
    world = restored()
    unknown = UUID(int=99)
    world.cluster.inventories[2][unknown, 4] = LogEnd(8, 2, 30)
    world.cluster.held[unknown] = "lost"
    (found,) = report(world.cluster)["unknown"]
    assert (found["topic"], found["topic_id"]) == ("lost", layout.id_text(unknown))
    assert found["replicas"] == [{"broker": 2, "partition": 4, "leader_epoch": 2, "end_offset": 30}]


LOST = UUID(int=99)


def holds_lost(world: World, broker: int, partition: int, epoch: int, end: int) -> None:
    """A broker holds a replica of a topic that the store does not know."""
    world.cluster.held[LOST] = "lost"
    world.cluster.inventories[broker][LOST, partition] = LogEnd(-1, epoch, end)


def test_an_unknown_topic_comes_back_with_its_id_its_hosts_and_its_configurations() -> None:
    """U1: created after the backup."""
    world = restored()
    cluster = world.cluster
    holds_lost(world, 1, 0, 2, 30)
    holds_lost(world, 3, 0, 4, 10)
    holds_lost(world, 2, 1, 0, 5)
    soft_state.take_configs(cluster, (4, 10), {LOST: {"cleanup.policy": "delete"}})
    soft_state.take_configs(cluster, (4, 12), {LOST: {"cleanup.policy": "compact"}})
    soft_state.take_configs(cluster, (4, 11), {LOST: {}})
    (listed,) = report(cluster)["unknown"]
    assert (listed["is_known"], listed["configs"]) == (False, {"cleanup.policy": "compact"})
    found = accepted(world)
    assert found["given_up"] == []
    node, history = cluster.topics["lost"], cluster.topic_histories["lost"]
    assert cluster.topic_id("lost") == LOST
    assert node.partitions == {0: [3, 1], 1: [2]}
    assert (node.initial_partition_count, node.undeleted_partition_count) == (2, 2)
    assert (history.topic_id, history.initial_partition_count) == (node.topic_id, 2)
    assert not history.migrated
    one, two = (cluster.states[TopicPartition("lost", index)] for index in (0, 1))
    assert (one.leader, one.isr, one.leader_epoch) == (3, [3], 4 + JUMP)
    assert (two.leader, two.is_unclean_leader) == (2, True)
    assert set(history.unclean) == {0, 1}
    assert cluster.topic_configs["lost"] == {"cleanup.policy": "compact"}
    epochs = [cluster.partition_nodes[TopicPartition("lost", x)].partition_epoch for x in (0, 1)]
    assert len(set(epochs)) == 2 and min(epochs) > JUMP
    assert cluster.counters[layout.PARTITION_EPOCH] == max(epochs)
    assert requests.why_no_full(cluster) is None


def test_partitions_that_were_added_after_the_backup_come_back() -> None:
    """U1: the topic is known, they are not."""
    world = restored()
    cluster = world.cluster
    holds(world, 1, 0, 5, 100)
    holds(world, 2, 2, 0, 777)
    holds(world, 3, 4, 1, 333)
    (listed,) = report(cluster)["unknown"]
    assert (listed["topic"], listed["is_known"]) == ("t", True)
    assert [(x["partition"], x["end_offset"]) for x in listed["replicas"]] == [(2, 777), (4, 333)]
    nowhere = [x["partition"] for x in report(cluster)["partitions"] if not x["replicas"]]
    assert nowhere == [1, 3]
    accepted(world)
    node = cluster.topics["t"]
    # 3 has no replica that is here: there are no gaps, so it is there, and has no leader.
    assert node.partitions == {0: [1, 2], 1: [2, 3], 2: [2], 3: [3], 4: [3]}
    assert (node.initial_partition_count, node.undeleted_partition_count) == (5, 5)
    assert cluster.topic_histories["t"].initial_partition_count == 5
    leaders = {x: cluster.states[TopicPartition("t", x)].leader for x in (2, 3, 4)}
    assert leaders == {2: 2, 3: -1, 4: 3}
    assert cluster.partition_nodes[TopicPartition("t", 2)].partition_epoch == 1
    assert set(cluster.topic_histories["t"].unclean) == {0, 2, 4}


@pytest.mark.parametrize("name", ["lost", layout.id_text(LOST)])
def test_only_what_is_named_is_given_up(name: str) -> None:
    world = restored()
    cluster = world.cluster
    holds_lost(world, 1, 0, 2, 30)
    holds(world, 2, 2, 0, 777)
    holds(world, 2, 3, 0, 333)
    found = accepted(world, dropped=(name, "t-3"))
    assert [x.split()[0] for x in found["given_up"]] == ["lost-0", "t-3"]
    assert "lost" not in cluster.topics
    assert sorted(cluster.topics["t"].partitions) == [0, 1, 2]


@pytest.mark.parametrize("name", ["t", "t-0", "lost-1", "missing", ""])
def test_what_is_not_unknown_cannot_be_given_up(name: str) -> None:
    """Above all no known topic as a whole."""
    world = restored()
    holds_lost(world, 1, 0, 2, 30)
    holds(world, 2, 2, 0, 777)
    refusal = accept(world.cluster, (), (name,), world.chance).answer
    assert isinstance(refusal, RequestRefusal) and refusal.error is ErrorCode.INVALID_REQUEST


def test_of_two_topics_of_one_name_one_must_be_named() -> None:
    world = restored()
    cluster = world.cluster
    cluster.held[LOST] = "t"
    cluster.inventories[2][LOST, 0] = LogEnd(-1, 2, 30)
    holds(world, 1, 0, 5, 10)
    refusal = accept(cluster, (), (), world.chance).answer
    assert isinstance(refusal, RequestRefusal)
    assert f"--drop-unknown {layout.id_text(LOST)}" in refusal.sentence
    accepted(world, dropped=(layout.id_text(LOST),))
    assert cluster.topic_id("t") != LOST


def test_a_topic_that_was_created_again_after_the_backup_takes_its_name() -> None:
    """No replica belongs to the topic that the store knows: it was deleted since."""
    world = restored()
    cluster = world.cluster
    cluster.held[LOST] = "t"
    cluster.inventories[2][LOST, 0] = LogEnd(-1, 2, 30)
    accepted(world)
    assert cluster.topic_id("t") == LOST
    assert cluster.topics["t"].partitions == {0: [2]}
    assert T1 not in cluster.states and T1 not in cluster.partition_nodes
    assert cluster.topic_histories["t"].topic_id == layout.id_text(LOST)
    assert cluster.names == {LOST: "t"}


@pytest.mark.parametrize("name", ["t", "lost"])
def test_a_mark_of_before_the_backup_deletes_no_topic_that_comes_back(name: str) -> None:
    """It names a topic that was there when the backup was made, and deleted since (promise 20)."""
    world = restored()
    cluster = world.cluster
    world.commit((Put(layout.deletion_mark(name), DeletionMark()),))
    cluster.held[LOST] = name
    cluster.inventories[2][LOST, 0] = LogEnd(-1, 2, 30)
    accepted(world)
    assert world.do(take_up(cluster)) == []
    assert cluster.topic_id(name) == LOST and not cluster.deletions


def refused(world: World, dropped: tuple[str, ...] = ()) -> str:
    """The sentence with which an acceptance is refused."""
    answer = accept(world.cluster, (), dropped, world.chance).answer
    assert isinstance(answer, RequestRefusal) and answer.error is ErrorCode.INVALID_REQUEST
    return answer.sentence


def test_a_topic_that_is_to_be_deleted_grows_by_nothing_unknown() -> None:
    """Its mark stands in the store: its deletion goes on."""
    world = restored()
    cluster = world.cluster
    world.commit((Put(layout.deletion_mark("t"), DeletionMark()),))
    holds(world, 2, 2, 0, 777)
    assert report(cluster)["unknown"] == []
    accepted(world)
    assert sorted(cluster.topics["t"].partitions) == [0, 1]


def test_a_damaged_replica_of_an_unknown_topic_hosts_nothing() -> None:
    world = restored()
    cluster = world.cluster
    holds_lost(world, 1, 0, 9, 90)
    holds_lost(world, 2, 0, 5, 10)
    lost = TopicPartition("lost", 0)
    cluster.broken = {(1, lost)}
    accepted(world)
    assert (cluster.topics["lost"].partitions, cluster.states[lost].leader) == ({0: [2]}, 2)


def test_of_two_unknown_topics_of_one_name_one_must_be_named() -> None:
    world = restored()
    other = UUID(int=98)
    holds_lost(world, 1, 0, 2, 30)
    world.cluster.held[other] = "lost"
    world.cluster.inventories[2][other, 0] = LogEnd(-1, 2, 30)
    assert "several topics lost" in refused(world)
    accepted(world, dropped=(layout.id_text(other),))
    assert world.cluster.topic_id("lost") == LOST


@pytest.mark.parametrize("name", ["../../x", "", "x" * 250])
def test_a_name_that_no_topic_may_have_does_not_come_back(name: str) -> None:
    """N2: of an inventory it would come into the store, and from there to every broker."""
    world = restored()
    holds_lost(world, 1, 0, 2, 30)
    world.cluster.held[LOST] = name
    assert f"give it up with --drop-unknown {layout.id_text(LOST)}" in refused(world)
    accepted(world, dropped=(layout.id_text(LOST),))
    assert set(world.cluster.topics) == {"t"}


def test_no_topic_comes_back_with_more_partitions_than_one_may_have() -> None:
    world = restored()
    holds(world, 2, MAX_PARTITIONS, 0, 777)
    named = f"t-{MAX_PARTITIONS}"
    assert f"--drop-unknown {named}" in refused(world)
    accepted(world, dropped=(named,))
    assert sorted(world.cluster.topics["t"].partitions) == [0, 1]


def test_the_end_of_having_gone_back_is_written_last() -> None:
    """The writes are cut: until all of them are there, no broker is commanded."""
    world = restored()
    holds_lost(world, 1, 0, 2, 30)
    writes = accept(world.cluster, (), (), world.chance).writes
    assert writes[-1] == Remove(layout.WENT_BACK)
    assert writes.index(Remove(layout.WENT_BACK)) == len(writes) - 1


def test_an_acceptance_has_compared_the_replicas_that_were_noted_as_uncertain() -> None:
    """The next controller took the leader that was just elected for one of them, and flagged it
    once more."""
    world = restored()
    world.commit((Put(layout.UNCERTAIN_REPLICAS, UncertainReplicas({"t": {0: [1, 2]}})),))
    holds(world, 1, 0, 5, 30)
    writes = accept(world.cluster, (), (), world.chance).writes
    assert writes[-2:] == (Remove(layout.UNCERTAIN_REPLICAS), Remove(layout.WENT_BACK))
    accepted(world)
    assert world.cluster.states[T0].leader == 1
    assert not settle_noted(world.cluster).writes


def test_replicas_without_an_id_come_back_under_a_new_one() -> None:
    world = restored()
    cluster = world.cluster
    cluster.nameless[1] = {TopicPartition("old", 0): LogEnd(-1, 3, 7)}
    assert [each["topic_id"] for each in report(cluster)["unknown"]] == [None]
    accepted(world)
    assert cluster.topic_histories["old"].migrated
    assert cluster.states[TopicPartition("old", 0)].leader == 1


def test_what_is_being_deleted_is_listed_and_goes_on_being_deleted() -> None:
    world = restored()
    cluster = world.cluster
    world.commit((Put(layout.deletion(LOST), DeletionNode("lost", {0: [1]}, {0: 3})),))
    holds_lost(world, 1, 0, 3, 30)
    (listed,) = report(cluster)["unknown"]
    assert (listed["topic"], listed["is_being_deleted"]) == ("lost", True)
    accepted(world)
    assert "lost" not in cluster.topics and LOST in cluster.deletions


def test_a_decision_is_cut_only_where_it_may_be() -> None:
    writes = tuple(
        Put(f"/config/topics/t{n}", ConfigNode({"a": "b" * 50})) for n in range(2 * MANY)
    )
    whole = list(parts(Decision(None, writes), 10_000))
    assert whole == [writes]
    assert list(parts(Decision(None, writes, splits=True), None)) == [writes]
    cut = list(parts(Decision(None, writes, splits=True), 10_000))
    assert len(cut) > 10
    assert tuple(write for part in cut for write in part) == writes
    assert all(sum(len(x.path) + 64 + 70 for x in part) <= 10_000 for part in cut)
