"""tidelog's own client against a running server, and through connections that break.

Runs against Apache Kafka too (`TIDELOG_TEST_TARGET=kafka`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from tests.support.clients import COMPRESSIONS, create_topic
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, free_ports
from tidelog.client import offsets
from tidelog.client.admin.groups import describe_group
from tidelog.client.admin.topics import create_partitions, delete_records
from tidelog.client.blocking import BlockingCluster
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import (
    ClientError,
    ClusterUnreachable,
    ConnectionLost,
    GaveUp,
    OffsetOutOfRange,
    Refused,
)
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import Fetcher, OffsetReset
from tidelog.client.groups.committed_offsets import committed_offsets
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from tidelog.client.producing.record_metadata import RecordMetadata
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.record import Record
from tidelog.runtime.backoff import Backoff

PATIENT_MS = int(DEADLINE_S * 1000)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; TimeoutError when it hangs."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


async def read_all(
    cluster: Cluster,
    partitions: list[TopicPartition],
    options: FetchOptions | None = None,
) -> dict[TopicPartition, list[Record]]:
    """Everything in these partitions, up to their present ends."""
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    fetcher = Fetcher(cluster, options=options)
    found: dict[TopicPartition, list[Record]] = {partition: [] for partition in partitions}
    try:
        fetcher.assign(
            {tp: item.offset for tp, item in starts.items()},
            {tp: item.offset for tp, item in ends.items()},
        )
        while not fetcher.finished():
            for piece in await fetcher.poll(1000):
                found[piece.partition] += piece.rows()
    finally:
        await fetcher.close()
    return found


def values(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


def test_what_it_writes_a_stock_client_reads(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            for codec in COMPRESSIONS:
                async with RecordSender(cluster, SendSettings(compression=codec)) as sender:
                    outcomes = [
                        await sender.send(
                            topic_name,
                            b"%d" % n,
                            codec.encode(),
                            headers=[("h", b"x"), ("n", None)],
                        )
                        for n in range(500)
                    ]
                    await sender.flush()
                    assert [o.result().offset for o in outcomes] == list(
                        range(outcomes[0].result().offset, outcomes[0].result().offset + 500)
                    )
        reader = aiokafka.AIOKafkaConsumer(
            topic_name, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        )
        await reader.start()
        try:
            for codec in COMPRESSIONS:
                for n in range(500):
                    record = await reader.getone()
                    assert (record.key, record.value) == (codec.encode(), b"%d" % n)
                    assert record.headers == (("h", b"x"), ("n", None))
        finally:
            await reader.stop()

    run(work())


def test_what_a_stock_client_writes_it_reads(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 3)

    async def work() -> None:
        for codec in COMPRESSIONS:
            writer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec
            )
            await writer.start()
            try:
                for n in range(300):
                    await writer.send(topic_name, b"%d" % n, key=codec.encode() + b"%d" % (n % 7))
            finally:
                await writer.stop()
        partitions = [TopicPartition(topic_name, index) for index in range(3)]
        async with Cluster(bootstrap) as cluster:
            # Small pieces: sessions, bounded prefetch and cut batches all take part.
            options = FetchOptions(max_bytes=3000, partition_bytes=1000)
            found = await read_all(cluster, partitions, options)
        assert sum(map(len, found.values())) == 300 * len(COMPRESSIONS)
        by_key: dict[bytes | None, list[int]] = {}
        for records in found.values():
            assert [record.offset for record in records] == list(range(len(records)))
            for record in records:
                by_key.setdefault(record.key, []).append(int(record.value or b""))
        for codec in COMPRESSIONS:
            for rest in range(7):
                assert by_key[codec.encode() + b"%d" % rest] == list(range(rest, 300, 7))

    run(work())


def test_offsets_by_time_and_by_name(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    where = TopicPartition(topic_name, 0)

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            assert (await list_offsets(cluster, {where: MAX_TIMESTAMP}))[where].offset == -1
            async with RecordSender(cluster) as sender:
                for stamp in (1000, 3000, 2000):
                    await (await sender.send(topic_name, b"v", timestamp_ms=stamp))

            async def at(asked: int) -> int:
                return (await list_offsets(cluster, {where: asked}))[where].offset

            assert [await at(asked) for asked in (EARLIEST, LATEST, MAX_TIMESTAMP)] == [0, 3, 1]
            assert [await at(asked) for asked in (0, 1001, 3000, 3001)] == [0, 1, 1, -1]
            ends = await offsets.offsets_for_leader_epoch(cluster, {where: 0})
            assert ends[where].end_offset == 3
            assert await delete_records(cluster, {where: 2}) == {where: 2}
            assert await at(EARLIEST) == 2
            with pytest.raises(Refused) as refused:
                await list_offsets(cluster, {TopicPartition(topic_name, 9): LATEST})
            assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(work())


def test_a_position_that_the_log_has_not(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    where = TopicPartition(topic_name, 0)

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            async with RecordSender(cluster) as sender:
                await (await sender.send(topic_name, b"7"))
            fetcher = Fetcher(cluster)
            fetcher.assign({where: 50})
            with pytest.raises(OffsetOutOfRange) as problem:
                await fetcher.poll(PATIENT_MS)
            assert (problem.value.partition, problem.value.offset) == (where, 50)
            fetcher.seek(where, 0)
            (piece,) = await fetcher.poll(PATIENT_MS)
            assert values(list(piece.rows())) == [7]
            await fetcher.close()
            resetting = Fetcher(cluster, reset=OffsetReset.EARLIEST)
            resetting.assign({where: 50})
            (piece,) = await resetting.poll(PATIENT_MS)
            assert values(list(piece.rows())) == [7]
            await resetting.close()

    run(work())


def test_a_refused_batch_takes_no_other_along(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, max_message_bytes=2000)

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            settings = SendSettings(batch_bytes=500, linger_ms=0)
            async with RecordSender(cluster, settings) as sender:
                outcomes: list[asyncio.Future[RecordMetadata]] = []
                for n in range(300):
                    value = b"%d" % n if n % 50 else b"x" * 3000
                    outcomes.append(await sender.send(topic_name, value))
                await sender.flush()
        for n, outcome in enumerate(outcomes):
            error = outcome.exception()
            if n % 50:
                assert error is None
            else:
                assert isinstance(error, Refused) and error.code == ErrorCode.MESSAGE_TOO_LARGE
        async with Cluster(bootstrap) as cluster:
            where = TopicPartition(topic_name, 0)
            found = (await read_all(cluster, [where]))[where]
        assert values(found) == [n for n in range(300) if n % 50]

    run(work())


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_batches_larger_than_the_topic_allows_are_cut(
    bootstrap: str, topic_name: str, codec: str
) -> None:
    create_topic(bootstrap, topic_name, max_message_bytes=1500)
    chance = random.Random(8)
    padding = [b"%d" % chance.randrange(10**60) for _ in range(2000)]

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            async with RecordSender(cluster, SendSettings(compression=codec)) as sender:
                outcomes = [
                    await sender.send(topic_name, b"%d" % n, padding[n], headers=[("h", b"x")])
                    for n in range(2000)
                ]
                await sender.flush()
            where = TopicPartition(topic_name, 0)
            found = (await read_all(cluster, [where]))[where]
        assert values(found) == list(range(2000))
        assert [outcome.result().offset for outcome in outcomes] == list(range(2000))
        assert [record.key for record in found] == padding

    run(work())


def test_two_members_share_and_one_takes_over(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 4)
    group = topic_name

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            async with RecordSender(cluster) as sender:
                for n in range(400):
                    await sender.send(topic_name, b"%d" % n, partition=n % 4)
                await sender.flush()

            def member() -> GroupReader:
                return GroupReader(cluster, group, [topic_name], reset=OffsetReset.EARLIEST)

            seen: list[int] = []

            async def read(reader: GroupReader, enough: Callable[[], bool]) -> None:
                while not enough():
                    for piece in await reader.poll(200):
                        seen.extend(values(list(piece.rows())))

            first, second = member(), member()
            shared = asyncio.Event()

            def both() -> bool:
                if len(first.assignment) == len(second.assignment) == 2 and len(set(seen)) == 400:
                    shared.set()
                return shared.is_set()

            await asyncio.gather(read(first, both), read(second, both))
            assert set(first.assignment) | set(second.assignment) == {
                TopicPartition(topic_name, index) for index in range(4)
            }
            assert (await describe_group(cluster, group)).state == "Stable"
            await first.controls.commit()
            await first.close()
            await read(second, lambda: len(second.assignment) == 4)
            await second.controls.commit()
            committed = await committed_offsets(cluster, group)
            assert [position.offset for position in committed.values()] == [100] * 4
            await second.close()

    run(work())


def test_it_shares_a_group_with_a_stock_client(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 4)

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            reader = GroupReader(cluster, topic_name, [topic_name], reset=OffsetReset.EARLIEST)
            while not reader.assignment:
                await reader.poll(200)
            stock = aiokafka.AIOKafkaConsumer(
                topic_name,
                bootstrap_servers=bootstrap,
                group_id=topic_name,
                partition_assignment_strategy=(RangePartitionAssignor,),
                heartbeat_interval_ms=200,
            )
            starting = asyncio.create_task(stock.start())
            while not (stock.assignment() and len(reader.assignment) == 2):
                await reader.poll(100)
            await starting
            theirs = {TopicPartition(tp.topic, tp.partition) for tp in stock.assignment()}
            assert len(theirs) == 2
            assert theirs | set(reader.assignment) == {
                TopicPartition(topic_name, index) for index in range(4)
            }
            await stock.stop()
            while len(reader.assignment) < 4:
                await reader.poll(100)
            await reader.close()

    run(work())


def test_a_group_takes_partitions_that_come_later(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 1)

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            reader = GroupReader(
                cluster,
                topic_name,
                [topic_name],
                reset=OffsetReset.EARLIEST,
                partition_check_ms=0,
            )
            while not reader.assignment:
                await reader.poll(200)
            assert await create_partitions(cluster, {topic_name: 3}) == {topic_name: None}
            while len(reader.assignment) < 3:
                await reader.poll(200)
            async with RecordSender(cluster) as sender:
                await (await sender.send(topic_name, b"8", partition=2))
            seen: list[int] = []
            while not seen:
                for piece in await reader.poll(200):
                    seen += values(list(piece.rows()))
            assert seen == [8]
            await reader.close()

    run(work())


def test_a_sender_sees_a_topic_grow(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 1)

    async def work() -> None:
        settings = ClusterSettings(metadata_max_age_ms=50)
        async with Cluster(bootstrap, settings) as cluster, RecordSender(cluster) as sender:
            await (await sender.send(topic_name, b"0", b"a"))
            await create_partitions(cluster, {topic_name: 8})
            found = set()
            while len(found) < 8:
                outcomes = [await sender.send(topic_name, b"1", b"%d" % n) for n in range(100)]
                found |= {(await outcome).partition for outcome in outcomes}

    run(work())


def test_an_unreachable_cluster_is_said_in_time() -> None:
    (port,) = free_ports(1)

    async def work() -> None:
        with pytest.raises(ClusterUnreachable, match=str(port)):
            await Cluster(f"127.0.0.1:{port}").open(1000)
        with pytest.raises(ConnectionLost, match="refused"):
            await connect("127.0.0.1", port)

    run(work())


def test_a_closed_connection_fails_everything_under_way(bootstrap: str) -> None:
    host, _, port = bootstrap.rpartition(":")

    async def work() -> None:
        reasons: list[ConnectionLost] = []
        connection = await connect(host, int(port), on_closed=reasons.append, max_in_flight=2)
        asked: list[asyncio.Future[Any]] = [
            connection.submit(messages.MetadataRequest(topics=[])) for _ in range(2)
        ]
        asked += [
            asyncio.create_task(connection.send(messages.MetadataRequest(topics=[])))
            for _ in range(3)
        ]
        connection.close()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(each, ConnectionLost) for each in found), found
        assert len(reasons) == 1 and connection.closed
        await connection.wait_closed()
        with pytest.raises(ConnectionLost):
            await connection.send(messages.MetadataRequest())

    run(work())


def test_the_blocking_front_reads_ranges(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 2)
    with BlockingCluster(bootstrap) as client:

        async def write() -> None:
            async with RecordSender(client.cluster) as sender:
                for n in range(2000):
                    await sender.send(topic_name, b"%d" % n, partition=n % 2)
                await sender.flush()

        client.call(write())
        ranges = {TopicPartition(topic_name, 0): (10, 500), TopicPartition(topic_name, 1): (5, 5)}
        found = [
            row
            for piece in client.read_ranges(ranges, options=FetchOptions(partition_bytes=2000))
            for row in piece.rows()
            if row.offset < 500
        ]
        assert [row.offset for row in found] == list(range(10, 500))
        assert values(found) == [2 * offset for offset in range(10, 500)]
        with pytest.raises(OffsetOutOfRange):
            list(client.read_ranges({TopicPartition(topic_name, 0): (5000, 6000)}))
        with pytest.raises(GaveUp, match="500 ms"):
            behind = {TopicPartition(topic_name, 0): (1000, 1001)}
            list(client.read_ranges(behind, idle_timeout_ms=500))
    client.close()


class BreakingProxy:
    """A TCP proxy whose connections break after a random number of bytes, either way."""

    def __init__(self, target: int, chance: random.Random, least: int, most: int) -> None:
        self._target = target
        self._chance = chance
        self._bounds = (least, most)
        self.broken = 0
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)

    async def stop(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target)
        left = [self._chance.randint(*self._bounds)]
        pumps = [
            asyncio.create_task(self._pump(reader, to_writer, left)),
            asyncio.create_task(self._pump(to_reader, writer, left)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
        for each in (writer, to_writer):
            each.transport.abort()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(8192):
                left[0] -= len(data)
                if left[0] < 0:
                    self.broken += 1
                    if self._chance.random() < 0.5:
                        # Half of the bytes that break it still arrive.
                        writer.write(data[: len(data) // 2])
                        await writer.drain()
                    return
                writer.write(data)
                await writer.drain()


class DetouredCluster(Cluster):
    """A cluster whose every connection leads through one proxy."""

    def __init__(self, bootstrap: str, settings: ClusterSettings, proxy_port: int) -> None:
        super().__init__(bootstrap, settings)
        self._proxy_port = proxy_port

    async def _connection_to(self, key: tuple[Any, str], host: str, port: int) -> ClientConnection:
        return await super()._connection_to(key, host, self._proxy_port)


def test_through_breaking_connections_nothing_is_lost_repeated_or_reordered(
    node: Node, topic_name: str
) -> None:
    create_topic(node.bootstrap, topic_name, 3)
    (port,) = free_ports(1)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    settings = ClusterSettings(backoff=Backoff(5, 50, chance), request_timeout_ms=5000)

    async def work() -> None:
        proxy = BreakingProxy(node.port, chance, 2_000, 20_000)
        await proxy.start(port)
        async with DetouredCluster(node.bootstrap, settings, port) as cluster:
            chosen = SendSettings(batch_bytes=1000, linger_ms=1, max_request_bytes=4000)
            async with RecordSender(cluster, chosen) as sender:
                outcomes = []
                for n in range(8000):
                    outcomes.append(await sender.send(topic_name, b"%d" % n, b"%d" % (n % 13)))
                    if n % 200 == 0:
                        # Five requests and more follow this one and are under way.
                        await outcomes[n - min(n, 100)]
                await sender.flush()
            partitions = [TopicPartition(topic_name, index) for index in range(3)]
            options = FetchOptions(partition_bytes=3000, max_wait_ms=50)
            found = await read_all(cluster, partitions, options)
            everything = sorted(n for records in found.values() for n in values(records))
            assert everything == list(range(8000))
            for partition, records in found.items():
                assert values(records) == sorted(values(records)), partition
                assert [record.offset for record in records] == list(range(len(records)))
            for n, outcome in enumerate(outcomes):
                sent = outcome.result()
                assert values([found[sent.topic_partition][sent.offset]]) == [n]
        assert proxy.broken > 20, proxy.broken
        await proxy.stop()

    run(work())


def test_a_server_that_is_killed_and_comes_back(
    make_node: Callable[..., Node], topic_name: str
) -> None:
    node = make_node()

    async def work() -> None:
        async with Cluster(node.bootstrap) as cluster:
            await cluster.topics([topic_name], create=True)
            seen: list[int] = []
            reader = Fetcher(cluster)
            partitions = [
                TopicPartition(topic_name, index)
                for index in cluster.view.topics[topic_name].partitions
            ]
            reader.assign(dict.fromkeys(partitions, 0))
            async with RecordSender(cluster, SendSettings(linger_ms=1)) as sender:
                outcomes = []
                for n in range(3000):
                    outcomes.append(await sender.send(topic_name, b"%d" % n))
                    if n in (1000, 2000):
                        node.kill()
                        await asyncio.get_running_loop().run_in_executor(None, node.start)
                    if n % 50 == 0:
                        await outcomes[n - min(n, 30)]
                await sender.flush()
            assert all(outcome.exception() is None for outcome in outcomes)
            while len(seen) < 3000:
                for piece in await reader.poll(1000):
                    seen += values(list(piece.rows()))
            assert sorted(seen) == list(range(3000))
            await reader.close()

    run(work())


def test_an_error_of_the_client_is_one_line(bootstrap: str) -> None:
    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            with pytest.raises(ClientError) as refused:
                await cluster.topics(["no-such-topic-" + "x" * 5], timeout_ms=2000)
            assert "\n" not in str(refused.value)

    run(work())
