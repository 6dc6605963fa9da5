"""AlterIsr: the checks as a table, then what an accepted change writes."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions.cluster import NO_ID
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.isr import Outcome, Proposal, alter_isr
from tidelog.controller.decisions.settlement import put_state
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, UncleanDebt
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def world(isr: list[int] | None = None) -> World:
    """Topic t with two partitions on brokers 1, 2, 3 (broker epochs 1, 2, 3); 4 is there too."""
    made = World(1, 2, 3)
    made.create(TopicToCreate("t", 2, 3, configs=(("min.insync.replicas", "2"),)))
    made.cluster.brokers[4] = made.cluster.brokers[3]
    for where in (T0, T1):
        state = PartitionState(1, 5, 1, isr or [1, 2])
        made.commit((put_state(made.cluster, where, state),))
    return made


PROPOSAL = Proposal(T0, NO_ID, 5, (1, 2, 3), 1, (1, 2, 3))


@pytest.mark.parametrize(
    ("leader", "proposal", "error"),
    [
        (1, PROPOSAL, E.NONE),
        (1, replace(PROPOSAL, broker_epochs=()), E.NONE),
        (1, replace(PROPOSAL, isr=(1,), broker_epochs=(1,)), E.NONE),
        (1, replace(PROPOSAL, where=TopicPartition("u", 0)), E.UNKNOWN_TOPIC_OR_PARTITION),
        (1, replace(PROPOSAL, where=TopicPartition("t", 9)), E.UNKNOWN_TOPIC_OR_PARTITION),
        (1, replace(PROPOSAL, topic_id=UUID(int=99)), E.INCONSISTENT_TOPIC_ID),
        (2, PROPOSAL, E.FENCED_LEADER_EPOCH),
        (1, replace(PROPOSAL, leader_epoch=4), E.FENCED_LEADER_EPOCH),
        (1, replace(PROPOSAL, leader_epoch=6), E.FENCED_LEADER_EPOCH),
        (1, replace(PROPOSAL, isr_version=0), E.INVALID_UPDATE_VERSION),
        (1, replace(PROPOSAL, isr_version=2), E.INVALID_UPDATE_VERSION),
        (1, replace(PROPOSAL, isr=(2, 3), broker_epochs=(2, 3)), E.INVALID_REQUEST),
        (1, replace(PROPOSAL, isr=(1, 1), broker_epochs=(1, 1)), E.INVALID_REQUEST),
        (1, replace(PROPOSAL, isr=(), broker_epochs=()), E.INVALID_REQUEST),
        (1, replace(PROPOSAL, isr=(1, 4), broker_epochs=(1, 3)), E.INVALID_REQUEST),
        (1, replace(PROPOSAL, broker_epochs=(1, 2)), E.INVALID_REQUEST),
        # 3 has registered again since the leader saw it fetch.
        (1, replace(PROPOSAL, broker_epochs=(1, 2, 2)), E.INELIGIBLE_REPLICA),
        (1, replace(PROPOSAL, broker_epochs=(1, 1, 3)), E.INELIGIBLE_REPLICA),
        # A leader need not have seen a member that stays, but must have seen one that joins.
        (1, replace(PROPOSAL, broker_epochs=(1, -1, 3)), E.NONE),
        (1, replace(PROPOSAL, broker_epochs=(1, 2, -1)), E.INELIGIBLE_REPLICA),
    ],
)
def test_the_checks(leader: int, proposal: Proposal, error: E) -> None:
    made = world()
    before = made.cluster.states.get(proposal.where)
    (outcome,) = made.do(alter_isr(made.cluster, leader, [proposal]))
    assert outcome.error is error
    if error is E.NONE:
        assert outcome.state is not None
        assert outcome.state.isr == list(proposal.isr)
        assert outcome.state.leader_epoch == 5
        assert outcome.isr_version == made.cluster.isr_version(T0) == 2
        assert made.cluster.states[T0] == outcome.state
    else:
        # The state that holds comes with the error: so a leader that missed an answer catches up.
        assert outcome.state == before
        assert made.cluster.states.get(proposal.where) == before


@pytest.mark.parametrize("condition", ["suspected", "shutting_down", "dead"])
def test_an_unfit_broker_does_not_join_but_may_stay(condition: str) -> None:
    made = world()
    if condition == "dead":
        del made.cluster.brokers[3]
    else:
        getattr(made.cluster, condition).update({2, 3})
    (outcome,) = alter_isr(made.cluster, 1, [PROPOSAL]).answer
    assert outcome.error is E.INELIGIBLE_REPLICA
    stays = replace(PROPOSAL, isr=(1, 2), broker_epochs=(1, 2))
    decision = alter_isr(made.cluster, 1, [stays])
    assert decision.answer == [Outcome(E.NONE, made.cluster.states[T0], 1)]
    assert decision.writes == ()


def test_a_rebuilt_replica_joins_when_its_broker_has_reported_it() -> None:
    made = world()
    made.cluster.broken.add((3, T0))
    (outcome,) = alter_isr(made.cluster, 1, [PROPOSAL]).answer
    assert outcome.error is E.INELIGIBLE_REPLICA, "in the ISR it would stay damaged for ever"
    made.cluster.broken.clear()
    (outcome,) = alter_isr(made.cluster, 1, [PROPOSAL]).answer
    assert outcome.error is E.NONE


def test_below_the_minimum_leaving_replicas_stay_eligible() -> None:
    made = world([1, 2, 3])
    alone = replace(PROPOSAL, isr=(1,), broker_epochs=(1,))
    (outcome,) = made.do(alter_isr(made.cluster, 1, [alone]))
    assert outcome.state.eligible_replicas == [2, 3]
    again = replace(PROPOSAL, isr=(1, 3), broker_epochs=(1, 3), isr_version=2)
    (outcome,) = made.do(alter_isr(made.cluster, 1, [again]))
    assert outcome.state.eligible_replicas == []


def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    made = world()
    made.do(alter_isr(made.cluster, 1, [PROPOSAL]))
    (outcome,) = made.do(alter_isr(made.cluster, 1, [PROPOSAL]))
    assert outcome.error is E.INVALID_UPDATE_VERSION
    assert (outcome.state.isr, outcome.isr_version) == ([1, 2, 3], 2)


def test_a_partition_named_twice_is_changed_once() -> None:
    made = world()
    outcomes = made.do(alter_isr(made.cluster, 1, [PROPOSAL, PROPOSAL]))
    assert [outcome.error for outcome in outcomes] == [E.NONE, E.INVALID_REQUEST]


def test_only_a_finished_handling_clears_flag_and_debt() -> None:
    made = world()
    debt = UncleanDebt(1, 5)
    history = msgspec.structs.replace(made.cluster.topic_histories["t"], unclean={0: debt, 1: debt})
    made.commit((Put(layout.topic_history("t"), history),))
    for where in (T0, T1):
        flagged = msgspec.structs.replace(made.cluster.states[where], is_unclean_leader=True)
        made.commit((put_state(made.cluster, where, flagged),))
    ordinary = replace(PROPOSAL, isr_version=2)
    (outcome,) = made.do(alter_isr(made.cluster, 1, [ordinary]))
    assert outcome.state.is_unclean_leader
    assert set(made.cluster.topic_histories["t"].unclean) == {0, 1}
    handled = replace(PROPOSAL, isr_version=3, unclean_handled=True)
    other = replace(handled, where=T1, isr_version=2, isr=(1, 2), broker_epochs=(1, 2))
    outcomes = made.do(alter_isr(made.cluster, 1, [handled, other]))
    assert [outcome.error for outcome in outcomes] == [E.NONE, E.NONE]
    assert not any(state.is_unclean_leader for state in made.cluster.states.values())
    assert made.cluster.topic_histories["t"].unclean == {}
