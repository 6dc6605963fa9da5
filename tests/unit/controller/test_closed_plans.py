"""Whether the resizes under way can end without a broker that is silent (decision 0136)."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.resize_troubles import World, configured
from tidelog.controller.decisions import resizing, soft_state
from tidelog.controller.decisions.closed_plans import can_spare
from tidelog.controller.decisions.registration import replace_unfit
from tidelog.controller.decisions.resizing import Progress
from tidelog.controller.decisions.settlement import put_state
from tidelog.model.topics import TopicPartition

RING = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]


def growing(factor: int, minimum: int) -> World:
    """A topic of two partitions that grows to three, with the first two closed."""
    world = World(brokers=4, assignment=[x[:factor] for x in RING[:2]])
    configured(world, "t", "min.insync.replicas", str(minimum))
    assert world.ask(3, (RING[2][:factor],)) is None
    assert world.advance().progress is Progress.WROTE
    return world


def is_undone_without(world: World, broker: int) -> bool:
    """Suspect a broker, and let all others do what they can."""
    soft_state.suspect(world.cluster, {broker})
    world.do(replace_unfit(world.cluster))
    for _ in range(20):
        progress = world.advance().progress
        if progress in (Progress.UNDONE, Progress.PUBLISHED):
            return progress is Progress.UNDONE
        fit = world.cluster.fit
        world.report(x for x in world.missing() if world.state(x).leader in fit)
    raise AssertionError(world.plan)


@pytest.mark.parametrize(
    ("factor", "minimum", "spared"),
    [
        (1, 1, {4}),
        (2, 1, {1, 2, 3, 4}),
        (2, 2, {4}),
        (3, 2, {1, 2, 3, 4}),
        (3, 3, {4}),
    ],
)
@pytest.mark.parametrize("broker", [1, 2, 3, 4])
def test_a_broker_is_spared_if_the_resize_is_not_undone_without_it(
    factor: int, minimum: int, spared: set[int], broker: int
) -> None:
    world = growing(factor, minimum)
    assert can_spare(world.cluster, {broker}) == (broker in spared)
    assert is_undone_without(world, broker) == (broker not in spared)


def test_what_has_committed_already_needs_no_broker() -> None:
    world = growing(1, 1)
    assert not can_spare(world.cluster, {2})
    assert world.report([1])
    # The child is on broker 3, and partition 0 on broker 1.
    assert [can_spare(world.cluster, {x}) for x in (1, 2, 3)] == [False, True, False]
    world.settle()
    assert can_spare(world.cluster, {1, 2, 3}), "no resize is under way"


def test_a_replica_that_catches_up_or_is_damaged_does_not_count() -> None:
    world = growing(2, 1)
    tp = TopicPartition("t", 0)
    alone = msgspec.structs.replace(world.state(0), isr=[1])
    world.commit((put_state(world.cluster, tp, alone),))
    assert not can_spare(world.cluster, {1})
    assert not resizing.is_stuck(world.cluster, "t")
    other = growing(2, 1)
    other.cluster.broken.add((2, tp))
    assert not can_spare(other.cluster, {1})
