"""Which metadata a generation reads with, and when a member joins again."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tidelog.client.groups.resized_topics import (
    deleted_topics,
    former_topics,
    is_resized,
    looked_up_apart,
    ordered_topics,
    reborn,
    stamps_of,
)
from tidelog.client.metadata import ClusterMetadata, Partition, Topic
from tidelog.model.topics import TopicPartition
from tidelog.replication.resize_rules import NOT_NAMED, Named

ORDERED = Topic(
    "t",
    UUID(int=1),
    False,
    {index: Partition(index, 1, 0, (1,), (1,), (), partition_epoch=7 + index) for index in (0, 1)},
    initial_partition_count=1,
    undeleted_partition_count=2,
    resize_epoch=3,
)
PLAIN = replace(ORDERED, name="plain", undeleted_partition_count=-1)
VIEW = ClusterMetadata(topics={"t": ORDERED, "plain": PLAIN})


def seen_later(topic: Topic) -> ClusterMetadata:
    return ClusterMetadata(topics={"t": topic})


def test_ordered_topics_are_those_with_counts() -> None:
    assert ordered_topics(VIEW, ["t", "plain", "gone"]) == {"t": ORDERED}


def test_requests_name_count_epoch_and_incarnation() -> None:
    places = [TopicPartition("t", 1), TopicPartition("t", 5), TopicPartition("plain", 0)]
    assert stamps_of({"t": ORDERED}, places) == {places[0]: Named(2, 3, 8)}


def test_a_newer_resize_epoch_asks_for_another_round() -> None:
    seen, own = {"t": ORDERED}, [TopicPartition("t", 0)]
    assert not is_resized(seen, own, VIEW)
    assert not is_resized(seen, own, seen_later(replace(ORDERED)))
    assert is_resized(seen, own, seen_later(replace(ORDERED, resize_epoch=4)))
    assert not is_resized(seen, own, seen_later(replace(ORDERED, resize_epoch=2)))
    # Counts that are left out now: keys keep no order any more.
    assert is_resized(seen, own, seen_later(replace(ORDERED, undeleted_partition_count=-1)))
    assert not is_resized(seen, own, ClusterMetadata())


def test_another_topic_of_the_same_name_asks_for_another_round() -> None:
    seen, own = {"t": ORDERED}, [TopicPartition("t", 0)]
    other = seen_later(replace(ORDERED, topic_id=UUID(int=2), resize_epoch=0))
    assert former_topics(seen, other) == {"t"}
    assert is_resized(seen, own, other)
    deleted = seen_later(replace(ORDERED, topic_id=UUID(int=0), error=3))
    for view in (VIEW, ClusterMetadata(), deleted):
        assert former_topics(seen, view) == set()
        assert not is_resized(seen, own, view)


def test_no_position_in_a_deleted_topic_is_committed() -> None:
    """A topic of its name may be there when the request arrives, and be read from that offset."""
    seen = {"t": ORDERED}
    deleted = seen_later(replace(ORDERED, topic_id=UUID(int=0), error=3))
    another = seen_later(replace(ORDERED, topic_id=UUID(int=2), resize_epoch=0))
    assert deleted_topics(seen, deleted) == deleted_topics(seen, another) == {"t"}
    for view in (VIEW, ClusterMetadata(), seen_later(replace(ORDERED, error=5))):
        assert deleted_topics(seen, view) == set()


def test_the_removal_of_an_own_partition_asks_for_another_round() -> None:
    seen = {"t": ORDERED}
    kept = {0: ORDERED.partitions[0]}
    later = seen_later(replace(ORDERED, partitions=kept, undeleted_partition_count=1))
    assert is_resized(seen, [TopicPartition("t", 1)], later)
    assert not is_resized(seen, [TopicPartition("t", 0), TopicPartition("plain", 1)], later)


def test_a_partition_that_this_member_does_not_know_was_not_removed() -> None:
    """The leader of the group knew more: joining again would give it the same assignment."""
    seen = {"t": ORDERED}
    kept = {0: ORDERED.partitions[0]}
    later = seen_later(replace(ORDERED, partitions=kept, undeleted_partition_count=1))
    assert not is_resized(seen, [TopicPartition("t", 0), TopicPartition("t", 5)], later)


def test_a_partition_that_was_removed_and_created_again_is_another_one() -> None:
    one, other, new = (TopicPartition("t", index) for index in range(3))
    before = {one: Named(2, 3, 7), other: Named(2, 3, 8)}
    assert reborn(before, {one: Named(4, 5, 7), other: Named(4, 5, 11)}) == [other]
    # What is new, or not named on one side, was not another life.
    assert reborn(before, {one: NOT_NAMED, new: Named(4, 5, 12)}) == []
    assert reborn({one: NOT_NAMED}, {one: Named(4, 5, 7)}) == []


def test_positions_of_partitions_born_in_a_growth_are_asked_for_apart_by_leader() -> None:
    """Two leaders of born partitions, a born one without a leader, and what is not known."""
    leaders = {0: (1, 0), 1: (2, 0), 2: (1, 3), 3: (2, 3), 4: (1, 3), 5: (-1, 3)}
    partitions = {
        index: Partition(index, leader, 0, (1,), (1,), (), birth_epoch=birth)
        for index, (leader, birth) in leaders.items()
    }
    view = seen_later(replace(ORDERED, partitions=partitions))
    at = [TopicPartition("t", index) for index in range(7)] + [TopicPartition("gone", 0)]
    old = [at[0], at[1], at[6], at[7]]
    assert looked_up_apart(view, at) == [old, [at[2], at[4]], [at[3]], [at[5]]]
    assert looked_up_apart(view, old) == [old]
    assert looked_up_apart(view, []) == []
