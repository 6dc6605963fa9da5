"""What unclean elections lost: debts that begin and end, reports that add to them."""

from __future__ import annotations

import logging
from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions import losses
from tidelog.controller.decisions.condition import condition
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Write
from tidelog.controller.decisions.elections import Standing
from tidelog.controller.decisions.isr import Proposal, alter_isr
from tidelog.controller.decisions.losses import (
    KEPT_ELECTIONS,
    KEPT_RANGES,
    Truncation,
    loss_lines,
    lost_count,
    lost_ranges,
    report,
    unclean_elections,
    with_debts,
    without_debt,
)
from tidelog.controller.decisions.settlement import put_state, settle_all
from tidelog.controller.pending import changes_of
from tidelog.metadata import layout
from tidelog.metadata.records import LostRange, PartitionState, TopicHistory, UncleanDebt
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish

T0 = TopicPartition("t", 0)


def world() -> World:
    """Topic t with a partition on brokers 1, 2 and 3; 1 is dead, and 2 leads uncleanly."""
    made = World(1, 2, 3)
    made.create(TopicToCreate("t", 1, 3, configs=(("unclean.leader.election.enable", "true"),)))
    made.commit((put_state(made.cluster, T0, PartitionState(1, 5, 1, [1])),))
    die(made, 1)
    state = made.cluster.states[T0]
    assert (state.leader, state.leader_epoch, state.is_unclean_leader) == (2, 6, True)
    return made


def die(made: World, broker: int) -> tuple[Write, ...]:
    """A broker dies; return what the controller wrote."""
    del made.cluster.brokers[broker]
    writes = tuple(settle_all(made.cluster, [T0], Standing.of(made.cluster)))
    made.commit(writes)
    return writes


def tell(made: World, broker: int, *found: tuple[int, int, tuple[int, ...]]) -> int:
    topic_id = made.cluster.topic_id("t")
    truncations = [Truncation(topic_id, 0, *each) for each in found]
    answer: int = made.do(report(made.cluster, broker, truncations))
    return answer


def handled(made: World) -> None:
    state = made.cluster.states[T0]
    version = made.cluster.isr_version(T0)
    proposal = Proposal(
        T0, UUID(int=0), state.leader_epoch, tuple(state.isr), version, unclean_handled=True
    )
    (outcome,) = made.do(alter_isr(made.cluster, state.leader, [proposal]))
    assert outcome.error is E.NONE


def debt(made: World) -> UncleanDebt | None:
    return made.cluster.topic_histories["t"].unclean.get(0)


def past(made: World) -> list[UncleanDebt]:
    return made.cluster.topic_histories["t"].unclean_past.get(0, [])


def test_an_unclean_election_leaves_a_debt_which_collects_the_reports() -> None:
    made = world()
    assert debt(made) == UncleanDebt(2, 6)
    assert tell(made, 2, (60, 60, (4,))) == 0
    assert debt(made) == UncleanDebt(2, 6, 60, 4)
    assert tell(made, 1, (60, 100, (4, 5))) == 0
    assert debt(made) == UncleanDebt(2, 6, 60, 4, [LostRange(1, 60, 100, [4, 5])])


def test_a_report_that_comes_again_writes_nothing() -> None:
    made = world()
    tell(made, 1, (60, 100, (5,)))
    tell(made, 2, (60, 60, (4,)))
    topic_id = made.cluster.topic_id("t")
    for broker, found in ((1, (60, 100, (5,))), (2, (60, 60, (4,)))):
        again = report(made.cluster, broker, [Truncation(topic_id, 0, *found)])
        assert again.writes == ()


def test_the_end_of_the_unclean_leader_is_its_own_to_tell_once() -> None:
    made = world()
    tell(made, 3, (70, 70, (4,)))
    assert debt(made) == UncleanDebt(2, 6)
    tell(made, 2, (60, 60, (4,)))
    tell(made, 2, (65, 65, (4,)))
    assert debt(made) == UncleanDebt(2, 6, 60, 4)


def test_a_finished_handling_moves_the_debt_to_what_later_reports_still_reach() -> None:
    made = world()
    tell(made, 2, (60, 60, (4,)))
    handled(made)
    assert debt(made) is None
    assert not made.cluster.states[T0].is_unclean_leader
    assert past(made) == [UncleanDebt(2, 6, 60, 4)]
    tell(made, 1, (60, 100, (5,)))
    assert past(made) == [UncleanDebt(2, 6, 60, 4, [LostRange(1, 60, 100, [5])])]
    (shown,) = unclean_elections(made.cluster)
    assert (shown["handled"], shown["lost_offsets"]) == (True, 40)


def test_the_unclean_leader_restarts_before_its_handling_and_the_debt_is_still_worked_off() -> None:
    """An in-sync election clears the flag, and not the debt (promises, known traps)."""
    made = world()
    before = debt(made)
    # 2 and 3 are in sync; 2 goes away and 3 is elected.
    made.commit(
        (put_state(made.cluster, T0, msgspec.structs.replace(made.cluster.states[T0], isr=[2, 3])),)
    )
    die(made, 2)
    state = made.cluster.states[T0]
    assert (state.leader, state.is_unclean_leader) == (3, False)
    assert debt(made) == before
    handled(made)
    assert debt(made) is None
    assert past(made) == [before]


def test_a_flagged_partition_that_loses_its_leader_keeps_flag_and_debt() -> None:
    made = world()
    tell(made, 1, (60, 100, (5,)))
    before = debt(made)
    cluster = made.cluster
    # The partition loses its leader: 3 is gone too, and then 2.
    die(made, 3)
    del cluster.brokers[2]
    writes = tuple(settle_all(cluster, [T0], Standing.of(cluster)))
    assert audit_lines(cluster, writes) == []
    made.commit(writes)
    state = cluster.states[T0]
    assert (state.leader, state.is_unclean_leader) == (-1, True)
    assert debt(made) == before


def test_a_second_unclean_election_keeps_what_the_first_one_lost() -> None:
    made = world()
    tell(made, 1, (60, 100, (5,)))
    die(made, 2)
    state = made.cluster.states[T0]
    assert (state.leader, state.leader_epoch, state.is_unclean_leader) == (3, 7, True)
    assert debt(made) == UncleanDebt(3, 7)
    assert past(made) == [UncleanDebt(2, 6, lost=[LostRange(1, 60, 100, [5])])]
    # Records of epoch 5 were passed over by the election of epoch 6, those of 6 by that of 7.
    tell(made, 2, (50, 70, (4, 5)))
    tell(made, 2, (70, 80, (6,)))
    first, second = past(made)[0], debt(made)
    assert first.lost == [LostRange(1, 60, 100, [5]), LostRange(2, 50, 70, [4, 5])]
    assert second == UncleanDebt(3, 7, lost=[LostRange(2, 70, 80, [6])])


def test_a_loss_that_no_election_explains_is_on_record_too() -> None:
    made = World(1, 2, 3)
    made.create(TopicToCreate("t", 1, 3))
    made.commit((put_state(made.cluster, T0, PartitionState(3, 1, 1, [3])),))
    tell(made, 1, (3, 5, (0,)))
    tell(made, 2, (3, 5, (0,)))
    lost = [LostRange(1, 3, 5, [0]), LostRange(2, 3, 5, [0])]
    assert past(made) == [UncleanDebt(-1, 1, lost=lost)]
    assert debt(made) is None
    found = losses.totals(made.cluster)
    assert found == {"unclean_elections_on_record": 0, "committed_offsets_lost": 2}


def test_reports_of_what_is_gone_are_answered_and_forgotten() -> None:
    made = world()
    stranger = Truncation(UUID(int=99), 0, 1, 2, (1,))
    other = Truncation(made.cluster.topic_id("t"), 7, 1, 2, (1,))
    decision = report(made.cluster, 1, [stranger, other])
    assert (decision.answer, decision.writes) == (2, ())


@pytest.mark.parametrize(
    ("lost", "ranges", "count"),
    [
        ([], [], 0),
        ([LostRange(1, 5, 9)], [(5, 9)], 4),
        # Two replicas had the same records: lost once.
        ([LostRange(1, 5, 9), LostRange(2, 5, 7)], [(5, 9)], 4),
        ([LostRange(1, 5, 9), LostRange(2, 9, 12), LostRange(1, 20, 21)], [(5, 12), (20, 21)], 8),
    ],
)
def test_what_was_lost_is_the_union(
    lost: list[LostRange], ranges: list[tuple[int, int]], count: int
) -> None:
    election = UncleanDebt(1, 1, lost=lost)
    assert (lost_ranges(election), lost_count(election)) == (ranges, count)


def test_several_cuts_of_one_replica_are_joined() -> None:
    made = world()
    tell(made, 1, (80, 100, (5,)))
    tell(made, 1, (60, 80, (4,)), (50, 65, (3,)))
    found = debt(made)
    assert found is not None
    assert found.lost == [LostRange(1, 50, 100, [3, 4, 5])]
    tell(made, 1, *((1000 + 2 * x, 1001 + 2 * x, (5,)) for x in range(2 * KEPT_RANGES)))
    found = debt(made)
    assert found is not None
    assert len(found.lost) == KEPT_RANGES
    assert lost_ranges(found)[-1][1] == 1001 + 2 * (2 * KEPT_RANGES - 1)


def test_the_history_is_bounded_and_forgets_what_lost_nothing_first() -> None:
    lost = [LostRange(1, 1, 2, [1])]
    history = TopicHistory("id", 1)
    for epoch in range(2 * KEPT_ELECTIONS):
        lossy = lost if epoch < KEPT_ELECTIONS else []
        history = without_debt(with_debts(history, {0: UncleanDebt(1, epoch, lost=lossy)}), 0)
    assert [each.leader_epoch for each in history.unclean_past[0]] == list(range(KEPT_ELECTIONS))
    many = {x: UncleanDebt(1, 1) for x in range(losses.KEPT_WITHOUT_LOSS + 5)}
    history = with_debts(history, many)
    for partition in many:
        history = without_debt(history, partition)
    found = [each for elections in history.unclean_past.values() for each in elections]
    assert sum(not each.lost for each in found) == losses.KEPT_WITHOUT_LOSS
    assert sum(bool(each.lost) for each in found) == KEPT_ELECTIONS


def test_what_is_shown() -> None:
    made = world()
    tell(made, 2, (60, 60, (4,)))
    tell(made, 1, (60, 100, (4, 5)))
    (shown,) = unclean_elections(made.cluster)
    assert shown == {
        "topic": "t",
        "topic_id": shown["topic_id"],
        "partition": 0,
        "leader": 2,
        "leader_epoch": 6,
        "log_end_offset": 60,
        "log_end_epoch": 4,
        "handled": False,
        "flagged": True,
        "lost_offsets": 40,
        "lost": [{"from_offset": 60, "to_offset": 100, "epochs": [4, 5], "replicas": [1]}],
        "missing_replicas": [1],
    }
    found = finish(condition(made.cluster))
    assert found["counts"]["unclean_elections_on_record"] == 1
    assert found["counts"]["committed_offsets_lost"] == 40
    kinds = {problem["kind"]: problem["level"] for problem in found["problems"]}
    assert (kinds["unclean"], kinds["records_lost"]) == ("bad", "notice")


def test_losses_leave_audit_lines_once() -> None:
    made = world()
    cluster = made.cluster
    topic_id = cluster.topic_id("t")
    first = report(cluster, 1, [Truncation(topic_id, 0, 60, 100, (4, 5))])
    (line,) = map(str, audit_lines(cluster, first.writes))
    assert "t-0" in line
    assert "offsets 60 to 99 of leader epochs 4, 5" in line
    assert "broker 1" in line
    # What is added to a debt is nothing to a leader; that it goes is.
    assert not changes_of(cluster, first.writes).partitions
    made.do(first)
    history = cluster.topic_histories["t"]
    assert loss_lines("t", history, history) == []
    done = without_debt(history, 0)
    assert loss_lines("t", history, done) == []
    (line,) = audit_lines(cluster, [Put(layout.topic_history("t"), done)])
    assert "handling of t-0 finished" in line.sentence
    assert line.level == logging.INFO, "no operator has to act on it"
    # A topic's record that changes for another reason repeats nothing.
    other = msgspec.structs.replace(done, migrated=True)
    assert loss_lines("t", done, other) == []


def test_only_the_explicit_field_ends_a_debt() -> None:
    made = world()
    state = made.cluster.states[T0]
    version = made.cluster.isr_version(T0)
    ordinary = Proposal(T0, UUID(int=0), 6, (2, 3), version, (2, 3))
    assert made.do(alter_isr(made.cluster, 2, [ordinary]))[0].error is E.NONE
    assert made.cluster.states[T0].is_unclean_leader
    assert debt(made) == UncleanDebt(2, 6)
    late = replace(ordinary, isr=tuple(state.isr), unclean_handled=True)
    assert made.do(alter_isr(made.cluster, 2, [late]))[0].error is E.INVALID_UPDATE_VERSION
    stranger = replace(late, isr=(2, 3), isr_version=version + 1)
    assert made.do(alter_isr(made.cluster, 3, [stranger]))[0].error is E.FENCED_LEADER_EPOCH
    assert debt(made) == UncleanDebt(2, 6)
    assert made.do(alter_isr(made.cluster, 2, [stranger]))[0].error is E.NONE
    assert debt(made) is None
    assert not made.cluster.states[T0].is_unclean_leader
    assert made.cluster.states[T0].isr == [2, 3]


def test_the_node_of_a_topic_stays_small_whatever_was_lost() -> None:
    lost = [LostRange(broker, 10**9, 2 * 10**9, [4, 5]) for broker in (1, 2, 3)]
    count = 3_000
    past = {
        partition: [UncleanDebt(1, epoch, 10**9, 4, lost if epoch else []) for epoch in range(4)]
        for partition in range(count)
    }
    history = TopicHistory("id", count, unclean_past=past)
    assert len(layout.encode(history)) > 1_000_000
    after = with_debts(history, {0: UncleanDebt(3, 9)})
    assert len(layout.encode(after)) <= losses.KEPT_BYTES
    assert len(layout.encode(after)) > 0.9 * losses.KEPT_BYTES, "only what is needed"
    assert after.unclean == {0: UncleanDebt(3, 9)}
    # The newest stay longest, and what lost nothing is the first to go.
    kept = {each.leader_epoch for found in after.unclean_past.values() for each in found}
    assert kept == {3}
    # Debts are never given up.
    debts = {partition: UncleanDebt(1, 5, lost=lost) for partition in range(count)}
    many = with_debts(history, debts)
    assert (many.unclean, many.unclean_past) == (debts, {})


def test_a_report_keeps_the_node_small_too() -> None:
    made = world()
    history = made.cluster.topic_histories["t"]
    lost = [LostRange(broker, 10**9, 2 * 10**9, [4, 5]) for broker in (1, 2, 3)]
    past = {partition: [UncleanDebt(1, 1, lost=lost)] for partition in range(1, 5_000)}
    made.cluster.topic_histories["t"] = msgspec.structs.replace(history, unclean_past=past)
    topic_id = made.cluster.topic_id("t")
    made.commit_only(report(made.cluster, 1, [Truncation(topic_id, 0, 60, 100, (5,))]).writes)
    after = made.cluster.topic_histories["t"]
    assert len(layout.encode(after)) <= losses.KEPT_BYTES
    assert after.unclean[0].lost == [LostRange(1, 60, 100, [5])]
