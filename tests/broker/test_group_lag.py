"""Lag of groups over a connection: what a group has still to read, without control records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker
from tests.support.produce_fetch import batch, run, running
from tests.support.resized import fence, put
from tests.support.resized_topics import tell_resized
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.client.cluster import Cluster
from tidelog.client.groups import lag
from tidelog.model.topics import TopicPartition
from tidelog.records.control_records import AncestorTombstone, change_batch

T = TopicPartition("t", 0)
DATA, TOMBSTONES = 3, 40


def led(lone: LoneBroker) -> HostedPartition:
    """Partition 0 of t, which was split: three records, a fence, and tombstones after it."""
    hosted = lone.lead("t", 2)
    for _ in range(DATA):
        hosted.append(batch("x", timestamp=1), 1)
    put(hosted)
    tombstone(hosted)
    fence(hosted, DATA)
    for _ in range(TOMBSTONES):
        tombstone(hosted)
    tell_resized(lone, "t", {0: (0, 0), 1: (1, 0)}, resize_epoch=1, initial=1)
    return hosted


def tombstone(hosted: HostedPartition) -> None:
    made = change_batch(AncestorTombstone(b"k"), leader_epoch=-1, timestamp_ms=1)
    hosted.append(made, 1, from_client=False)


async def lag_at(lone: LoneBroker, position: int, end: int) -> int:
    async with Cluster(lone.bootstrap) as cluster:
        await cluster.describe(["t"])
        return (await lag.lags_of(cluster, {T: position}, {T: end}))[T]


def test_a_group_that_has_read_all_data_has_no_lag(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            end = led(lone).high_watermark
            assert end == DATA + 1 + TOMBSTONES
            # A member that knows no resizes commits no further than the data.
            assert await lag_at(lone, DATA, end) == 0
            assert await lag_at(lone, DATA + 7, end) == 0
            assert await lag_at(lone, end, end) == 0
            assert await lag_at(lone, end + 5, end) == 0, "a commit beyond the end, as in Kafka"

    run(main())


def test_data_count_whatever_is_among_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = led(lone)
            hosted.append(batch("x", "y", timestamp=1), 1)
            end = hosted.high_watermark
            assert await lag_at(lone, DATA, end) == 2
            # Unread data in front: the fence is left out, the tombstones are not.
            assert await lag_at(lone, 0, end) == DATA + TOMBSTONES + 2

    run(main())


def test_more_tombstones_than_one_response_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            end = led(lone).high_watermark
            assert await lag_at(lone, DATA, end) == 0
            monkeypatch.setattr(lag, "MOST_READS", 2)
            counted = await lag_at(lone, DATA, end)
            assert 0 < counted < TOMBSTONES, "the search ends, and the rest counts"

    monkeypatch.setattr(lag, "READ_BYTES", 300)
    run(main())
