"""A resize closes no partition before the brokers of its replicas have responded (0108)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.support.resizing_world import ResizingWorld
from tidelog.controller.decisions import resizing, soft_state
from tidelog.controller.decisions.registration import replace_unfit
from tidelog.controller.decisions.resize_beginnings import held_up, is_unbegun
from tidelog.controller.decisions.resize_requests import begun_again
from tidelog.controller.decisions.resize_sentences import why_undone
from tidelog.controller.decisions.resizing import Progress, waits
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.pending import changes_of
from tidelog.metadata.records import PartitionState
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

COUNT = 4
BORN = ((1, 2), (2, 1))
"""The brokers of two children of a growth."""


def placed(factor: int = 2) -> ResizingWorld:
    """A topic of four partitions: broker 1 leads 0 and 3, 2 leads 1, 3 leads 2; 4 and 5 have no
    replica."""
    assignment = [(1, 2), (2, 3), (3, 1), (1, 2)]
    world = ResizingWorld(brokers=5, assignment=[x[:factor] for x in assignment[:2]])
    assert world.ask(COUNT, tuple(x[:factor] for x in assignment[2:])) is None
    world.settle()
    return world


def growth(world: ResizingWorld) -> None:
    factor = len(world.cluster.replicas(TopicPartition("t", 0)))
    assert world.ask(COUNT + 2, tuple(x[:factor] for x in BORN)) is None


def shrink(world: ResizingWorld) -> None:
    assert world.ask(COUNT - 1) is None


def same(world: ResizingWorld) -> None:
    writes = begun_again(world.cluster, "t")
    assert isinstance(writes, list)
    world.commit(tuple(writes))


KINDS = pytest.mark.parametrize("begin", [growth, shrink, same])

Begin = Callable[[ResizingWorld], None]


def states(world: ResizingWorld) -> dict[TopicPartition, PartitionState]:
    return dict(world.cluster.states)


@KINDS
@pytest.mark.parametrize("silent", [{1}, {2}, {3}, {1, 2, 3}])
def test_nothing_is_closed_while_a_leader_or_follower_is_silent(
    begin: Begin, silent: set[int]
) -> None:
    world = placed()
    begin(world)
    before, plan = states(world), world.plan
    assert waits(world.cluster, "t", is_late=False, is_known=False, silent=silent)
    assert world.advance(silent=silent).progress is Progress.WAITS
    assert (states(world), world.plan) == (before, plan)
    # It goes on as soon as they have responded.
    assert not waits(world.cluster, "t", is_late=False, is_known=False)
    assert world.advance().progress is Progress.WROTE
    assert states(world) != before


@KINDS
def test_a_silent_broker_without_a_replica_holds_up_nothing(begin: Begin) -> None:
    world = placed()
    begin(world)
    assert not waits(world.cluster, "t", is_late=False, is_known=False, silent={4, 5})
    assert world.advance(silent={4, 5}).progress is Progress.WROTE


def test_a_follower_that_has_left_the_isr_holds_up_nothing() -> None:
    world = placed()
    for index in range(COUNT):
        state = msgspec.structs.replace(world.state(index), isr=[world.state(index).leader])
        world.commit((put_state(world.cluster, TopicPartition("t", index), state),))
    growth(world)
    assert held_up(world.cluster, "t", world.plan, {2}) == {
        1: {2},
        # Children are on brokers 1 and 2.
        4: {2},
        5: {2},
    }


def test_the_broker_of_a_child_alone_is_waited_for() -> None:
    world = placed()
    assert world.ask(COUNT + 2, ((1, 4), (4, 1))) is None
    assert world.advance(silent={4}) == resizing.Advanced(Progress.WAITS, (4, 5))
    assert world.advance(silent={5}).progress is Progress.WROTE


def test_a_shrink_waits_for_the_survivors_too_although_the_seals_come_first() -> None:
    world = placed()
    shrink(world)
    assert held_up(world.cluster, "t", world.plan, {3}) == {1: {3}, 2: {3}}
    assert world.advance(silent={3}).progress is Progress.WAITS


@KINDS
def test_once_a_partition_is_closed_a_silence_changes_nothing(begin: Begin) -> None:
    world = placed()
    begin(world)
    everybody = {1, 2, 3, 4, 5}
    assert world.advance().progress is Progress.WROTE
    assert not is_unbegun(world.plan)
    while world.history.resize is not None:
        if world.advance(silent=everybody, is_known=True).progress is Progress.WAITS:
            assert world.report()
    assert world.shown[1] == 2


def test_an_undo_waits_for_no_broker() -> None:
    world = placed()
    growth(world)
    assert world.advance(is_late=True).progress is Progress.UNDONE
    assert world.advance(silent={1, 2, 3}).progress is Progress.PUBLISHED


def test_a_broker_that_stays_silent_ends_the_resize_in_time_and_is_named() -> None:
    world = placed()
    growth(world)
    plan, closed = world.plan, states(world)
    assert world.advance(silent={2, 3}).progress is Progress.WAITS
    undone = world.advance(silent={2, 3}, is_late=True)
    assert (undone.progress, undone.brokers) == (Progress.UNDONE, (2, 3))
    assert states(world) == closed
    refusal = why_undone("t", plan, undone, 10_000)
    assert refusal.error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert refusal.sentence == (
        "The resize of the topic t to 6 partitions was undone, because brokers 2, 3 did not "
        "respond, and no partition is closed before that. It has 4 partitions as before: see why "
        "not (their logs, tidelog doctor), then send the request again."
    )
    world.settle()
    # They respond, and the same request succeeds.
    growth(world)
    world.settle()
    assert world.shown[0] == COUNT + 2


def test_a_silent_broker_that_is_suspected_leaves_and_the_resize_goes_on() -> None:
    world = placed()
    growth(world)
    assert world.advance(silent={3}).progress is Progress.WAITS
    soft_state.suspect(world.cluster, {3})
    world.do(replace_unfit(world.cluster))
    assert 3 not in world.cluster.fit
    assert all(3 not in (x.leader, *x.isr) for x in states(world).values())
    assert world.advance().progress is Progress.WROTE


@KINDS
def test_an_obstacle_that_comes_meanwhile_undoes_it_before_anything_is_closed(begin: Begin) -> None:
    """Of a survivor, too, for which the seals of a shrink do not wait."""
    world = placed(factor=1)
    begin(world)
    epochs = [world.state(index).leader_epoch for index in range(COUNT)]
    assert world.advance(silent={2}).progress is Progress.WAITS
    assert not resizing.is_stuck(world.cluster, "t")
    soft_state.suspect(world.cluster, {2})
    world.do(replace_unfit(world.cluster))
    assert resizing.is_stuck(world.cluster, "t")
    undone = world.advance()
    assert undone.progress is Progress.UNDONE
    assert undone.obstacle is not None
    assert "t-1 has no live leader" in undone.obstacle.what
    assert [world.state(index).leader_epoch for index in range(COUNT)] == epochs


@KINDS
def test_brokers_are_sent_a_request_when_a_plan_comes_and_none_for_its_next_steps(
    begin: Begin,
) -> None:
    world = placed()
    found = []
    commit = world.commit

    def noted(writes: tuple[object, ...]) -> None:
        found.append(changes_of(world.cluster, writes).brokers)  # type: ignore[arg-type]
        commit(writes)  # type: ignore[arg-type]

    world.commit = noted  # type: ignore[method-assign, assignment]
    begin(world)
    assert found == [True]
    found.clear()
    world.settle()
    assert found
    assert not any(found)
