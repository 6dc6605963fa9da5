"""What makes a look-up of resizes complete, and what is asked again."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.client.fences import DescribedFence, FormerIncarnation
from tidelog.client.metadata import Partition, Topic
from tidelog.partitioning.gates import Fence
from tidelog.pipeline.resized_topics import FormerCache, counts_of, is_complete, was_resized


def fence(epoch: int, count: int, *, seal: bool = False) -> DescribedFence:
    return DescribedFence(Fence(epoch, 10 * epoch, 10 * epoch), count, seal)


def topic(listed: int, *, epoch: int = 2, initial: int = 2, undeleted: int = 2) -> Topic:
    partitions = {
        index: Partition(index, 1, 0, (1,), (1,), (), partition_epoch=index)
        for index in range(listed)
    }
    return Topic("t", UUID(int=7), False, partitions, 0, initial, undeleted, epoch, 9)


@pytest.mark.parametrize(
    ("fences", "complete"),
    [
        ((), False),
        ((fence(1, 4),), False),
        ((fence(1, 4), fence(2, 2)), True),
        ((fence(3, 8),), True),
        # A retired partition has no fence of a later epoch.
        ((fence(1, 2, seal=True),), True),
    ],
)
def test_a_leader_that_lacks_its_newest_fence_is_asked_again(
    fences: tuple[DescribedFence, ...], complete: bool
) -> None:
    assert is_complete(fences, 2) is complete


def test_counts_of_all_resize_epochs() -> None:
    assert counts_of([(fence(1, 4), fence(2, 3)), (fence(1, 4),)]) == {1: 4, 2: 3}


def test_only_ordered_topics_that_were_resized_cost_a_look_up() -> None:
    assert was_resized(topic(2))
    assert not was_resized(topic(2, epoch=0))
    # enable.ordered.delivery=false, and Apache Kafka.
    assert not was_resized(topic(2, epoch=-1, initial=-1, undeleted=-1))


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
