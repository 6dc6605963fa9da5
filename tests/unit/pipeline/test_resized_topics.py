"""Which topics are looked up for resizes, and what is asked again."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tidelog.client.fences import FormerIncarnation
from tidelog.client.metadata import Partition, Topic
from tidelog.pipeline.resized_topics import FormerCache, was_resized


def topic(listed: int, *, epoch: int = 2, initial: int = 2, undeleted: int = 2) -> Topic:
    partitions = {
        index: Partition(index, 1, 0, (1,), (1,), (), partition_epoch=index)
        for index in range(listed)
    }
    return Topic("t", UUID(int=7), False, partitions, 0, initial, undeleted, epoch, 9)


def test_only_ordered_topics_that_were_resized_cost_a_look_up() -> None:
    assert was_resized(topic(2))
    assert not was_resized(topic(2, epoch=0))
    # enable.ordered.delivery=false, and Apache Kafka.
    assert not was_resized(topic(2, epoch=-1, initial=-1, undeleted=-1))
    # A partition without an epoch was made below level 1.5.
    older = topic(2)
    first = replace(older.partitions[0], partition_epoch=-1)
    assert not was_resized(replace(older, partitions={**older.partitions, 0: first}))


def test_ends_of_removed_partitions_hold_while_the_same_are_listed() -> None:
    cache = FormerCache()
    gone = {2: FormerIncarnation(5, 40, 41, 2)}
    assert cache.of(topic(2), ()) is None
    cache.keep(topic(2), gone)
    assert cache.of(topic(2), (0, 1, 2)) == gone
    # A position of a partition of which nothing is known, others that are listed, a newer epoch,
    # another topic of the name.
    assert cache.of(topic(2), (3,)) is None
    assert cache.of(topic(3), ()) is None
    assert cache.of(topic(2, epoch=3), ()) is None
    assert cache.of(replace(topic(2), topic_id=UUID(int=8)), ()) is None
