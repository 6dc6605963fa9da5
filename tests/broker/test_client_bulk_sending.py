"""Many records at once against one broker: order, counts, partitions, too large batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from tests.support.lone_broker import LoneBroker
from tests.support.processes import DEADLINE_S
from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.metadata import Partition, Topic
from tidelog.client.producing.bulk_sender import BulkSender
from tidelog.client.producing.partitioner import PartitionChooser
from tidelog.client.producing.send_queue import SendTally
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import Columns

Story = Callable[[Cluster], Awaitable[None]]
VALUES = [b"%d" % number for number in range(3_000)]


def play(
    folder: Path, story: Story, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    async def whole() -> None:
        lone = LoneBroker(folder)
        await lone.start()
        lone.lead("t", partitions, configs)
        async with asyncio.timeout(DEADLINE_S), Cluster(lone.bootstrap) as cluster:
            await story(cluster)
        await lone.stop()

    asyncio.run(whole())


async def read(cluster: Cluster, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    fetcher = Fetcher(cluster)
    fetcher.assign({TopicPartition(topic, 0): 0})
    found: list[tuple[bytes | None, bytes | None]] = []
    while len(found) < count:
        for fetched in await fetcher.poll(1_000):
            found += [(row.key, row.value) for row in fetched.rows()]
    await fetcher.close()
    return found


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_many_records_are_written_in_order_and_counted(
    tmp_path: Path, idempotent: bool, compression: str
) -> None:
    async def story(cluster: Cluster) -> None:
        # Memory for a few batches only: some wait for room.
        settings = SendSettings(
            batch_bytes=1_000, buffer_bytes=5_000, idempotent=idempotent, compression=compression
        )
        tally = SendTally()
        async with RecordSender(cluster, settings) as sender:
            bulk = BulkSender(sender)
            for begin in range(0, len(VALUES), 700):
                await bulk.send_many("t", Columns(VALUES[begin : begin + 700]), tally)
            # Between them one that is sent by itself, with an answer of its own.
            own = await sender.send("t", b"own", b"k")
            await bulk.send_many("t", Columns([b"last"], [b"k"]), tally)
            await sender.flush()
            assert own.result().offset == len(VALUES)
        assert (tally.taken, tally.written, tally.failed) == (3_001, 3_001, 0)
        expected = [*((None, each) for each in VALUES), (b"k", b"own"), (b"k", b"last")]
        assert await read(cluster, "t", 3_002) == expected

    play(tmp_path, story)


def test_keys_go_where_single_records_go(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        keys = [b"%d" % (number % 50) for number in range(1_000)]
        headers = [[("n", value)] for value in VALUES[:1_000]]
        tally = SendTally()
        async with RecordSender(cluster) as sender:
            bulk = BulkSender(sender)
            one_by_one = [await sender.send("t", b"x", key) for key in keys[:50]]
            await sender.flush()
            places = [each.result().partition for each in one_by_one]
            await bulk.send_many("t", Columns(VALUES[:1_000], keys, headers), tally)
        assert tally.written == 1_000
        fetcher = Fetcher(cluster)
        fetcher.assign({TopicPartition("t", partition): 0 for partition in range(4)})
        found: dict[bytes | None, list[bytes | None]] = {}
        count = 0
        while count < 1_050:
            for fetched in await fetcher.poll(1_000):
                for row in fetched.rows():
                    count += 1
                    assert places[int(row.key or b"")] == fetched.partition.partition
                    if row.headers:
                        found.setdefault(row.key, []).append(row.value)
                        assert row.headers == [("n", row.value)]
        await fetcher.close()
        assert found == {b"%d" % key: VALUES[key:1_000:50] for key in range(50)}

    play(tmp_path, story, partitions=4)


def test_what_is_refused_is_counted_and_a_batch_that_is_too_large_is_cut(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        tally = SendTally()
        async with RecordSender(cluster, SendSettings(batch_bytes=100_000)) as sender:
            bulk = BulkSender(sender)
            await bulk.send_many("t", Columns(VALUES[:400]), tally)
            await sender.flush()
            assert (tally.written, tally.failed) == (400, 0)
            await bulk.send_many("t", Columns([b"x" * 600]), tally)
            await sender.flush()
            with pytest.raises(Refused):
                await bulk.send_many("t", Columns([b"x"]), tally, partition=7)
        assert (tally.taken, tally.written, tally.failed, tally.unanswered) == (401, 400, 1, 0)
        assert isinstance(tally.first_error, Refused)
        assert tally.first_error.code == ErrorCode.MESSAGE_TOO_LARGE
        assert [value for _, value in await read(cluster, "t", 400)] == VALUES[:400]

    play(tmp_path, story, configs={"max.message.bytes": "500"})


@pytest.mark.parametrize(("initial", "count"), [(-1, 4), (4, 4), (3, 5), (2, 8)])
def test_many_keys_are_placed_as_each_of_them(initial: int, count: int) -> None:
    partitions = {index: Partition(index, 1, 0, (1,), (1,), ()) for index in range(count)}
    topic = Topic(
        "t", UUID(int=1), False, partitions,
        initial_partition_count=initial, undeleted_partition_count=count if initial > 0 else -1,
    )  # fmt: skip
    chooser = PartitionChooser(Random(1))
    keys = [*VALUES[:500], None]
    assert chooser.choose_all(topic, keys) == [chooser.choose(topic, key) for key in keys]
    assert set(chooser.choose_all(topic, keys)) == set(range(count))
