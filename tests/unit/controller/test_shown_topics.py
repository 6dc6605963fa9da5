"""What clients see of a topic before, during and after a resize (KIP-253)."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.shown_topics import UNKNOWN, ShownTopic, shown_topic
from tidelog.controller.requests import Sender
from tidelog.metadata import layout
from tidelog.metadata.records import ResizeKind, ResizePlan, ResizeStep, TopicHistory, TopicNode
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition

GROW, SHRINK, UNDO, SAME = ResizeKind
FENCE, BIRTH, SEAL, REOPEN = ResizeStep


def topic(partitions: int, count: int) -> TopicNode:
    assigned = {index: [1] for index in range(partitions)}
    return TopicNode(assigned, initial_partition_count=2, undeleted_partition_count=count)


@pytest.mark.parametrize(
    ("node", "plan", "expected"),
    [
        # Four partitions at resize epoch 6, whatever comes next.
        (topic(4, 4), None, ShownTopic(2, 4, 6)),
        (topic(8, 8), ResizePlan(GROW, 4, 8, 7, FENCE), ShownTopic(2, 4, 6, 4)),
        (topic(8, 8), ResizePlan(GROW, 4, 8, 7, BIRTH), ShownTopic(2, 4, 6, 4)),
        (topic(4, 3), ResizePlan(SHRINK, 4, 3, 7, SEAL), ShownTopic(2, 4, 6)),
        (topic(8, 4), ResizePlan(UNDO, 8, 4, 8, REOPEN), ShownTopic(2, 4, 6, 4)),
        (topic(4, 4), ResizePlan(UNDO, 3, 4, 8, REOPEN), ShownTopic(2, 4, 6)),
        # A partition that retired before stays in sight: 5 to 4 to 3.
        (topic(5, 3), ResizePlan(SHRINK, 4, 3, 7, SEAL), ShownTopic(2, 4, 6)),
        (topic(4, 4), ResizePlan(SAME, 4, 4, 7, FENCE), ShownTopic(2, 4, 6)),
        # Published: all of it is seen at once.
        (topic(8, 8), ResizePlan(GROW, 4, 8, 7, BIRTH, published=True), ShownTopic(2, 8, 7)),
        (topic(4, 3), ResizePlan(SHRINK, 4, 3, 7, SEAL, published=True), ShownTopic(2, 3, 7)),
        (topic(4, 4), ResizePlan(UNDO, 8, 4, 8, REOPEN, published=True), ShownTopic(2, 4, 8)),
    ],
)
def test_clients_see_what_was_before_until_a_resize_is_published(
    node: TopicNode, plan: ResizePlan | None, expected: ShownTopic
) -> None:
    epoch = 6 if plan is None else plan.resize_epoch
    history = TopicHistory("id", 2, resize_epoch=epoch, resize=plan)
    assert shown_topic(node, history) == expected


def test_a_node_that_is_not_complete_has_no_counts() -> None:
    assert shown_topic(TopicNode({0: [1]}), None) == ShownTopic(UNKNOWN, UNKNOWN)


def growing(*, published: bool) -> World:
    """A topic that grows from 2 to 4: its children have replicas, and no nodes yet."""
    world = World(1, 2)
    world.create(TopicToCreate("t", 2, 2))
    cluster = world.cluster
    node = cluster.topics["t"]
    wider = {**node.partitions, 2: [1, 2], 3: [2, 1]}
    plan = ResizePlan(GROW, 2, 4, 1, FENCE, published)
    history = msgspec.structs.replace(cluster.topic_histories["t"], resize_epoch=1, resize=plan)
    world.commit(
        (
            Put(
                layout.topic("t"),
                msgspec.structs.replace(node, partitions=wider, undeleted_partition_count=4),
            ),
            Put(layout.topic_history("t"), history),
        )
    )
    return world


@pytest.mark.parametrize("published", [False, True])
def test_metadata_shows_the_children_of_a_growth_when_it_is_published(published: bool) -> None:
    cluster = growing(published=published).cluster
    places = [TopicPartition("t", index) for index in range(4)]
    (state,) = requests.update_metadata(cluster, Sender(101, "P"), 1, places).topic_states
    shown = (
        state.initial_partition_count,
        state.undeleted_partition_count,
        state.resize_epoch,
        [each.partition_index for each in state.partition_states],
    )
    assert shown == ((2, 4, 1, [0, 1, 2, 3]) if published else (2, 2, 0, [0, 1]))


def test_a_registration_makes_no_child_of_a_growth() -> None:
    world = growing(published=False)
    assert complete(world.cluster, world.chance).writes == ()
    # The control: without a plan, below level 1.5, the new partitions are those that a tool wrote.
    world.cluster.level = level_of("1.4")
    history = world.cluster.topic_histories["t"]
    world.commit((Put(layout.topic_history("t"), msgspec.structs.replace(history, resize=None)),))
    said = complete(world.cluster, world.chance).answer
    assert said == ["partitions [2, 3] of the topic t are new"]
