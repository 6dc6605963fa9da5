"""Gates of a group as a tool sees them: what waits, for what, and since which offset."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.client.fences import DescribedFence, DescribedFences
from tidelog.client.groups.gated import (
    GatedPartition,
    gated_partitions,
    is_gated_topic,
    short_commits,
    unaware_among_aware,
    with_nothing_left,
)
from tidelog.client.groups.progress import GroupProgress, MemberProgress, PartitionProgress
from tidelog.client.metadata import Partition, Topic
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import Fence


def listed(index: int, birth: int = 0, retired: int = -1) -> Partition:
    return Partition(
        index, 1, 0, (1,), (1,), (), retirement_epoch=retired, partition_epoch=index,
        birth_epoch=birth,
    )  # fmt: skip


def topic(*partitions: Partition, count: int, epoch: int) -> Topic:
    return Topic("t", UUID(int=1), False, {x.index: x for x in partitions}, 0, 2, count, epoch)


GROWN = topic(listed(0), listed(1), listed(2, birth=1), listed(3, birth=1), count=4, epoch=1)
FENCES = {
    0: DescribedFences(1, (DescribedFence(Fence(1, 50, 48), 4, False),)),
    1: DescribedFences(1, (DescribedFence(Fence(1, 30, 30), 4, False),)),
    2: DescribedFences(0, (DescribedFence(Fence(1, 0, 0), 4, False),)),
    3: DescribedFences(0, (DescribedFence(Fence(1, 0, 0), 4, False),)),
}


def member(name: str, aware: bool | None = True) -> MemberProgress:
    return MemberProgress(name, "c", "/h", aware, 100, 45_000)


def group(*members: MemberProgress, **positions: PartitionProgress) -> GroupProgress:
    """``p0=…``: the progress in partition 0."""
    return GroupProgress(
        "g",
        "Stable",
        {each.member_id: each for each in members},
        {TopicPartition("t", int(name[1:])): each for name, each in positions.items()},
    )


def at(member: str | None, position: int | None, *, is_commit: bool = False) -> PartitionProgress:
    return PartitionProgress(member, position, is_commit, 1_000)


def needs(gated: list[GatedPartition]) -> dict[int, list[tuple[int, int | None, int | None]]]:
    return {
        each.partition: [(x.partition, x.progress.position, x.upto) for x in each.needs]
        for each in gated
    }


A = member("a")


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (at("a", 50), {}),
        (at("a", 49), {2: [(0, 49, 50)]}),
        (at("a", None), {2: [(0, None, 50)]}),
        # Of a member that knows no resizes, the end of the data counts: its commits stop there.
        (at("b", 48, is_commit=True), {}),
        (at("b", 47, is_commit=True), {2: [(0, 47, 48)]}),
        (at(None, 47, is_commit=True), {2: [(0, 47, 48)]}),
    ],
)
def test_a_child_waits_for_its_parent(
    first: PartitionProgress, expected: dict[int, list[tuple[int, int | None, int | None]]]
) -> None:
    found = group(A, member("b", aware=False), p0=first, p1=at("a", 30), p2=at("a", 0))
    gated = gated_partitions(GROWN, FENCES, found)
    assert needs(gated) == expected
    assert all(each.member is A and each.offset == 0 for each in gated)


def test_what_no_aware_member_owns_does_not_wait() -> None:
    stock = member("b", aware=False)
    found = group(A, stock, p0=at("a", 1), p1=at("a", 1), p2=at("b", 0), p3=at(None, 0))
    assert gated_partitions(GROWN, FENCES, found) == []


def test_a_member_that_may_be_aware_counts_as_one() -> None:
    found = group(member("a", aware=None), p0=at("a", 1), p1=at("a", 30), p2=at("a", 0))
    assert needs(gated_partitions(GROWN, FENCES, found)) == {2: [(0, 1, 50)]}


def test_a_fence_that_is_not_known_is_awaited() -> None:
    known = {index: each for index, each in FENCES.items() if index != 1}
    found = group(A, p0=at("a", 50), p1=at("a", 99), p2=at("a", 0), p3=at("a", 0))
    assert needs(gated_partitions(GROWN, known, found)) == {3: [(1, 99, None)]}


def test_a_partition_that_waits_itself_is_said_to() -> None:
    """8 in epoch 2 waits for 2, whose own gate in epoch 1 is shut."""
    again = topic(
        *GROWN.partitions.values(), listed(4, birth=2), listed(5, birth=2), listed(6, birth=2),
        count=7, epoch=2,
    )  # fmt: skip
    later = DescribedFence(Fence(2, 60, 60), 7, False)
    fences = {index: DescribedFences(1, (*each.fences, later)) for index, each in FENCES.items()}
    own = {f"p{index}": at("a", 60) for index in range(7)}
    own["p0"] = at("a", 49)
    gated = {each.partition: each for each in gated_partitions(again, fences, group(A, **own))}
    assert {index: [x.partition for x in each.needs] for index, each in gated.items()} == {
        2: [0],
        4: [0],
        6: [2],
    }
    assert [x.is_gated for x in gated[6].needs] == [True]
    assert [x.is_gated for x in gated[2].needs] == [False]


def test_a_survivor_waits_for_each_that_falls_to_it() -> None:
    shrunk = topic(
        listed(0), listed(1), listed(2, birth=1, retired=2), listed(3, birth=1, retired=2),
        count=2, epoch=2,
    )  # fmt: skip
    fences = {
        index: DescribedFences(1, (*each.fences, DescribedFence(Fence(2, 90, 88), 2, index >= 2)))
        for index, each in FENCES.items()
    }
    own = {"p0": at("a", 90), "p1": at("a", 90), "p2": at("a", 70), "p3": at("a", 90)}
    (gated,) = gated_partitions(shrunk, fences, group(A, **own))
    assert (gated.partition, gated.offset) == (0, 90)
    assert needs([gated]) == {0: [(2, 70, 90)]}


def test_only_a_group_that_mixes_members_is_said_to() -> None:
    stock, other = member("b", aware=False), member("c", aware=False)
    both = group(A, stock, other, p0=at("a", 1), p1=at("b", 1), p2=at("c", 1))
    assert unaware_among_aware("t", both) == ["b", "c"]
    assert unaware_among_aware("u", both) == []
    assert unaware_among_aware("t", group(stock, other, p0=at("b", 1), p1=at("c", 1))) == []
    assert unaware_among_aware("t", group(A, p0=at("a", 1), p1=at(None, 1))) == []


def test_only_a_topic_with_children_or_retired_partitions_has_gates() -> None:
    assert is_gated_topic(GROWN)
    assert not is_gated_topic(topic(listed(0), listed(1), count=2, epoch=0))
    assert not is_gated_topic(topic(listed(0), listed(1), count=2, epoch=2))
    unordered = Topic("t", UUID(int=1), False, dict(GROWN.partitions))
    assert not is_gated_topic(unordered)


def test_a_commit_counts_as_far_as_nothing_is_left_to_read_after_it() -> None:
    own = {"p1": at("a", 30), "p2": at("a", 0)}
    of = group(A, member("b", aware=False), p0=at("b", 40, is_commit=True), **own)
    waiting = gated_partitions(GROWN, FENCES, of)
    assert short_commits(waiting) == {0: 40}
    short = with_nothing_left(of, {TopicPartition("t", 0): 44})
    assert short_commits(gated_partitions(GROWN, FENCES, short)) == {0: 44}
    done = with_nothing_left(of, {TopicPartition("t", 0): 48, TopicPartition("t", 1): 99})
    assert gated_partitions(GROWN, FENCES, done) == []
    assert done.partitions[TopicPartition("t", 1)].position == 30, "an aware member has said it"


def test_of_a_group_without_a_commit_too() -> None:
    of = group(A, p1=at("a", 30), p2=at("a", 0))
    assert short_commits(gated_partitions(GROWN, FENCES, of)) == {0: 0}
    done = with_nothing_left(of, {TopicPartition("t", 0): 48})
    assert gated_partitions(GROWN, FENCES, done) == []
