"""Assignments of consumers: the counts that a first sight takes from them, and hostile bytes."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest

from tests.support.group_driver import assignment, subscription
from tidelog.groups.consumer_protocol import (
    MOST_OF_A_TOPIC,
    MOST_PARTITIONS,
    all_subscribed,
    assigned_partitions,
    entries_in,
    partition_counts,
    subscribed_topics,
)
from tidelog.protocol.record_fields import Malformed


def test_the_count_is_the_greatest_index_of_all_members_and_one() -> None:
    shares = [assignment(t=[0, 5], u=[1]), b"", assignment(t=[2]), assignment(u=[])]
    assert partition_counts(shares, {"t", "u", "v"}) == {"t": 6, "u": 2}
    assert partition_counts(shares, {"u"}) == {"u": 2}
    assert partition_counts([], {"t"}) == {}


def test_indexes_that_no_partition_has() -> None:
    assert partition_counts([assignment(t=[-1])], {"t"}) == {}
    assert partition_counts([assignment(t=[2**31 - 1])], {"t"}) == {"t": MOST_PARTITIONS}


def test_too_many_entries_are_not_read() -> None:
    shares = [assignment(t=[0])] * 9
    assert partition_counts(shares, {"t"}, most=10) == {"t": 1}
    assert partition_counts(shares, {"t"}, most=9) is None


@pytest.mark.parametrize(
    "damaged",
    [
        b"\0",
        b"share of 0",
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hih1si", 0, 1, 1, b"t", -1),
        struct.pack(">hih1si", 0, 1, 1, b"t", 2**31 - 1),
        struct.pack(">hih1si", 0, 1, 1, b"\xff", 0),
    ],
)
def test_bytes_that_are_no_assignment(damaged: bytes) -> None:
    assert partition_counts([damaged], {"t"}) is None


def test_random_bytes_raise_nothing_else() -> None:
    draw = random.Random(1)
    sound = assignment(topic=range(20), other=[3])
    for _ in range(3_000):
        damaged = bytearray(sound)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        with suppress(Malformed):
            list(assigned_partitions(bytes(damaged[: draw.randint(0, len(damaged))])))


def test_a_subscription_of_too_many_topics_is_not_read() -> None:
    """A megabyte of empty names took 0.4 s of the coordinator's loop, and a group may have 16."""
    assert subscribed_topics(subscription("a", "b", "c"), most=3) == {"a", "b", "c"}
    assert subscribed_topics(subscription("a", "b", "c"), most=2) is None
    empty_names = struct.pack(">hi", 0, 500_000) + bytes(2 * 500_000)
    assert subscribed_topics(empty_names) is None


def test_the_subscriptions_of_a_group_share_the_limit_and_equal_ones_count_once() -> None:
    several = [subscription("a", "b"), subscription("b", "c")]
    assert all_subscribed(several, most=4) == {"a", "b", "c"}
    assert all_subscribed(several, most=3) is None
    assert all_subscribed([subscription("a", "b")] * 100, most=2) == {"a", "b"}
    assert all_subscribed([*several, b"none"], most=9) is None
    assert all_subscribed([]) == frozenset()


def test_how_many_topics_are_named_is_bounded_by_the_bytes() -> None:
    assert entries_in(subscription("a", "b")) == 2
    assert entries_in(assignment(t=[0], u=[1], v=[])) == 3
    assert entries_in(struct.pack(">hi", 0, 2**31 - 1)) == 3
    assert entries_in(struct.pack(">hi", 0, -1)) == entries_in(b"") == entries_in(b"\0") == 0


def test_no_topic_has_so_many_partitions() -> None:
    """As numbers in Python they take nine times the memory of the request."""

    def of(count: int) -> bytes:
        return struct.pack(">hih1si", 0, 1, 1, b"t", count) + bytes(4 * count)

    assert partition_counts([of(MOST_OF_A_TOPIC)], {"t"}) == {"t": 1}
    assert partition_counts([of(MOST_OF_A_TOPIC + 1)], {"t"}) is None
