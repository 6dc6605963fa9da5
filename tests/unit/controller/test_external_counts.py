"""Partition counts that another program writes at level 1.5 (KIP-253)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.support.resizing_world import NOW_MS, ResizingWorld
from tidelog.controller.decisions.cluster import LogEnd
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.external_changes import Taken, changed, take_up
from tidelog.metadata import layout
from tidelog.metadata.records import ResizeKind, TopicNode
from tidelog.metadata.store import Set
from tidelog.model.topics import TopicPartition

Change = Callable[[TopicNode], TopicNode]


def outside(world: ResizingWorld, change: Change, *, seen: bool = True) -> Taken:
    """A tool writes the topic's node; ``seen``: a controller is active."""
    path = layout.topic("t")
    written = layout.encode(change(world.cluster.topics["t"]))
    assert world.tree.apply(world.session, [Set(path, written)]) is None
    if not seen:
        return Taken()
    found = changed(world.cluster, {path: world.nodes()[path]})
    taken: Taken = world.do(
        take_up(world.cluster, found, world.chance, deletes=True, now_ms=NOW_MS)
    )
    return taken


def wider(*replicas: list[int]) -> Change:
    def change(node: TopicNode) -> TopicNode:
        start = len(node.partitions)
        more = {start + offset: brokers for offset, brokers in enumerate(replicas)}
        # As an old tool writes it: without our fields.
        return TopicNode({**node.partitions, **more})

    return change


def smaller(count: int) -> Change:
    return lambda node: msgspec.structs.replace(node, undeleted_partition_count=count)


def test_more_partitions_are_a_growth() -> None:
    world = ResizingWorld(2)
    taken = outside(world, wider([2, 3], [3, 1]))
    assert taken.errors == []
    assert "/brokers/topics/t was rewritten: the topic gets 4 partitions" in taken.notes
    assert (world.plan.kind, world.plan.to_count) == (ResizeKind.GROW, 4)
    assert world.shown == (2, 0, 2)
    world.settle()
    assert world.shown == (4, 1, 4)
    assert world.cluster.replicas(TopicPartition("t", 3)) == [3, 1]


def test_a_smaller_count_is_a_shrink_that_writers_without_a_count_prevent() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.settle()
    before = world.cluster.topics["t"]
    (error,) = outside(world, smaller(3)).errors
    assert "the former node is restored" in error
    assert "has not said whether writers without a partition count are there" in error
    assert world.cluster.topics["t"] == before
    topic_id = world.cluster.topic_id("t")
    world.cluster.unaware[topic_id] = dict.fromkeys(world.cluster.brokers, -1)
    assert outside(world, smaller(3)).errors == []
    assert (world.plan.kind, world.plan.to_count) == (ResizeKind.SHRINK, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (wider([9]), "there is no live broker 9"),
        (wider([2]), "the same number of replicas"),
        (smaller(1), "the smallest count is 2"),
    ],
)
def test_a_refused_one_is_put_back_with_the_reason(change: Change, words: str) -> None:
    world = ResizingWorld(2)
    before = world.cluster.topics["t"]
    taken = outside(world, change)
    assert any(words in error for error in taken.errors), taken.errors
    assert world.cluster.topics["t"] == before
    assert world.history.resize is None


def test_another_request_during_a_resize_is_put_back() -> None:
    world = ResizingWorld(2)
    world.ask(4)
    before = world.cluster.topics["t"]
    (error,) = outside(world, wider([1, 2])).errors
    assert "from 2 to 4 partitions is under way" in error
    assert world.cluster.topics["t"] == before
    world.settle()
    assert world.shown == (4, 1, 4)


@pytest.mark.parametrize(
    "change",
    [
        smaller(7),
        lambda node: msgspec.structs.replace(node, initial_partition_count=4),
        lambda node: TopicNode(node.partitions),
    ],
)
def test_other_counts_are_restored(change: Change) -> None:
    world = ResizingWorld(2)
    world.ask(4)
    world.settle()
    before = world.cluster.topics["t"]
    assert outside(world, change).errors == []
    assert world.cluster.topics["t"] == before
    # The same, while no controller was active: the nodes of the partitions say the count.
    outside(world, change, seen=False)
    world.next_controller()
    world.do(complete(world.cluster, world.chance))
    assert world.cluster.topics["t"] == before


@pytest.mark.parametrize("count", [2, 4])
def test_partitions_added_without_a_controller_are_a_growth(count: int) -> None:
    world = ResizingWorld(2)
    if count > 2:
        world.ask(count)
        world.settle()
    epoch = world.history.resize_epoch
    outside(world, wider([2, 3]), seen=False)
    world.next_controller()
    # Not before its brokers have registered, and have no log of it: only our fields come back.
    world.cluster.presumed.add(3)
    world.do(complete(world.cluster, world.chance))
    assert world.cluster.topics["t"].undeleted_partition_count == count
    assert TopicPartition("t", count) not in world.cluster.states
    world.cluster.presumed.clear()
    key = world.cluster.topic_id("t"), count
    world.cluster.inventories[2] = {key: LogEnd(-1, 0, 0)}
    assert complete(world.cluster, world.chance).writes == ()
    world.cluster.inventories.clear()
    said = world.do(complete(world.cluster, world.chance))
    assert said == [f"/brokers/topics/t was rewritten: the topic gets {count + 1} partitions"]
    world.settle()
    assert world.shown == (count + 1, epoch + 1, count + 1)
    assert world.node(count).birth_epoch == epoch + 1


def test_a_refused_one_without_a_controller_is_put_back() -> None:
    world = ResizingWorld(2)
    before = world.cluster.topics["t"]
    outside(world, wider([2]), seen=False)
    world.next_controller()
    (said,) = world.do(complete(world.cluster, world.chance))
    assert "the same number of replicas" in said
    assert world.cluster.topics["t"] == before
