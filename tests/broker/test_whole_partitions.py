"""Whole partitions read once: their ends, what retention removes meanwhile, what goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker
from tidelog.client.admin.topics import delete_records
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import Refused
from tidelog.client.fetching.whole_partitions import read_whole
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

HERE, GONE = TopicPartition("t", 0), TopicPartition("t", 1)
RECORDS = 20
SOON = ClusterSettings(default_api_timeout_ms=1_000)
"""How long a partition may be unknown before it is reported."""


def story(folder: Path, tell: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        lone = LoneBroker(folder)
        await lone.start()
        try:
            lone.lead("t")
            async with Cluster(f"127.0.0.1:{lone.port}", SOON) as cluster:
                sender = RecordSender(cluster, SendSettings(linger_ms=0))
                for number in range(RECORDS):
                    sent = await sender.send("t", b"%d" % number, partition=HERE.partition)
                    await sent
                await sender.close()
                await tell(cluster)
        finally:
            await lone.stop()

    asyncio.run(main())


async def offsets(
    cluster: Cluster,
    ranges: dict[TopicPartition, tuple[int, int]],
    gone: set[TopicPartition] | None = None,
) -> list[int]:
    async with aclosing(read_whole(cluster, ranges, gone=gone)) as pieces:
        return [record.offset async for piece in pieces for record in piece.rows()]


def test_a_range_is_read_to_its_end_once(tmp_path: Path) -> None:
    async def tell(cluster: Cluster) -> None:
        assert await offsets(cluster, {HERE: (0, RECORDS)}) == list(range(RECORDS))
        part = await offsets(cluster, {HERE: (3, 7), GONE: (0, 0)})
        assert [each for each in part if each < 7] == [3, 4, 5, 6]

    story(tmp_path, tell)


def test_where_records_are_gone_the_reading_goes_on_at_the_log_start(tmp_path: Path) -> None:
    async def tell(cluster: Cluster) -> None:
        await delete_records(cluster, {HERE: 5})
        assert await offsets(cluster, {HERE: (0, RECORDS)}) == list(range(5, RECORDS))

    story(tmp_path, tell)


def test_a_partition_that_was_removed_meanwhile_is_named(tmp_path: Path) -> None:
    async def tell(cluster: Cluster) -> None:
        ranges = {HERE: (0, RECORDS), GONE: (0, 9)}
        gone: set[TopicPartition] = set()
        assert await offsets(cluster, ranges, gone) == list(range(RECORDS))
        assert gone == {GONE}

    story(tmp_path, tell)


def test_a_topic_that_was_deleted_is_an_error(tmp_path: Path) -> None:
    async def tell(cluster: Cluster) -> None:
        with pytest.raises(Refused) as refused:
            await offsets(cluster, {TopicPartition("deleted", 0): (0, 9)}, set())
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    story(tmp_path, tell)
