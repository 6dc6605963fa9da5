"""Every change of ``/admin/reassign_partitions`` in each state of its plan, and the end of rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions import reassignment_node, soft_state
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.external_changes import Taken, changed, take_up
from tidelog.controller.decisions.moves import Placement, completed, written
from tidelog.controller.decisions.nodes import load
from tidelog.controller.decisions.reassignment_node import PATH, brought_up_to_date, is_outdated
from tidelog.controller.decisions.reassignments import Asked, reassign
from tidelog.metadata import layout
from tidelog.metadata.records import WentBack
from tidelog.metadata.store import Create, Delete, Operation, Set
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = 40


def made() -> World:
    world = World(1, 2, 3, 4, 5)
    world.create(TopicToCreate("t", assignment=tuple((x, (1, 2)) for x in range(PARTITIONS))))
    return world


def row(where: TopicPartition, *replicas: int) -> dict[str, Any]:
    return {"topic": where.topic, "partition": where.partition, "replicas": list(replicas)}


def plan(*rows: Any, version: int = 1) -> bytes:
    return json.dumps({"version": version, "partitions": list(rows)}).encode()


def tool(world: World, operation: Operation) -> Taken:
    """Let a tool change the node; the controller takes the change up."""
    assert world.tree.apply(world.session, [operation]) is None
    found = changed(world.cluster, {PATH: world.nodes().get(PATH)})
    assert found
    taken: Taken = world.do(take_up(world.cluster, found, world.chance, True))
    return taken


def carried_out(world: World) -> list[str]:
    """Begin the rows that are due and bring the node up to date; the sentences about bad rows."""
    cluster = world.cluster
    sentences = list(cluster.plan.problems)
    cluster.plan.problems.clear()
    answers = world.do(reassignment_node.begin(cluster, list(reassignment_node.due(cluster))))
    soft_state.note_begun(cluster, answers)
    up_to_date(world)
    return sentences + [refusal.sentence for _, refusal in answers if refusal is not None]


def up_to_date(world: World) -> None:
    while is_outdated(world.cluster):
        world.do(brought_up_to_date(world.cluster))


def at_node(world: World) -> list[Any] | None:
    """The rows that stand in the node; None without a node."""
    node = world.nodes().get(PATH)
    found: list[Any] | None = None if node is None else json.loads(node.data)["partitions"]
    return found


def running() -> World:
    """A world in which a plan of two rows is under way."""
    world = made()
    tool(world, Create(PATH, plan(row(T0, 3, 4), row(T1, 4, 5))))
    assert carried_out(world) == []
    assert world.cluster.moves == {T0: [3, 4], T1: [4, 5]}
    return world


def move(world: World, where: TopicPartition, targets: tuple[int, ...] | None) -> None:
    ((_, refusal),) = world.do(reassign(world.cluster, [Asked(where, targets)]))
    assert refusal is None


def complete(world: World, where: TopicPartition) -> None:
    now = Placement.of(world.cluster, where)
    targets = now.state.target_replicas or []
    isr = list(dict.fromkeys((*now.state.isr, *targets)))
    now = replace(now, state=msgspec.structs.replace(now.state, isr=isr))
    world.commit(tuple(written(world.cluster, {where: completed(now, targets[0])})))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"{", "cannot be read"),
        (b'{"version":1,"partitions":7}', "cannot be read"),
        (b'{"partitions":' + b"[" * 100_000, "nested too deeply"),
        (plan(row(T0, 3), version=2), "its version is 2, and 1 is known"),
        (plan() + b" " * 900_000, "more than 900000"),
    ],
    ids=["cut", "no list", "deep", "newer", "huge"],
)
def test_a_node_that_cannot_be_read_is_removed_with_one_line(data: bytes, error: str) -> None:
    world = made()
    taken = tool(world, Create(PATH, data))
    assert len(taken.errors) == 1 and error in taken.errors[0] and PATH in taken.errors[0]
    assert at_node(world) is None and not world.cluster.damaged
    again = made()
    again.tree.apply(again.session, [Create(PATH, data)])
    load(again.cluster, again.nodes())
    up_to_date(again)
    assert at_node(again) is None, "the start of a controller"


@pytest.mark.parametrize("data", [b"", b" \n"])
def test_an_empty_node_waits_for_a_write(data: bytes) -> None:
    world = made()
    taken = tool(world, Create(PATH, data))
    assert (taken.errors, taken.notes, carried_out(world)) == ([], [], [])
    assert PATH in world.nodes()
    tool(world, Set(PATH, plan(row(T0, 3, 4))))
    assert carried_out(world) == [] and world.cluster.moves == {T0: [3, 4]}


@pytest.mark.parametrize(
    "data",
    [b"[]", b"\xff", plan("garbage"), plan(row(T0, 3, 4))],
    ids=["no object", "no text", "no row", "rows"],
)
def test_a_node_that_replaces_an_empty_one_at_once_is_noticed(data: bytes) -> None:
    """It has the version of the empty one, and neither has valid rows."""
    world = made()
    tool(world, Create(PATH, b""))
    assert world.tree.apply(world.session, [Delete(PATH)]) is None
    taken = tool(world, Create(PATH, data))
    named = [*taken.errors, *world.cluster.plan.problems]
    assert bool(named) == (data != plan(row(T0, 3, 4)))
    carried_out(world)
    assert (at_node(world) is None) == bool(named)
    assert bool(world.cluster.moves) == (not named)


def test_each_invalid_row_is_named_and_the_others_go_on() -> None:
    world = made()
    rows = (
        row(T0, 3, 4),
        {"topic": "t", "partition": "x", "replicas": [3]},
        7,
        {"topic": "t", "partition": 2, "replicas": None},
        row(TopicPartition("t", 3), 4, 5),
        row(TopicPartition("t", 3), 5, 4),
        row(TopicPartition("nope", 0), 3),
        row(TopicPartition("t", 99), 3),
        row(TopicPartition("t", 4)),
        row(TopicPartition("t", 5), 3, 9),
        row(TopicPartition("t", 6), -1),
        row(TopicPartition("t", 7), 3, 3),
        row(T1, 1, 2),
        {**row(TopicPartition("t", 8), 5), "log_dirs": ["any"]},
    )
    tool(world, Create(PATH, plan(*rows)))
    sentences = carried_out(world)
    named = [
        "Row 1 is no reassignment: Expected `int`, got `str` - at `$.partition`.",
        "Row 2 is no reassignment",
        "Row 3 is no reassignment",
        "t-3 is named more than once",
        "no topic nope",
        "it is empty",
        "no broker 9",
        "-1 is no broker id",
        "named twice",
        "no partition t-99",
    ]
    for words in named:
        assert sum(words in sentence for sentence in sentences) == 1, (words, sentences)
    assert len(sentences) == len(named)
    assert world.cluster.moves == {T0: [3, 4], TopicPartition("t", 8): [5]}
    assert at_node(world) == [row(T0, 3, 4), row(TopicPartition("t", 8), 5)]


@pytest.mark.parametrize("rows", [(), (7,), (row(T0, 1, 2),), (row(T0, 9),)])
def test_a_plan_without_work_is_removed(rows: tuple[Any, ...]) -> None:
    world = made()
    tool(world, Create(PATH, plan(*rows)))
    carried_out(world)
    assert at_node(world) is None and world.cluster.moves == {}


@pytest.mark.parametrize("data", [plan(row(T0, 5)), plan(), b"", b"{", plan(row(T1, 4, 5))])
def test_a_second_write_is_ignored_and_the_first_plan_written_back(data: bytes) -> None:
    world = running()
    taken = tool(world, Set(PATH, data))
    assert len(taken.errors) == 1 and "second write" in taken.errors[0]
    assert carried_out(world) == [] and not world.cluster.damaged
    assert world.cluster.moves == {T0: [3, 4], T1: [4, 5]}
    assert at_node(world) == [row(T0, 3, 4), row(T1, 4, 5)]


def test_a_node_that_replaced_the_first_one_with_its_version_is_noticed() -> None:
    world = running()
    world.tree.apply(world.session, [Delete(PATH, -1)])
    taken = tool(world, Create(PATH, plan(row(T0, 5))))
    assert "second write" in taken.errors[0]
    assert at_node(world) == [row(T0, 3, 4), row(T1, 4, 5)]


def test_the_removal_of_the_node_cancels_nothing_and_the_next_plan_is_taken() -> None:
    world = running()
    taken = tool(world, Delete(PATH, -1))
    assert any("its reassignments go on" in line for line in taken.notes)
    assert world.cluster.moves == {T0: [3, 4], T1: [4, 5]}
    tool(world, Create(PATH, plan(row(T0, 5))))
    carried_out(world)
    assert world.cluster.moves == {T0: [5], T1: [4, 5]}


ENDS: dict[str, Callable[[World], None]] = {
    "completed": lambda world: complete(world, T0),
    "cancelled": lambda world: move(world, T0, None),
    "replaced": lambda world: move(world, T0, (5,)),
    "back to R": lambda world: move(world, T0, (1, 2)),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_row_leaves_when_its_work_is_over_and_the_node_with_the_last(end: str) -> None:
    world = running()
    ENDS[end](world)
    up_to_date(world)
    assert at_node(world) == [row(T1, 4, 5)]
    complete(world, T1)
    up_to_date(world)
    assert at_node(world) is None


def test_the_deletion_of_a_topic_ends_its_rows() -> None:
    world = running()
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    up_to_date(world)
    assert at_node(world) is None


def test_a_mark_ends_the_rows_of_a_topic_that_stays_until_all_brokers_confirmed() -> None:
    """Below level 1.4, where a dead broker would hold the node, and no other plan could begin."""
    world = running()
    world.create(TopicToCreate("u", assignment=((0, (1, 2)),)))
    u0 = TopicPartition("u", 0)
    world.cluster.level = level_of("1.3")
    tool(world, Delete(PATH, -1))
    tool(world, Create(PATH, plan(row(T0, 3, 4), row(u0, 3))))
    assert carried_out(world) == []
    world.do(delete_topics(world.cluster, [PendingDelete("t")]))
    # The next change of the partition does not bring the row back.
    state = world.cluster.states[T0]
    world.commit((Put(layout.state(*T0), msgspec.structs.replace(state, isr=[1])),))
    decision = brought_up_to_date(world.cluster)
    assert decision.answer == [f"1 rows of {PATH} end: the topic t is being deleted"]
    up_to_date(world)
    assert at_node(world) == [row(u0, 3)]
    complete(world, u0)
    up_to_date(world)
    assert at_node(world) is None
    tool(world, Create(PATH, plan(row(T1, 3), row(u0, 1))))
    assert carried_out(world) == ["The topic t is being deleted."]
    assert at_node(world) == [row(u0, 1)]


def test_a_mark_that_is_taken_back_ends_no_row() -> None:
    """``delete.topic.enable`` is false: the controller removes the mark of another program."""
    world = running()
    mark = layout.deletion_mark("t")
    assert world.tree.apply(world.session, [Create(mark, b"")]) is None
    found = changed(world.cluster, {mark: world.nodes().get(mark)})
    world.do(take_up(world.cluster, found, world.chance, False))
    assert world.cluster.marked == set() and not is_outdated(world.cluster)
    complete(world, T0)
    up_to_date(world)
    assert at_node(world) == [row(T1, 4, 5)]


def test_completed_rows_leave_by_the_sixteenth_and_one_that_moves_on_at_once() -> None:
    world = made()
    places = [TopicPartition("t", index) for index in range(PARTITIONS)]
    tool(world, Create(PATH, plan(*(row(where, 3, 4) for where in places))))
    carried_out(world)
    sizes = []
    for where in places[:4]:
        complete(world, where)
        up_to_date(world)
        sizes.append(len(at_node(world) or ()))
    # 3 of 40 are a sixteenth, 1 of 40 is none.
    assert sizes == [40, 40, 37, 37]
    # Otherwise the next controller would undo what another program asked for later.
    move(world, places[3], (1, 2))
    up_to_date(world)
    assert row(places[3], 3, 4) not in (at_node(world) or ())


def test_at_the_start_of_a_controller_the_node_wins_over_the_states() -> None:
    world = made()
    move(world, T0, (5,))
    world.tree.apply(world.session, [Create(PATH, plan(row(T0, 3, 4), row(T1, 1, 2)))])
    world.cluster = ClusterState(brokers=world.cluster.brokers)
    load(world.cluster, world.nodes())
    assert world.cluster.plan.due == {T0, T1}
    assert not is_outdated(world.cluster), "nothing leaves the node before it was tried"
    assert carried_out(world) == []
    assert world.cluster.moves == {T0: [3, 4]}
    assert world.cluster.topic_histories["t"].original_replicas == {0: [1, 2]}
    complete(world, T0)
    up_to_date(world)
    assert at_node(world) is None


def test_a_store_that_went_back_keeps_the_node() -> None:
    world = running()
    world.cluster.went_back = WentBack("it did").sentence
    world.cluster.plan.ended.add(T0)
    assert not is_outdated(world.cluster)
    assert brought_up_to_date(world.cluster).writes == ()


def test_a_row_that_left_the_plan_before_its_slice_is_not_begun() -> None:
    world = made()
    tool(world, Create(PATH, plan(row(T0, 3, 4), row(T1, 4, 5))))
    asked = list(reassignment_node.due(world.cluster))
    world.cluster.plan.due.discard(T0)
    decision = reassignment_node.begin(world.cluster, asked)
    assert [where for where, _ in decision.answer] == [T1]


def test_a_row_that_a_later_plan_replaced_before_its_slice_begins_with_its_new_targets() -> None:
    world = made()
    tool(world, Create(PATH, plan(row(T0, 3, 4))))
    former = list(reassignment_node.due(world.cluster))
    tool(world, Delete(PATH))
    tool(world, Create(PATH, plan(row(T0, 4, 5))))
    assert reassignment_node.begin(world.cluster, former).answer == []
    world.do(reassignment_node.begin(world.cluster, list(reassignment_node.due(world.cluster))))
    assert world.cluster.moves[T0] == [4, 5]
