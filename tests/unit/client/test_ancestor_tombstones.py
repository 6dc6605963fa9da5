"""Tests of ancestor tombstones: which homes of a key need one, once, and how they are sent."""

from __future__ import annotations

from uuid import UUID

from tidelog.client.metadata import Partition, Topic
from tidelog.client.producing.ancestor_tombstones import (
    RecentKeys,
    Voided,
    rounds_of,
    voided_by,
)
from tidelog.model.topics import TopicPartition


def topic(count: int, initial: int = 4, births: tuple[int, ...] = (1,)) -> Topic:
    partitions = {
        index: Partition(
            index, 1, 0, (1,), (1,), (), partition_epoch=index, birth_epoch=births[0] * (index >= 4)
        )
        for index in range(count)
    }
    return Topic("t", UUID(int=1), False, partitions, 0, initial, count, 1, count)


def test_a_partition_born_by_a_growth_has_all_its_ancestors() -> None:
    assert voided_by(topic(16), 13, b"k") == [
        Voided(TopicPartition("t", 5), b"k"),
        Voided(TopicPartition("t", 1), b"k"),
    ]
    assert voided_by(topic(16), 3, b"k") == []


def test_a_partition_that_its_topic_was_created_with_has_none() -> None:
    assert voided_by(topic(16, births=(0,)), 13, b"k") == []


def test_a_topic_that_is_not_ordered_has_none() -> None:
    assert voided_by(topic(16, initial=-1), 13, b"k") == []
    assert voided_by(topic(4), 13, b"k") == []


def test_a_key_is_remembered_for_each_home_until_others_take_its_place() -> None:
    recent = RecentKeys(most=2)
    assert recent.add("t", 4, 7, b"a")
    assert not recent.add("t", 4, 7, b"a")
    # The next incarnation of the partition is another home.
    assert recent.add("t", 4, 8, b"a")
    assert recent.add("t", 5, 7, b"a")
    assert recent.add("t", 4, 7, b"a")


def test_a_request_has_one_key_of_each_partition() -> None:
    one, two = TopicPartition("t", 1), TopicPartition("t", 2)
    waiting = [Voided(one, b"a"), Voided(one, b"b"), Voided(two, b"c"), Voided(one, b"d")]
    assert rounds_of(waiting) == [{one: b"a", two: b"c"}, {one: b"b"}, {one: b"d"}]
