"""Elections, ISR changes and moves as text: each file of the three folders is one scenario.

The commands are those of `tests/support/partition_scenarios.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.partition_scenarios import play
from tidelog.controller.decisions import (
    elections,
    isr,
    moves,
    nodes,
    reassignments,
    returns,
    settlement,
    stops,
)
from tidelog.metadata.records import PartitionState
from tidelog.model.errors import ErrorCode

HERE = Path(__file__).parent
ELECTIONS = sorted((HERE / "election_scenarios").glob("*.txt"))
ISR_CHANGES = sorted((HERE / "isr_scenarios").glob("*.txt"))
MOVES = sorted((HERE / "move_scenarios").glob("*.txt"))
FILES = [*ELECTIONS, *ISR_CHANGES, *MOVES]


@pytest.mark.parametrize("file", FILES, ids=[f"{x.parent.name}/{x.stem}" for x in FILES])
def test_scenario(file: Path) -> None:
    wrong = play(file)
    assert wrong is None, wrong


def test_there_are_scenarios_of_every_kind() -> None:
    assert len(ELECTIONS) >= 20
    assert len(ISR_CHANGES) >= 10
    assert len(MOVES) >= 10


settle, with_isr, unclean = elections.settle, elections.with_isr, elections.unclean
cancelled, started, with_stops = moves.cancelled, moves.started, moves._with_stops
note_move = nodes._note_move
why_not, alter_isr = isr._why_not, isr.alter_isr


def always_allow_unclean(*args: Any) -> PartitionState:
    return settle(*args[:4], True)


def never_allow_unclean(*args: Any) -> PartitionState:
    return settle(*args[:4], False)


def ignore_new_incarnations(*args: Any) -> PartitionState:
    state, replicas, standing, *rule = args
    return settle(state, replicas, replace(standing, new_incarnation=None), *rule)


def elect_presumed_brokers(*args: Any) -> PartitionState:
    state, replicas, standing, *rule = args
    return settle(state, replicas, replace(standing, presumed=frozenset()), *rule)


def wait_for_nobody(*args: Any) -> PartitionState:
    state, replicas, standing, *rule = args
    return settle(state, replicas, replace(standing, registered=standing.fit), *rule)


def keep_the_epoch(*args: Any) -> PartitionState:
    return msgspec.structs.replace(settle(*args), leader_epoch=args[0].leader_epoch)


def forget_the_minimum(state: Any, members: Any, minimum: int, **changes: Any) -> PartitionState:
    return with_isr(state, members, 1, **changes)


def forget_the_flag(state: PartitionState, leader: int) -> PartitionState:
    return msgspec.structs.replace(unclean(state, leader), is_unclean_leader=False)


def count_eligible_at_the_minimum(state: PartitionState, minimum: int) -> list[int]:
    return state.eligible_replicas


def the_last_one_leads(state: Any, members: Any, ends: Any, broken: Any) -> PartitionState:
    return unclean(state, members[-1])


def with_proposal(**changes: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def wrong(cluster: Any, leader: int, proposal: Any) -> ErrorCode:
        new = {name: change(cluster, proposal) for name, change in changes.items()}
        return why_not(cluster, leader, replace(proposal, **new))

    return wrong


take_any_leader_epoch = with_proposal(leader_epoch=lambda c, p: c.states[p.where].leader_epoch)
take_any_version = with_proposal(isr_version=lambda c, p: c.isr_version(p.where))
take_any_topic_id = with_proposal(topic_id=lambda c, p: c.topic_id(p.where.topic))
take_any_broker_epoch = with_proposal(broker_epochs=lambda c, p: ())


def take_any_leader(cluster: Any, leader: int, proposal: Any) -> ErrorCode:
    state = cluster.states.get(proposal.where)
    return why_not(cluster, leader if state is None else state.leader, proposal)


def take_any_member(*_: Any) -> ErrorCode:
    return ErrorCode.NONE


def stop_before_the_shrink(cluster: Any, broker: int, where: Any) -> bool:
    return broker not in cluster.hosts(where)


def complete_with_one_missing(cluster: Any, where: Any, state: Any) -> None:
    note_move(cluster, where, state)
    if state is not None and set(state.target_replicas or ()).intersection(state.isr):
        cluster.arrived.add(where)


def forget_the_epoch_of_a_cancellation(now: Any) -> Any:
    after = cancelled(now)
    return replace(after, state=msgspec.structs.replace(after.state, leader_epoch=0))


def forget_the_epoch_of_a_start(now: Any, targets: Any) -> Any:
    after = started(now, targets)
    epoch = now.state.leader_epoch
    return replace(after, state=msgspec.structs.replace(after.state, leader_epoch=epoch))


def revert(now: Any) -> Any:
    after = cancelled(now)
    return replace(after, replicas=now.original or now.replicas, original=None)


def remember_the_second_change(now: Any, targets: Any) -> Any:
    return replace(started(now, targets), original=now.replicas)


def stop_with_an_older_epoch(after: Any, former: Any) -> Any:
    found = with_stops(after, former)
    return replace(found, stops={x: epoch - 1 for x, epoch in found.stops.items()})


def join_only_the_isr(replicas: Any, *_: Any) -> Any:
    return replicas


def keep_removed_members(state: PartitionState, replicas: Any) -> PartitionState:
    return state


@pytest.mark.parametrize(
    ("module", "rule", "planted"),
    [
        (settlement, "settle", always_allow_unclean),
        (settlement, "settle", never_allow_unclean),
        (settlement, "settle", ignore_new_incarnations),
        (settlement, "settle", elect_presumed_brokers),
        (settlement, "settle", wait_for_nobody),
        (settlement, "settle", keep_the_epoch),
        (elections, "with_isr", forget_the_minimum),
        (returns, "unclean", forget_the_flag),
        (elections, "eligible_now", count_eligible_at_the_minimum),
        (returns, "_longest", the_last_one_leads),
        (isr, "with_isr", forget_the_minimum),
        (isr, "_why_not", take_any_leader_epoch),
        (isr, "_why_not", take_any_version),
        (isr, "_why_not", take_any_topic_id),
        (isr, "_why_not", take_any_broker_epoch),
        (isr, "_why_not", take_any_leader),
        (isr, "_why_not_members", take_any_member),
        (stops, "_may_stop", stop_before_the_shrink),
        (nodes, "_note_move", complete_with_one_missing),
        (reassignments, "cancelled", forget_the_epoch_of_a_cancellation),
        (reassignments, "started", forget_the_epoch_of_a_start),
        (reassignments, "cancelled", revert),
        (reassignments, "started", remember_the_second_change),
        (moves, "_with_stops", stop_with_an_older_epoch),
        (isr, "with_joined", join_only_the_isr),
        (settlement, "within", keep_removed_members),
        (isr, "within", keep_removed_members),
        (moves, "within", keep_removed_members),
    ],
)
def test_planted_bugs_are_found(
    module: Any, rule: str, planted: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, rule, planted)

    def fails(file: Path) -> bool:
        try:
            return play(file) is not None
        except (AssertionError, KeyError):
            return True

    assert any(fails(file) for file in FILES), f"no scenario fails with {rule} replaced"
