"""What is left to read after a committed offset, as a client finds out from a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.support.isolation import Transactions
from tests.support.lone_broker import LoneBroker
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.client.admin.topics import delete_records
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.fetching import left_to_read
from tidelog.client.fetching.left_to_read import first_readable
from tidelog.controller.decisions.removal import UNKNOWN, Held
from tidelog.controller.retired_commits import is_read
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.control_records import ChangeKind, FenceRecord, change_batch

HERE, GONE = TopicPartition("t", 0), TopicPartition("t", 1)


def story(
    folder: Path, tell: Callable[[Cluster, HostedPartition, Transactions], Awaitable[None]]
) -> None:
    async def main() -> None:
        lone = LoneBroker(folder)
        await lone.start()
        try:
            hosted = lone.lead("t")
            async with Cluster(lone.bootstrap) as cluster:
                await tell(cluster, hosted, Transactions(hosted))
        finally:
            await lone.stop()

    asyncio.run(main())


async def left_from(cluster: Cluster, offset: int) -> int:
    failed: dict[TopicPartition, ClientError] = {}
    reached = await first_readable(cluster, {HERE: offset}, timeout_ms=10_000, failed=failed)
    assert not failed
    return reached[HERE]


def test_what_was_aborted_and_control_records_are_nothing_to_read(tmp_path: Path) -> None:
    async def tell(cluster: Cluster, hosted: HostedPartition, log: Transactions) -> None:
        log.plain()
        log.data(7)
        log.abort(7)
        log.put(change_batch(FenceRecord(ChangeKind.FENCE, 1, 2), leader_epoch=0, timestamp_ms=1))
        assert [await left_from(cluster, x) for x in range(5)] == [0, 4, 4, 4, 4]
        log.data(8)
        # It may be committed.
        assert await left_from(cluster, 1) == 4
        log.plain()
        assert await left_from(cluster, 1) == 4
        log.abort(8)
        assert await left_from(cluster, 1) == 5
        log.data(7)
        log.commit(7)
        assert await left_from(cluster, 6) == 7

    story(tmp_path, tell)


def test_one_answer_goes_so_far_and_the_next_one_on(tmp_path: Path) -> None:
    async def tell(cluster: Cluster, hosted: HostedPartition, log: Transactions) -> None:
        for _ in range(4):
            log.data(7, left_to_read.PARTITION_BYTES // 2)
        log.abort(7)
        steps = [0]
        while steps[-1] < hosted.end_offset:
            steps.append(await left_from(cluster, steps[-1]))
        assert steps == sorted(set(steps)) and len(steps) > 2

    story(tmp_path, tell)


def test_below_the_start_of_the_log_nothing_is_left(tmp_path: Path) -> None:
    async def tell(cluster: Cluster, hosted: HostedPartition, log: Transactions) -> None:
        for _ in range(6):
            log.plain()
        await delete_records(cluster, {HERE: 4})
        assert await left_from(cluster, 1) == 4
        await delete_records(cluster, {HERE: 6})
        assert await left_from(cluster, 1) == 6

    story(tmp_path, tell)


def test_the_controller_asks_on_until_the_end_of_the_data(tmp_path: Path) -> None:
    async def tell(cluster: Cluster, hosted: HostedPartition, log: Transactions) -> None:
        log.plain()
        for _ in range(4):
            log.data(7, left_to_read.PARTITION_BYTES // 2)
        log.abort(7)
        end = hosted.end_offset
        log.put(change_batch(FenceRecord(ChangeKind.SEAL, 1, 1), leader_epoch=0, timestamp_ms=1))
        retired = Held(1, 0, 0, end + 1, end + 1, end - 1)
        connection = await cluster.connection(1)
        assert await is_read(connection, HERE, retired, 1)
        assert not await is_read(connection, HERE, retired, 0), "a record is left"
        assert not await is_read(connection, HERE, retired, UNKNOWN)
        assert not await is_read(connection, GONE, retired, 1), "its leader says nothing of it"
        deleted = Held(1, 0, end - 1, end + 1, end + 1, end - 1)
        assert await is_read(connection, GONE, deleted, 0)

    story(tmp_path, tell)


def test_a_partition_that_cannot_be_asked_is_an_error_of_its_own(tmp_path: Path) -> None:
    async def tell(cluster: Cluster, hosted: HostedPartition, log: Transactions) -> None:
        failed: dict[TopicPartition, ClientError] = {}
        asked = {HERE: 0, GONE: 0}
        reached = await first_readable(cluster, asked, timeout_ms=10_000, failed=failed)
        assert reached == {HERE: 0}
        error = failed[GONE]
        assert isinstance(error, Refused)
        assert error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    story(tmp_path, tell)
