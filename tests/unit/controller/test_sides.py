"""The count and resize epoch of each partition at every point of a resize (KIP-253)."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.controller_world import World
from tidelog.controller import requests
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put
from tidelog.controller.decisions.sides import Side, Sides, common_side, undone
from tidelog.controller.pending import Changes, changes_of
from tidelog.controller.requests import Sender
from tidelog.metadata import layout
from tidelog.metadata.records import (
    PartitionNode,
    PartitionState,
    ResizeKind,
    ResizePlan,
    ResizeStep,
    TopicHistory,
    TopicNode,
)
from tidelog.model.levels import level_of
from tidelog.model.topics import TopicPartition

GROW, SHRINK, UNDO, SAME = ResizeKind
FENCE, BIRTH, SEAL, REOPEN = ResizeStep
SENDER = Sender(101, "PLAINTEXT")


def places(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", index) for index in range(count)]


def sides(
    partitions: int,
    count: int,
    plan: ResizePlan | None,
    retired: dict[int, int] | None = None,
    epoch: int = 6,
) -> list[tuple[int, int] | None]:
    """Return (count, resize epoch) of each partition, None of one that is not born."""
    node = TopicNode({index: [1] for index in range(partitions)}, undeleted_partition_count=count)
    history = TopicHistory("id", 2, resize_epoch=plan.resize_epoch if plan else epoch, resize=plan)
    born = partitions
    if plan is not None and plan.kind is GROW:
        born = plan.from_count + (plan.cursor if plan.step is BIRTH else 0)
    nodes = {
        where: PartitionNode(
            where.partition, retirement_epoch=(retired or {}).get(where.partition, -1)
        )
        for where in places(born)
    }
    found = Sides("t", node, history, nodes)
    shown: list[tuple[int, int] | None] = []
    for index in range(partitions):
        side = found.of(index)
        is_born = found.is_born(index)
        shown.append((side.count, side.resize_epoch) if is_born else None)
    return shown


OLD, NEW = (4, 6), (8, 7)
SMALL = (3, 7)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (sides(4, 4, None), [OLD] * 4),
        # Retired: each keeps the count and the epoch of its own shrink (8 to 6 to 4).
        (
            sides(8, 4, None, {7: 3, 6: 3, 5: 6, 4: 6}),
            [OLD] * 4 + [(4, 6)] * 2 + [(6, 3)] * 2,
        ),
        # A growth: the cursor passes one partition after another, then children are born.
        (sides(8, 8, ResizePlan(GROW, 4, 8, 7, FENCE)), [OLD] * 4 + [None] * 4),
        (sides(8, 8, ResizePlan(GROW, 4, 8, 7, FENCE, cursor=1)), [NEW] + [OLD] * 3 + [None] * 4),
        (sides(8, 8, ResizePlan(GROW, 4, 8, 7, FENCE, cursor=4)), [NEW] * 4 + [None] * 4),
        (sides(8, 8, ResizePlan(GROW, 4, 8, 7, BIRTH, cursor=3)), [NEW] * 7 + [None]),
        (sides(8, 8, ResizePlan(GROW, 4, 8, 7, BIRTH, True, cursor=4)), [NEW] * 8),
        # A shrink: retirees first, survivors after all seals.
        (sides(4, 3, ResizePlan(SHRINK, 4, 3, 7, SEAL)), [OLD] * 4),
        (sides(4, 3, ResizePlan(SHRINK, 4, 3, 7, SEAL, cursor=1), {3: 7}), [OLD] * 3 + [SMALL]),
        (
            sides(4, 3, ResizePlan(SHRINK, 4, 3, 7, FENCE, cursor=2), {3: 7}),
            [SMALL] * 2 + [OLD] + [SMALL],
        ),
        (sides(4, 3, ResizePlan(SHRINK, 4, 3, 7, FENCE, cursor=4), {3: 7}), [SMALL] * 4),
        # A second shrink does not touch those that retired before.
        (
            sides(5, 3, ResizePlan(SHRINK, 4, 3, 7, SEAL, cursor=1), {4: 6, 3: 7}),
            [OLD] * 3 + [SMALL, (4, 6)],
        ),
        # The same count: only the epoch.
        (sides(4, 4, ResizePlan(SAME, 4, 4, 7, FENCE, cursor=1)), [(4, 7)] + [OLD] * 3),
        # The undo of a growth in the middle of its raises.
        (
            sides(
                4,
                4,
                ResizePlan(UNDO, 8, 4, 8, REOPEN, undone_step=FENCE, undone_cursor=2, cursor=1),
            ),
            [(4, 8), NEW, OLD, OLD],
        ),
        # The undo of a shrink: a retiree stays sealed until it is reopened.
        (
            sides(
                4,
                4,
                ResizePlan(UNDO, 3, 4, 8, REOPEN, undone_step=FENCE, undone_cursor=2, cursor=1),
                {3: 7},
            ),
            [(4, 8), SMALL, OLD, SMALL],
        ),
        (
            sides(
                4,
                4,
                ResizePlan(UNDO, 3, 4, 8, REOPEN, undone_step=FENCE, undone_cursor=2, cursor=4),
            ),
            [(4, 8)] * 4,
        ),
        (
            sides(4, 4, ResizePlan(UNDO, 4, 4, 8, REOPEN, undone_step=FENCE, undone_cursor=1)),
            [(4, 7)] + [OLD] * 3,
        ),
    ],
)
def test_the_side_of_a_partition_follows_from_the_nodes(
    found: list[tuple[int, int] | None], expected: list[tuple[int, int] | None]
) -> None:
    assert found == expected


@pytest.mark.parametrize(("to_count", "kind"), [(8, GROW), (3, SHRINK), (4, SAME)])
def test_an_undo_knows_what_it_undoes(to_count: int, kind: ResizeKind) -> None:
    plan = ResizePlan(UNDO, to_count, 4, 8, REOPEN, undone_step=FENCE, undone_cursor=2)
    assert undone(plan) == ResizePlan(kind, 4, to_count, 7, FENCE, cursor=2)


def world(level: str, plan: ResizePlan | None, **nodes: PartitionNode) -> World:
    """Topic t, once of 2 partitions, has 4; p0 and so on replace partition nodes.

    Without a plan its count is that of the partitions that are not retired.
    """
    made = World(1, 2)
    made.cluster.level = level_of(level)
    made.create(TopicToCreate("t", 4, 2))
    epoch = 3 if plan is None else plan.resize_epoch
    history = TopicHistory(
        made.cluster.topics["t"].topic_id or "", 2, resize_epoch=epoch, resize=plan
    )
    retired = sum(node.retirement_epoch >= 0 for node in nodes.values())
    count = 4 if plan is not None else 4 - retired
    counted = msgspec.structs.replace(made.cluster.topics["t"], undeleted_partition_count=count)
    made.commit(
        (
            Put(layout.topic("t"), counted),
            Put(layout.topic_history("t"), history),
            *(Put(layout.partition("t", int(name[1:])), node) for name, node in nodes.items()),
        )
    )
    return made


def test_leader_and_isr_has_an_entry_for_each_side() -> None:
    plan = ResizePlan(SAME, 4, 4, 3, FENCE, cursor=1)
    made = world("1.5", plan, p3=PartitionNode(9, birth_epoch=1, birth_offset=70))
    request = requests.leader_and_isr(made.cluster, SENDER, 1, places(4), requests.FULL)
    found = [
        (
            entry.undeleted_partition_count,
            entry.resize_epoch,
            [
                (x.partition_index, x.partition_epoch, x.birth_epoch, x.start_offset, x.sealed)
                for x in entry.partition_states
            ],
        )
        for entry in request.topic_states
    ]
    assert found == [
        (4, 3, [(0, 1, 0, -1, False)]),
        (4, 2, [(1, 2, 0, -1, False), (2, 3, 0, -1, False), (3, 9, 1, 70, False)]),
    ]


def test_a_retired_partition_comes_sealed_with_its_own_count_and_epoch() -> None:
    made = world("1.5", None, p3=PartitionNode(4, retirement_epoch=3))
    request = requests.leader_and_isr(made.cluster, SENDER, 1, places(4), requests.FULL)
    (topic,) = request.topic_states
    assert (topic.undeleted_partition_count, topic.resize_epoch) == (3, 3)
    assert [x.sealed for x in topic.partition_states] == [False, False, False, True]


@pytest.mark.parametrize("level", ["1.4", "1.5"])
def test_below_level_1_5_requests_have_no_counts_and_no_incarnations(level: str) -> None:
    made = world(level, None)
    made.commit((Put(layout.partition("t", 0), PartitionNode(8, birth_epoch=1)),))
    (topic,) = requests.leader_and_isr(
        made.cluster, SENDER, 1, places(4), requests.FULL
    ).topic_states
    shown = topic.undeleted_partition_count, topic.partition_states[0].partition_epoch
    assert shown == ((4, 8) if level == "1.5" else (-1, -1))
    (metadata,) = requests.update_metadata(made.cluster, SENDER, 1, places(4)).topic_states
    assert metadata.partition_states[0].partition_epoch == (8 if level == "1.5" else -1)


def test_no_broker_is_sent_a_child_before_its_birth() -> None:
    made = world("1.5", None)
    node = made.cluster.topics["t"]
    wider = {**node.partitions, 4: [1, 2], 5: [2, 1]}
    plan = ResizePlan(GROW, 4, 6, 4, BIRTH, cursor=1, leader_epochs=[0, 0, 0, 0])
    history = TopicHistory(node.topic_id or "", 2, resize_epoch=4, resize=plan)
    made.commit(
        (
            Put(layout.topic("t"), TopicNode(wider, 3, node.topic_id, {}, {}, 2, 6)),
            Put(layout.topic_history("t"), history),
            Put(layout.partition("t", 4), PartitionNode(5, birth_epoch=4)),
            Put(layout.state("t", 4), PartitionState(1, 0, 1, [1, 2])),
        )
    )
    (topic,) = requests.leader_and_isr(
        made.cluster, SENDER, 2, places(6), requests.FULL
    ).topic_states
    assert [x.partition_index for x in topic.partition_states] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("plan", "retirement"),
    [
        (None, 3),
        (ResizePlan(SHRINK, 4, 3, 3, SEAL, cursor=1), -1),
        (ResizePlan(SHRINK, 4, 3, 3, FENCE, published=True), 3),
        (ResizePlan(UNDO, 3, 4, 4, REOPEN, undone_step=SEAL, undone_cursor=1), -1),
    ],
)
def test_a_retirement_is_hidden_until_the_shrink_is_published(
    plan: ResizePlan | None, retirement: int
) -> None:
    node = PartitionNode(4, 1, {1: 5}, {1: 6}, birth_epoch=1, birth_offset=3, retirement_epoch=3)
    cluster = world("1.5", plan, p3=node).cluster
    request = requests.update_metadata(cluster, SENDER, 1, places(4))
    assert request.max_partition_epoch == 4
    shown = request.topic_states[0].partition_states[3]
    assert (shown.partition_epoch, shown.birth_epoch, shown.birth_offset) == (4, 1, 3)
    assert (shown.parent, shown.leader_epoch_after_creation) == (1, 5)
    assert shown.retirement_epoch == retirement
    expected = (1, 6) if retirement >= 0 else (-1, -1)
    assert (shown.survivor, shown.leader_epoch_before_deletion) == expected


def test_a_publication_concerns_all_partitions_and_another_step_none() -> None:
    plan = ResizePlan(SAME, 4, 4, 3, FENCE, cursor=4)
    made = world("1.5", plan)
    history = made.cluster.topic_histories["t"]

    def concerned(changed: ResizePlan | None) -> Changes:
        record = TopicHistory(history.topic_id, 2, resize_epoch=3, resize=changed)
        return changes_of(made.cluster, [Put(layout.topic_history("t"), record)])

    published = ResizePlan(SAME, 4, 4, 3, FENCE, True, cursor=4)
    assert concerned(published) == Changes(shown=set(places(4)), kinds={TopicHistory})
    assert concerned(ResizePlan(SAME, 4, 4, 3, FENCE, cursor=3)) == Changes(kinds={TopicHistory})
    made.commit(
        (
            Put(
                layout.topic_history("t"),
                TopicHistory(history.topic_id, 2, resize_epoch=3, resize=published),
            ),
        )
    )
    assert concerned(None) == Changes(kinds={TopicHistory})


def test_an_unresized_topic_has_one_side() -> None:
    whole = TopicNode({0: [1]}, undeleted_partition_count=1)
    assert common_side(whole, None) == Side(1, 0) == Sides("t", whole, None, {}).of(0)
    old = TopicNode({0: [1]})
    assert common_side(old, None) == Side(-1, 0) == Sides("t", old, None, {}).of(0)


@pytest.mark.parametrize(
    ("partitions", "plan", "expected"),
    [
        (2, None, Side(2, 3)),
        (3, None, None),
        (2, ResizePlan(SAME, 2, 2, 3, FENCE), None),
        (2, ResizePlan(SAME, 2, 2, 3, FENCE, published=True), Side(2, 3)),
    ],
)
def test_a_topic_has_one_side_without_a_plan_and_without_retired_partitions(
    partitions: int, plan: ResizePlan | None, expected: Side | None
) -> None:
    node = TopicNode({index: [1] for index in range(partitions)}, undeleted_partition_count=2)
    assert common_side(node, TopicHistory("id", 2, resize_epoch=3, resize=plan)) == expected
