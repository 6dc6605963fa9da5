"""Assignments of consumers: the counts that a first sight takes from them, and hostile bytes."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest

from tests.support.group_driver import assignment
from tidelog.groups.consumer_protocol import (
    MOST_PARTITIONS,
    assigned_partitions,
    partition_counts,
)
from tidelog.groups.primitives import Malformed


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
