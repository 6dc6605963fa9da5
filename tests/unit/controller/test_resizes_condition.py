"""What the controller says of one topic's resize, to commands."""

from __future__ import annotations

import json

from tests.support.resizing_world import NOW_MS, ResizingWorld
from tidelog.client.admin.resizes import read_resize
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.resizes_condition import of_unaware_writers, resize_of
from tidelog.controller.decisions.unaware_writers import ON_RECORD
from tidelog.metadata import layout
from tidelog.metadata.records import DeletionMark


def shown(world: ResizingWorld, *silent: int) -> dict[str, object]:
    found = resize_of(world.cluster, "t", NOW_MS, lambda _name: set(silent))
    assert found is not None
    assert json.loads(json.dumps(found)) == found
    # The handler adds these two.
    read_resize({**found, "undone_in_ms": None, "last_undo": None})
    return found


def nobody(_name: str) -> set[int]:
    return set()


def test_a_topic_that_is_not_there_has_no_resize() -> None:
    world = ResizingWorld(2)
    assert resize_of(world.cluster, "u", NOW_MS, nobody) is None
    world.commit((Put(layout.deletion_mark("t"), DeletionMark()),))
    assert resize_of(world.cluster, "t", NOW_MS, nobody) is None


def test_a_plan_names_what_it_waits_for_and_whether_it_can_be_undone() -> None:
    world = ResizingWorld(2)
    assert shown(world)["plan"] is None
    world.ask(4)
    plan = shown(world)["plan"]
    assert isinstance(plan, dict)
    assert (plan["kind"], plan["from_count"], plan["to_count"]) == ("grow", 2, 4)
    assert (plan["missing"], plan["why"], plan["may_undo"]) == ([], None, True)
    plan = shown(world, 1, 99)["plan"]
    assert isinstance(plan, dict)
    assert plan["missing"] == []
    assert plan["why"].startswith("broker 1 did not respond"), "broker 99 has no replica of it"
    world.write_all()
    world.report([1])
    plan = shown(world)["plan"]
    assert isinstance(plan, dict)
    assert (plan["missing"], plan["missing_count"]) == ([0], 1)
    assert "fence of partition 0" in plan["why"]
    world.report()
    world.write_all()
    plan = shown(world)["plan"]
    assert isinstance(plan, dict)
    assert (plan["step"], plan["may_undo"]) == ("birth", True)
    world.settle()
    found = shown(world)
    assert (found["plan"], found["partition_count"], found["resize_epoch"]) == (None, 4, 1)
    assert found["initial_partition_count"] == 2


def test_writers_without_a_count_are_shown_by_the_brokers_that_saw_them() -> None:
    world = ResizingWorld(3)
    world.cluster.unaware[world.cluster.topic_id("t")] = {1: -1, 2: NOW_MS - 5_000}
    found = shown(world)
    assert found["unaware"] == [{"broker": 1, "ago_ms": None}, {"broker": 2, "ago_ms": 5_000}]
    assert found["unknown"] == [3]
    assert found["unaware_clients"] == []
    world.cluster.unaware_clients[world.cluster.topic_id("t")] = {2: ("b",), 1: ("a", "b")}
    assert shown(world)["unaware_clients"] == ["a", "b"]


def test_the_doctor_names_writers_without_a_count_of_topics_that_were_resized() -> None:
    world = ResizingWorld(2)
    topic_id = world.cluster.topic_id("t")
    world.cluster.unaware[topic_id] = {1: NOW_MS, 2: -1, 3: -1}
    assert list(of_unaware_writers(world.cluster)) == [], "its keys are in order still"
    assert world.ask(4) is None
    world.settle()
    world.cluster.unaware_clients[topic_id] = {1: ("rdkafka",)}
    world.cluster.misplaced[topic_id] = {1: 7}
    (found,) = of_unaware_writers(world.cluster)
    assert (found["kind"], found["level"]) == ("writers_without_count", "notice")
    assert "t (client ids: rdkafka), last seen by broker 1 at 1970-01-01T02:46:40Z" in found["what"]
    assert "7 records misplaced." in found["what"]
    world.cluster.unaware[topic_id] = {ON_RECORD: NOW_MS, 1: -1, 2: -1, 3: -1}
    (found,) = of_unaware_writers(world.cluster)
    assert "last seen before 1970-01-01T02:46:40Z, by a former controller" in found["what"]


def test_the_doctor_names_brokers_that_have_not_said_whether_such_writers_are_there() -> None:
    """Without that a topic that grew does not shrink: nothing else would say why."""
    world = ResizingWorld(2)
    assert list(of_unaware_writers(world.cluster)) == [], "a topic that never grew cannot shrink"
    assert world.ask(4) is None
    world.settle()
    topic_id = world.cluster.topic_id("t")
    world.cluster.unaware[topic_id] = {1: -1}
    (found,) = of_unaware_writers(world.cluster)
    assert (found["kind"], found["level"], found["brokers"]) == (
        "writers_unknown",
        "notice",
        [2, 3],
    )
    assert "t (brokers 2, 3)" in found["what"]
    world.cluster.unaware[topic_id] = {1: -1, 2: -1, 3: -1}
    assert list(of_unaware_writers(world.cluster)) == []
