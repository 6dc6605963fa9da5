"""Which partitions may be fetched, by what is buffered, asked for, paused and gated."""

from __future__ import annotations

import pytest

from tidelog.client.fetching.assigned import FetchedPartition
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetch_room import with_room
from tidelog.model.topics import TopicPartition

FULL = 100
"""A ``prefetch_bytes`` of all cases; a partition may have 80 of it."""


def state(
    index: int, size: int, gate: int | None = None, *, paused: bool = False
) -> FetchedPartition:
    where = TopicPartition("t", index)
    one = FetchedPartition(where, 0, 0, paused=paused, gate=gate)
    if size:
        one.add(Fetched(where, 0, 5, memoryview(bytes(size)), 9, 9, 0, None, 1))
    return one


@pytest.mark.parametrize(
    ("states", "only", "expected"),
    [
        pytest.param([state(0, 0), state(1, 79)], None, [0, 1], id="there is room for all"),
        pytest.param([state(0, 80), state(1, 0)], None, [1], id="a partition has its share"),
        pytest.param([state(0, 100), state(1, 0)], None, [], id="the memory is full"),
        pytest.param([state(0, 100), state(1, 0), state(2, 0)], {1}, [1], id="of others"),
        pytest.param([state(0, 60, paused=True), state(1, 40)], None, [], id="one is ready"),
        pytest.param([state(0, 60), state(1, 40)], {1}, [], id="the one asked for is ready"),
        pytest.param([state(0, 100, paused=True), state(1, 0)], None, [1], id="of paused ones"),
        pytest.param([state(0, 100, paused=True), state(1, 0)], {0}, [], id="nothing to wait for"),
        pytest.param([state(0, 50, 0), state(1, 0)], None, [1], id="gated ones have half"),
        pytest.param([state(0, 49, 0), state(1, 0, 0)], None, [0, 1], id="less than half"),
        pytest.param([state(0, 50, 0), state(1, 0, 0)], None, [], id="beyond a shut gate"),
        pytest.param([state(0, 50, 0), state(1, 0, 1)], None, [1], id="before its gate"),
        pytest.param([state(0, 50, 1), state(1, 0, 1)], None, [], id="a gated one is ready"),
    ],
)
def test_what_may_be_fetched(
    states: list[FetchedPartition], only: set[int] | None, expected: list[int]
) -> None:
    wanted = None if only is None else {TopicPartition("t", index) for index in only}
    buffered = sum(each.buffered_bytes for each in states)
    room = with_room(
        states, wanted, buffered_bytes=buffered, prefetch_bytes=FULL, partition_bytes=40
    )
    assert [each.partition.partition for each in room] == expected
