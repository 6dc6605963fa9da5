"""What a member delivers, asks for and reports while its topic has gates."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.client.fences import DescribedFence, DescribedFences
from tidelog.client.groups.topic_gates import TopicGates, must_report
from tidelog.client.metadata import Partition, Topic
from tidelog.partitioning.gates import Fence, GroupPosition


def partition(index: int, *, birth: int = 0, retired: int = -1, leader_epoch: int = 3) -> Partition:
    return Partition(
        index,
        1,
        leader_epoch,
        (1,),
        (1,),
        (),
        retirement_epoch=retired,
        partition_epoch=index,
        birth_epoch=birth,
    )


def topic(resize_epoch: int, count: int, *partitions: Partition) -> Topic:
    return Topic(
        "t",
        UUID(int=1),
        False,
        {each.index: each for each in partitions},
        initial_partition_count=1,
        undeleted_partition_count=count,
        resize_epoch=resize_epoch,
    )


def fences(*found: tuple[int, int], leader_epoch: int = 3) -> DescribedFences:
    """Of pairs (resize epoch, offset)."""
    return DescribedFences(
        leader_epoch,
        tuple(
            DescribedFence(Fence(epoch, offset, offset - 1), 2, False) for epoch, offset in found
        ),
    )


GROWN = topic(1, 2, partition(0), partition(1, birth=1))
SHRUNK = topic(2, 1, partition(0), partition(1, birth=1, retired=2))
OF_GROWN = {0: fences((1, 10)), 1: fences((1, 0))}
OF_SHRUNK = {0: fences((1, 10), (2, 20)), 1: fences((1, 0), (2, 7))}


def test_a_topic_without_births_and_retirements_has_no_gates() -> None:
    gates = TopicGates(topic(3, 2, partition(0), partition(1)), [0, 1])
    assert gates.is_resolved
    assert gates.ends({}) == {}
    assert gates.reported() == {}


def test_gates_are_shut_until_the_fences_are_known() -> None:
    gates = TopicGates(GROWN, [1])
    assert not gates.is_resolved
    gates.learn({0: GroupPosition(99)})
    assert gates.ends({}) == {1: 0}
    gates.resolve(OF_GROWN)
    assert gates.is_resolved
    assert gates.ends({}) == {}


def test_a_child_waits_for_the_position_of_its_parent() -> None:
    gates = TopicGates(GROWN, [1])
    gates.resolve(OF_GROWN)
    assert gates.ends({1: 0}) == {1: 0}
    assert gates.wanted([1]) == {0}
    gates.learn({0: GroupPosition(9)})
    assert gates.ends({1: 0}) == {1: 0}
    gates.learn({0: GroupPosition(10)})
    assert gates.ends({1: 0}) == {}
    # The last report counts, not the highest one.
    gates.learn({0: GroupPosition(4)})
    assert gates.ends({1: 0}) == {1: 0}


def test_the_owner_of_both_needs_no_one() -> None:
    gates = TopicGates(GROWN, [0, 1])
    gates.resolve(OF_GROWN)
    assert gates.wanted([1]) == set()
    assert gates.ends({0: 9, 1: 0}) == {1: 0}
    assert gates.ends({0: 10, 1: 0}) == {}


def test_the_owner_of_a_parent_reports_it_up_to_the_fence() -> None:
    gates = TopicGates(GROWN, [0])
    gates.resolve({0: fences((1, 10))})
    assert gates.reported() == {0: 10}
    assert not gates.is_resolved  # The leader of the child has not answered.


def test_a_survivor_waits_for_each_that_retired_and_these_for_their_parents() -> None:
    gates = TopicGates(SHRUNK, [0])
    gates.resolve(OF_SHRUNK)
    assert gates.ends({0: 0}) == {0: 20}
    assert gates.wanted([0]) == {1}
    gates.learn({1: GroupPosition(7)})
    # The retired one is a child of partition 0, whose fence of the growth was not reached.
    assert gates.ends({0: 9}) == {0: 20}
    assert gates.ends({0: 10}) == {}


def test_a_missing_fence_keeps_the_gate_shut() -> None:
    gates = TopicGates(GROWN, [1])
    gates.resolve({0: fences(), 1: fences((1, 0))})
    assert not gates.is_resolved
    gates.learn({0: GroupPosition(99)})
    assert gates.ends({}) == {1: 0}


def test_a_newer_leader_shuts_the_gates_that_need_its_fences_until_it_has_named_them() -> None:
    gates = TopicGates(SHRUNK, [0])
    gates.resolve(OF_SHRUNK)
    gates.learn({1: GroupPosition(7)})
    assert gates.ends({0: 15}) == {}
    gates.follow(replace(SHRUNK))
    assert gates.ends({0: 15}) == {}
    moved = {**SHRUNK.partitions, 1: replace(SHRUNK.partitions[1], leader_epoch=4)}
    gates.follow(replace(SHRUNK, partitions=moved))
    assert gates.unknown == {1}
    assert gates.ends({0: 15}) == {0: 20}, "its own fence is known: the leader of 0 is the same"
    gates.resolve({1: OF_SHRUNK[1]})
    assert gates.unknown == {1}, "the former leader has named these"
    gates.resolve({1: fences((1, 0), (2, 5), leader_epoch=4)})
    assert gates.ends({0: 15}) == {}
    both = {**moved, 0: replace(moved[0], leader_epoch=4)}
    gates.follow(replace(SHRUNK, partitions=both))
    assert gates.ends({0: 15}) == {0: 0}, "nothing where the fence of the survivor is not known"


def test_a_fence_of_a_later_resize_stays_shut() -> None:
    gates = TopicGates(GROWN, [0, 1])
    gates.resolve({0: fences((1, 10), (2, 12)), 1: fences((1, 0))})
    assert gates.is_resolved
    assert gates.ends({0: 12, 1: 5}) == {0: 12}
    assert gates.reported() == {0: 10}


def test_a_partition_that_metadata_lack_is_not_delivered() -> None:
    gates = TopicGates(GROWN, [0, 7])
    gates.resolve(OF_GROWN)
    assert gates.ends({0: 0, 7: 3}) == {7: 0}


def test_a_retired_partition_that_is_removed_counts_as_drained() -> None:
    """Its position will never be known: a survivor waited for it until its member joined again."""
    gates = TopicGates(SHRUNK, [0])
    gates.resolve(OF_SHRUNK)
    assert gates.ends({0: 12}) == {0: 20}
    gates.follow(replace(SHRUNK, partitions={0: SHRUNK.partitions[0]}, resize_epoch=1))
    assert gates.ends({0: 12}) == {0: 20}, "older metadata are no proof"
    gates.follow(replace(SHRUNK, partitions={0: SHRUNK.partitions[0]}))
    assert gates.ends({0: 12}) == {}
    assert gates.is_resolved


def test_a_partition_that_is_removed_before_the_fences_are_known() -> None:
    gates = TopicGates(SHRUNK, [0])
    gates.follow(replace(SHRUNK, partitions={0: SHRUNK.partitions[0]}))
    assert gates.ends({0: 12}) == {0: 0}
    gates.resolve({0: OF_SHRUNK[0]})
    assert gates.is_resolved
    assert gates.ends({0: 12}) == {}


@pytest.mark.parametrize(
    ("offset", "before", "expected"),
    [
        (0, None, True),
        (4, None, True),
        (4, 4, False),
        (4, 3, True),
        (12, 9, True),
        (13, 12, False),  # No gate waits for more.
        (3, 12, True),  # It went back, and a gate may wait again.
    ],
)
def test_which_positions_are_reported(offset: int, before: int | None, expected: bool) -> None:
    assert must_report(offset, before, upto=10) is expected


def test_a_position_is_reported_where_the_fence_is_the_first_record() -> None:
    """A topic that grew before anything was written to it: its children waited for ever."""
    assert must_report(0, None, upto=0)
    assert not must_report(5, 0, upto=0)


def test_a_reader_without_a_group_answers_for_its_own_partitions_only() -> None:
    gates = TopicGates(GROWN, [1], is_alone=True)
    assert gates.ends({1: 0}) == {1: 0}, "the fences are not known yet"
    gates.resolve(OF_GROWN)
    assert gates.ends({1: 0}) == {}
    both = TopicGates(GROWN, [0, 1], is_alone=True)
    both.resolve(OF_GROWN)
    assert both.ends({0: 9, 1: 0}) == {1: 0}


TWICE = topic(2, 4, partition(0), *(partition(each, birth=each // 2 + 1) for each in (1, 2, 3)))
OF_TWICE = {
    0: fences((1, 10), (2, 20)),
    1: fences((1, 0), (2, 5)),
    2: fences((2, 0)),
    3: fences((2, 0)),
}


def test_a_leader_that_has_not_answered_holds_up_no_gate_that_needs_others() -> None:
    gates = TopicGates(TWICE, [0, 1, 2, 3])
    own = {0: 20, 1: 5, 2: 0, 3: 0}
    assert gates.ends(own) == {1: 0, 2: 0, 3: 0}
    gates.resolve({0: OF_TWICE[0]})
    assert gates.ends(own) == {3: 0}, "a child of 1"
    assert gates.unknown == {1, 2, 3}
    gates.resolve({1: OF_TWICE[1]})
    assert gates.ends(own) == {}


def test_a_parent_is_reported_up_to_the_last_fence_that_a_gate_waits_for() -> None:
    gates = TopicGates(TWICE, [0])
    gates.resolve(OF_TWICE)
    assert gates.reported() == {0: 20}


def test_what_a_prerequisite_waits_for_is_asked_as_well() -> None:
    gates = TopicGates(TWICE, [3])
    gates.resolve(OF_TWICE)
    assert gates.wanted([3]) == {1, 0}
    gates.learn({1: GroupPosition(5), 0: GroupPosition(9)})
    assert gates.ends({3: 0}) == {3: 0}
    gates.learn({0: GroupPosition(10)})
    assert gates.ends({3: 0}) == {}


def test_a_member_knows_its_own_positions_better_than_the_coordinator() -> None:
    gates = TopicGates(GROWN, [0, 1])
    gates.resolve(OF_GROWN)
    gates.learn({0: GroupPosition(99)})
    assert gates.ends({0: 9, 1: 0}) == {1: 0}
    assert gates.waits_for(1) == [(0, 9, 10)]


def test_the_gate_of_a_later_incarnation_is_where_it_began() -> None:
    again = replace(partition(1, birth=1), birth_offset=7)
    gates = TopicGates(topic(1, 2, partition(0), again), [1])
    gates.resolve({0: fences((1, 10)), 1: fences((1, 7))})
    assert gates.ends({1: 7}) == {1: 7}


def test_a_commit_counts_as_far_as_nothing_is_left_to_read_after_it() -> None:
    """A stock member never commits past what was aborted, and past control records."""
    gates = TopicGates(GROWN, [1])
    gates.resolve(OF_GROWN)
    gates.learn({0: GroupPosition(4, True)})
    assert gates.short_commits([1]) == {0: 4}
    gates.take_nothing(0, 4, 8)
    assert gates.ends({1: 0}) == {1: 0}
    assert gates.short_commits([1]) == {0: 8}, "the next question goes on there"
    gates.take_nothing(0, 8, 9)
    assert gates.ends({1: 0}) == {} and not gates.short_commits([1])
    # The group went back: there are records to read before what was asked for.
    gates.learn({0: GroupPosition(3, True)})
    assert gates.ends({1: 0}) == {1: 0}
    assert gates.short_commits([1]) == {0: 3}


def test_a_group_without_a_commit_is_done_where_nothing_is_to_be_read() -> None:
    gates = TopicGates(GROWN, [1])
    gates.resolve(OF_GROWN)
    gates.learn({0: GroupPosition(-1, True)})
    assert gates.short_commits([1]) == {0: 0}
    gates.take_nothing(0, 0, 9)
    assert gates.ends({1: 0}) == {}


def test_the_position_of_an_aware_member_counts_as_it_is() -> None:
    gates = TopicGates(GROWN, [1])
    gates.resolve(OF_GROWN)
    gates.learn({0: GroupPosition(4)})
    assert not gates.short_commits([1])
    gates.take_nothing(0, 4, 99)
    assert gates.ends({1: 0}) == {1: 0}


def test_a_newer_leader_may_have_records_where_nothing_was_left() -> None:
    gates = TopicGates(GROWN, [1])
    gates.resolve(OF_GROWN)
    gates.learn({0: GroupPosition(4, True)})
    gates.take_nothing(0, 4, 9)
    assert gates.ends({1: 0}) == {}
    moved = {**GROWN.partitions, 0: replace(GROWN.partitions[0], leader_epoch=4)}
    gates.follow(replace(GROWN, partitions=moved))
    gates.resolve({0: fences((1, 10), leader_epoch=4)})
    assert gates.ends({1: 0}) == {1: 0}
    assert gates.short_commits([1]) == {0: 4}
