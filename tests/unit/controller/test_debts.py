"""A topic's debts of unclean elections are bounded: its node fits ZooKeeper, the others wait."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions import losses, settlement
from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.condition import condition
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Decision, Put
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.isr import Proposal, alter_isr
from tidelog.controller.decisions.journal import parts
from tidelog.controller.decisions.losses import (
    Truncation,
    most_debts,
    report,
    topics_with_room,
    without_debt,
)
from tidelog.controller.decisions.requested_elections import elect_on_request
from tidelog.controller.decisions.settlement import elect_put_off, put_state, settle_all
from tidelog.metadata import layout
from tidelog.metadata.records import LostRange, PartitionState, TopicHistory, UncleanDebt
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish

ZOOKEEPER_BYTES = 1 << 20
FULL_BYTES, FULL_COUNT = losses.KEPT_BYTES, 3_000
SMALLER = 10
"""The record of most tests has room for so much less, and their topic so many partitions less."""

COUNT, MOST = FULL_COUNT // SMALLER, most_debts(3) // SMALLER


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "KEPT_BYTES", FULL_BYTES // SMALLER)
    assert most_debts(3) == MOST


def world(count: int = COUNT, *, allowed: bool = True) -> World:
    """Topic t, all of which broker 1 led alone; it is dead, and nothing is settled yet."""
    made = World(1, 2, 3)
    configs = (("unclean.leader.election.enable", str(allowed).lower()),)
    made.create(TopicToCreate("t", count, 3, configs=configs))
    alone = PartitionState(1, 5, 1, [1])
    made.commit(tuple(put_state(made.cluster, where, alone) for where in places(made)))
    del made.cluster.brokers[1]
    return made


def places(made: World) -> list[TopicPartition]:
    return [TopicPartition("t", index) for index in sorted(made.cluster.topics["t"].partitions)]


def settled(made: World) -> None:
    writes = settle_all(made.cluster, places(made), Standing.of(made.cluster))
    made.commit(tuple(writes))


def led(made: World) -> list[TopicPartition]:
    return [where for where in places(made) if made.cluster.states[where].leader != NO_LEADER]


def open_debts(made: World) -> dict[int, UncleanDebt]:
    return made.cluster.topic_histories["t"].unclean


def handle(made: World, count: int) -> set[str]:
    """Have one leader say that its first debts are handled."""
    owing = [TopicPartition("t", index) for index in sorted(open_debts(made))]
    leader = made.cluster.states[owing[0]].leader
    proposals = []
    for where in owing:
        state, version = made.cluster.states[where], made.cluster.isr_version(where)
        if state.leader == leader and len(proposals) < count:
            isr = tuple(state.isr)
            asked = Proposal(where, UUID(int=0), state.leader_epoch, isr, version, (), True)
            proposals.append(asked)
    decision = alter_isr(made.cluster, leader, proposals)
    topic_histories = [
        write for write in decision.writes if write.path == layout.topic_history("t")
    ]
    assert len(topic_histories) == 1, (
        "a record of half a megabyte is not written for each partition"
    )
    found = topics_with_room(made.cluster, decision.writes)
    assert all(outcome.error is E.NONE for outcome in made.do(decision))
    return found


def node_bytes(made: World) -> int:
    return len(layout.encode(made.cluster.topic_histories["t"]))


def test_all_partitions_of_a_topic_are_elected_uncleanly_in_rounds() -> None:
    made = world()
    settled(made)
    assert len(led(made)) == len(open_debts(made)) == MOST < COUNT
    waiting = made.cluster.states[TopicPartition("t", COUNT - 1)]
    assert (waiting.leader, waiting.isr, waiting.is_unclean_leader) == (NO_LEADER, [1], False)
    kinds = {problem["kind"]: problem for problem in finish(condition(made.cluster))["problems"]}
    assert kinds["elections_put_off"]["level"] == "bad"
    rounds = 0
    while len(led(made)) < COUNT:
        # Nothing is elected again as long as half of the debts stand.
        while not (topics := handle(made, MOST // 4)):
            assert len(open_debts(made)) >= MOST // 2
        made.do(elect_put_off(made.cluster, topics))
        assert len(open_debts(made)) <= MOST
        assert node_bytes(made) <= losses.KEPT_BYTES
        rounds += 1
    assert 1 < rounds < 20
    epochs = {made.cluster.states[where].leader_epoch for where in places(made)}
    assert epochs == {6, 7}, "those that waited lost their leader first"
    kinds = {problem["kind"]: problem for problem in finish(condition(made.cluster))["problems"]}
    assert "elections_put_off" not in kinds


def test_a_round_looks_only_at_as_many_partitions_as_it_can_elect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = world()
    settled(made)
    before = len(led(made))
    while not (topics := handle(made, MOST // 4)):
        pass
    checked: list[TopicPartition] = []
    settle_one = settlement._settled

    def counted(cluster: ClusterState, where: TopicPartition, *args: Any, **named: Any) -> Any:
        checked.append(where)
        return settle_one(cluster, where, *args, **named)

    monkeypatch.setattr(settlement, "_settled", counted)
    made.do(elect_put_off(made.cluster, topics))
    elected = len(led(made)) - before
    assert elected > MOST // 2 and len(open_debts(made)) == MOST
    assert len(checked) == elected < COUNT - before


def test_a_partition_in_debt_is_elected_again_whatever_the_others_owe() -> None:
    made = world()
    settled(made)
    del made.cluster.brokers[2]
    settled(made)
    again = {made.cluster.states[where].leader for where in led(made)}
    assert (again, len(led(made)), len(open_debts(made))) == ({3}, MOST, MOST)


def test_a_request_for_an_unclean_election_is_answered_that_it_waits() -> None:
    made = world(allowed=False)
    settled(made)
    assert not led(made)
    answer = made.do(elect_on_request(made.cluster, ElectionType.UNCLEAN, places(made)))
    refused = {where: found for where, found in answer.items() if found is not None}
    assert len(refused) == COUNT - MOST
    last = refused[TopicPartition("t", COUNT - 1)]
    assert last.error is E.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert f"{MOST} unclean elections of t are not handled yet" in last.sentence


def test_an_uncertain_last_member_is_not_elected_without_room_but_compared_later() -> None:
    made = world(1)
    where = places(made)[0]
    history = TopicHistory(layout.id_text(made.cluster.topic_id("t")), 1)
    full = {index: UncleanDebt(2, 6) for index in range(1, MOST + 1)}
    made.commit((Put(layout.topic_history("t"), msgspec.structs.replace(history, unclean=full)),))
    made.cluster.brokers[1] = made.cluster.brokers[2]
    standing = Standing.of(made.cluster, new_incarnation=1)
    made.commit(tuple(settle_all(made.cluster, [where], standing, [where])))
    state = made.cluster.states[where]
    assert (state.leader, state.isr, state.unclean_members) == (NO_LEADER, [1], [1])
    less = msgspec.structs.replace(history, unclean={1: UncleanDebt(2, 6)})
    made.commit((Put(layout.topic_history("t"), less),))
    made.do(elect_put_off(made.cluster, {"t"}))
    state = made.cluster.states[where]
    assert (state.leader, state.is_unclean_leader) == (1, True)
    assert set(open_debts(made)) == {0, 1}


def test_the_node_stays_small_when_every_debt_is_reported_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "KEPT_BYTES", FULL_BYTES)
    made = world(FULL_COUNT)
    settled(made)
    assert len(open_debts(made)) == most_debts(3) == MOST * SMALLER
    topic_id = made.cluster.topic_id("t")
    epochs = (2**31 - 2, 2**31 - 1)
    for broker in (1, 3):
        found = [
            Truncation(topic_id, index, 10**11 + 10 * x, 10**11 + 10 * x + 1, (4, 5))
            for index in open_debts(made)
            for x in range(4)
        ]
        made.do(report(made.cluster, broker, found))
    end = [Truncation(topic_id, index, 10**11, 10**11, epochs[:1]) for index in open_debts(made)]
    made.do(report(made.cluster, 2, end))
    assert node_bytes(made) < ZOOKEEPER_BYTES / 2
    assert all(len(debt.lost) == 2 for debt in open_debts(made).values())
    some = next(iter(open_debts(made).values()))
    assert some.lost[0] == LostRange(1, 10**11, 10**11 + 31, [4, 5])


def test_a_commit_has_not_two_large_records() -> None:
    large = {index: UncleanDebt(1, 1) for index in range(8_000)}
    writes = tuple(
        Put(layout.topic_history(name), TopicHistory("id", 1, unclean=large)) for name in "abc"
    )
    commits = list(parts(Decision(None, writes, splits=True), 900_000))
    assert max(sum(len(layout.encode(w.record)) for w in each) for each in commits) < 900_000
    assert [write for each in commits for write in each] == list(writes)


def test_room_comes_once_when_half_of_the_debts_are_gone() -> None:
    made = world()
    settled(made)
    history = made.cluster.topic_histories["t"]
    kept = dict(list(history.unclean.items())[: MOST // 2])
    at_half = msgspec.structs.replace(history, unclean=kept)
    path = layout.topic_history("t")
    assert topics_with_room(made.cluster, [Put(path, at_half)]) == set()
    less = without_debt(at_half, next(iter(kept)))
    assert topics_with_room(made.cluster, [Put(path, less)]) == {"t"}
    made.commit((Put(path, less),))
    later = without_debt(less, next(iter(less.unclean)))
    assert topics_with_room(made.cluster, [Put(path, later)]) == set()
    assert topics_with_room(made.cluster, [Put(layout.topic_history("u"), later)]) == set()
