"""The table of a resize, cell by cell: each state that a plan waits in, and each event there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.support.resizing_world import NOW_MS, ResizingWorld
from tidelog.controller.decisions import resizing
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.external_changes import changed, take_up
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.controller.decisions.registration import expire
from tidelog.controller.decisions.resize_requests import begun_again
from tidelog.controller.decisions.resizing import Progress, awaited
from tidelog.controller.decisions.settlement import put_state
from tidelog.metadata import layout
from tidelog.metadata.records import ResizeKind, ResizeStep
from tidelog.metadata.store import Set
from tidelog.model.topics import TopicPartition

GROW, SHRINK, UNDO, SAME = ResizeKind
FENCE, BIRTH, SEAL, REOPEN = ResizeStep
NONE, WROTE, WAITS, UNDONE, PUBLISHED, REMOVED = Progress

State = Callable[[], ResizingWorld]
Event = Callable[[ResizingWorld], Progress]


def waiting(kind: ResizeKind, step: ResizeStep) -> ResizingWorld:
    """A topic of four partitions whose plan has written a step, and of which 1 has not reported."""
    world = ResizingWorld(2, brokers=4)
    world.ask(4)
    world.settle()
    if kind is SAME:
        writes = begun_again(world.cluster, "t")
        assert isinstance(writes, list)
        world.commit(tuple(writes))
    else:
        world.ask(6 if kind is GROW else 3)
    world.write_all()
    while world.plan.step is not step:
        world.report()
        world.write_all()
    world.report(awaited(world.plan)[1:])
    assert world.plan.kind is kind
    return world


def growth_fences() -> ResizingWorld:
    return waiting(GROW, FENCE)


def growth_is_born() -> ResizingWorld:
    return waiting(GROW, BIRTH)


def shrink_seals() -> ResizingWorld:
    return waiting(SHRINK, SEAL)


def shrink_fences() -> ResizingWorld:
    return waiting(SHRINK, FENCE)


def same_fences() -> ResizingWorld:
    return waiting(SAME, FENCE)


def undone() -> ResizingWorld:
    """The undo has begun, and nothing is raised yet."""
    world = shrink_fences()
    world.advance(is_late=True)
    return world


def published() -> ResizingWorld:
    world = same_fences()
    world.report()
    world.advance()
    return world


def last_report(world: ResizingWorld) -> Progress:
    world.report()
    return world.advance().progress


def nothing(world: ResizingWorld) -> Progress:
    """A broker answers a LeaderAndIsr: the plan waits for no answer."""
    return world.advance().progress


def late(world: ResizingWorld) -> Progress:
    return world.advance(is_late=True).progress


def every_leader_dies(world: ResizingWorld) -> Progress:
    for broker in (1, 2, 3):
        world.do(expire(world.cluster, [broker]))
    return world.advance().progress


def every_disk_is_full(world: ResizingWorld) -> Progress:
    for broker in (1, 2, 3, 4):
        world.fill_disk(broker)
    return world.advance().progress


def every_leader_is_suspected(world: ResizingWorld) -> Progress:
    """With no other replica in sync: otherwise that one leads."""
    world.cluster.suspected |= {1, 2, 3, 4}
    return world.advance().progress


def a_leader_dies_and_its_successor_reports(world: ResizingWorld) -> Progress:
    dead = world.state(0).leader
    world.do(expire(world.cluster, [dead]))
    world.report()
    return world.advance().progress


def controller_dies_and_all_report(world: ResizingWorld) -> Progress:
    world.next_controller()
    world.report()
    return world.advance().progress


def controller_dies(world: ResizingWorld) -> Progress:
    world.next_controller()
    return world.advance().progress


def an_old_report(world: ResizingWorld) -> Progress:
    world.report(resize_epoch=world.plan.resize_epoch - 1)
    return world.advance().progress


def unclean_election_after_all_reports(world: ResizingWorld) -> Progress:
    world.report()
    index = next(iter(awaited(world.plan)), 0)
    state = world.state(index)
    changed_state = msgspec.structs.replace(
        state, leader_epoch=state.leader_epoch + 1, is_unclean_leader=True
    )
    world.commit((put_state(world.cluster, TopicPartition("t", index), changed_state),))
    return world.advance().progress


def deletion(world: ResizingWorld) -> Progress:
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    assert not world.cluster.resizing
    return world.advance().progress


def requests(world: ResizingWorld) -> Progress:
    """Another count, and a reassignment: both are refused, and change nothing; the count of the
    plan itself joins the resize."""
    before, plan = world.history, world.plan
    joined = plan.to_count if plan.kind in (GROW, SHRINK) else None
    for count in (3, 6, 8):
        assert (world.ask(count) is None) == (count == joined)
    ((_, refusal),) = reassign(world.cluster, [Asked(TopicPartition("t", 0), (3,))]).answer
    assert refusal is not None
    assert world.history == before
    return world.advance().progress


def external_write(world: ResizingWorld) -> Progress:
    """A tool writes a count: the node is put back."""
    before, path = world.cluster.topics["t"], layout.topic("t")
    written = msgspec.structs.replace(before, undeleted_partition_count=2)
    assert world.tree.apply(world.session, [Set(path, layout.encode(written))]) is None
    found = changed(world.cluster, {path: world.nodes()[path]})
    decision = take_up(world.cluster, found, world.chance, deletes=True, now_ms=NOW_MS)
    assert world.do(decision).errors
    assert world.cluster.topics["t"] == before
    return world.advance().progress


def known(world: ResizingWorld) -> Progress:
    return world.advance(is_known=True).progress


STATES: tuple[State, ...] = (
    growth_fences,
    growth_is_born,
    shrink_seals,
    shrink_fences,
    same_fences,
    undone,
    published,
)
TABLE: tuple[tuple[Event, tuple[Progress, ...]], ...] = (
    (last_report, (WROTE, PUBLISHED, WROTE, PUBLISHED, PUBLISHED, PUBLISHED, WAITS)),
    (nothing, (WAITS, WAITS, WAITS, WAITS, WAITS, PUBLISHED, WAITS)),
    (late, (UNDONE, UNDONE, UNDONE, UNDONE, UNDONE, PUBLISHED, WAITS)),
    # Partition 3, whose seal is awaited, has a successor; the others have none.
    (every_leader_dies, (UNDONE, UNDONE, WAITS, UNDONE, UNDONE, PUBLISHED, WAITS)),
    (every_disk_is_full, (UNDONE, UNDONE, UNDONE, UNDONE, UNDONE, PUBLISHED, WAITS)),
    (every_leader_is_suspected, (UNDONE, UNDONE, UNDONE, UNDONE, UNDONE, PUBLISHED, WAITS)),
    (
        a_leader_dies_and_its_successor_reports,
        (WROTE, PUBLISHED, WROTE, PUBLISHED, PUBLISHED, PUBLISHED, WAITS),
    ),
    (controller_dies, (WAITS, WAITS, WAITS, WAITS, WAITS, PUBLISHED, WAITS)),
    (
        controller_dies_and_all_report,
        (WROTE, PUBLISHED, WROTE, PUBLISHED, PUBLISHED, PUBLISHED, WAITS),
    ),
    (an_old_report, (WAITS, WAITS, WAITS, WAITS, WAITS, PUBLISHED, WAITS)),
    (
        unclean_election_after_all_reports,
        (WAITS, WAITS, WAITS, WAITS, WAITS, PUBLISHED, WAITS),
    ),
    (deletion, (NONE,) * 7),
    (requests, (WAITS, WAITS, WAITS, WAITS, WAITS, PUBLISHED, WAITS)),
    (external_write, (WAITS, WAITS, WAITS, WAITS, WAITS, PUBLISHED, WAITS)),
    (known, (WAITS, WAITS, WAITS, WAITS, WAITS, PUBLISHED, REMOVED)),
)


@pytest.mark.parametrize(
    ("state", "event", "progress"),
    [
        pytest.param(state, event, progress, id=f"{state.__name__}-{event.__name__}")
        for event, row in TABLE
        for state, progress in zip(STATES, row, strict=True)
    ],
)
def test_each_event_in_each_state(state: State, event: Event, progress: Progress) -> None:
    assert event(state()) is progress


@pytest.mark.parametrize("state", STATES)
def test_whatever_waits_ends_when_all_leaders_report(state: State) -> None:
    world = state()
    world.settle()
    assert not world.cluster.resizing


def half_written(kind: ResizeKind) -> ResizingWorld:
    world = ResizingWorld(2)
    world.ask(4)
    world.settle()
    if kind is SAME:
        writes = begun_again(world.cluster, "t")
        assert isinstance(writes, list)
        world.commit(tuple(writes))
    else:
        world.ask(6 if kind is GROW else 2)
    assert world.advance().progress is WROTE
    return world


@pytest.mark.parametrize("kind", [GROW, SHRINK, SAME])
@pytest.mark.parametrize(("is_late", "progress"), [(False, WROTE), (True, UNDONE)])
def test_a_step_that_is_half_written_goes_on_or_is_undone(
    kind: ResizeKind, is_late: bool, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "WRITES_AT_ONCE", 1)
    world = half_written(kind)
    assert world.advance(is_late=is_late).progress is progress
    world.settle()
    expected = 4 if is_late or kind is SAME else 6 if kind is GROW else 2
    assert world.shown[0] == expected
