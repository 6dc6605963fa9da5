"""A store that went back in time: how it is noticed, what accepting it does (promises 14, 20)."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from uuid import UUID

import pytest
from tests.support.controller_world import World

from tidelog.controller import requests
from tidelog.controller.decisions import losses
from tidelog.controller.decisions.cluster import Cluster, Decision, LogEnd, Put, Refusal, load
from tidelog.controller.decisions.creation import NewTopic
from tidelog.controller.decisions.elections import elect_put_off, put_state
from tidelog.controller.decisions.journal import MANY, parts
from tidelog.controller.decisions.producer_ids import next_block
from tidelog.controller.decisions.registration import (
    Address,
    LifeEnded,
    Registration,
    register,
    why_gone_back,
)
from tidelog.controller.decisions.restoration import JUMP, accept, report
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode, PartitionState, ProducerIdBlock, WentBack
from tidelog.model.errors import ErrorCode
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
        LifeEnded.CLEAN,
        {},
        seen=seen,
    )


def restored() -> World:
    """A store restored from a backup, on which brokers 1, 2 and 3 have registered."""
    world = World()
    for broker in (1, 2, 3):
        world.cluster.inventories[broker] = {}
        world.do(register(world.cluster, request(broker), 1))
    world.create(NewTopic("t", 2, 2))
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
    cluster = Cluster()
    cluster.counters = {layout.CONTROLLER_EPOCH: 7, layout.REVISION: 100}
    cluster.loaded_revision = 90
    assert (why_gone_back(cluster, request(1, seen)) is not None) is gone_back


def test_records_of_a_later_leader_epoch_show_it_too() -> None:
    world = restored()
    cluster = world.cluster
    topic_id = cluster.topic_id("t")
    for epoch, partition_epoch, gone_back in ((5, 1, False), (6, 1, True), (6, 9, False)):
        inventory = {(topic_id, 0): LogEnd(partition_epoch, epoch, 1)}
        asked = replace(request(1), inventory=inventory)
        assert (why_gone_back(cluster, asked) is not None) is gone_back


def test_it_stays_known_over_restarts_and_no_full_is_sent() -> None:
    world = restored()
    loaded = Cluster()
    load(loaded, world.nodes())
    assert loaded.went_back == "why"
    assert requests.why_no_full(loaded) == "why"


def accepted(world: World, *without: int) -> dict[str, object]:
    answer = world.do(accept(world.cluster, without))
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
    assert set(cluster.memories["t"].unclean) == {0}
    monkeypatch.undo()
    world.do(elect_put_off(cluster, {"t"}))
    second = cluster.states[T1]
    assert (second.leader, second.isr, second.is_unclean_leader) == (3, [3], True)
    assert second.leader_epoch == 5 + JUMP + 1
    assert set(cluster.memories["t"].unclean) == {0, 1}


def test_the_newest_replica_leads_flagged_and_everything_jumps() -> None:
    world = restored()
    cluster = world.cluster
    refused = next_block(cluster, 1).answer
    assert isinstance(refused, Refusal), "it may have been handed out already"
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
    assert {index: debt.leader for index, debt in cluster.memories["t"].unclean.items()} == {
        0: 2,
        1: 3,
    }
    assert cluster.controller_epoch == 41 + JUMP
    assert cluster.revision == 5000 + JUMP
    assert cluster.counters[layout.PARTITION_EPOCH] > JUMP
    assert all(x.broker_epoch > before[b] + JUMP for b, x in cluster.brokers.items())
    assert cluster.went_back is None
    block = next_block(cluster, 1).answer
    assert not isinstance(block, Refusal)
    assert block.first > 1_000_000_000
    again = accept(cluster, ()).answer
    assert isinstance(again, Refusal)
    assert again.error is ErrorCode.INVALID_REQUEST


def test_producer_ids_jump_although_the_backup_has_none() -> None:
    world = restored()
    assert world.cluster.producer_ids is None
    accepted(world)
    block = next_block(world.cluster, 1).answer
    assert not isinstance(block, Refusal)
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
    refusal = accept(cluster, ()).answer
    assert isinstance(refusal, Refusal)
    assert refusal.error is ErrorCode.BROKER_NOT_AVAILABLE
    assert "--without 3" in refusal.sentence
    accepted(world, 3)
    # Of t-1 only the missing broker can have anything.
    state = cluster.states[T1]
    assert (state.leader, state.isr, state.leader_epoch) == (-1, [3], 3 + JUMP)
    assert set(cluster.memories["t"].unclean) == {0}


def test_a_partition_that_nobody_holds_leads_empty_and_flagged() -> None:
    world = restored()
    holds(world, 1, 0, 5, 10)
    accepted(world)
    state = world.cluster.states[T1]
    assert (state.leader, state.isr, state.is_unclean_leader) == (2, [2], True)


def test_damaged_replicas_do_not_lead_and_damaged_states_are_made_anew() -> None:
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
