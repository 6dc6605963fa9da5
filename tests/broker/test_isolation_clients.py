"""Stock clients and ours at both isolation levels, from a log with aborted transactions (KIP-98).

No client can write such a log here yet: the test appends as the partition's leader.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.support.isolation import Transactions, committed_in
from tests.support.lone_broker import ThreadedBroker
from tests.support.processes import DEADLINE_S
from tidelog.client.blocking import BlockingCluster
from tidelog.client.offsets import LATEST, IsolationLevel, list_offsets
from tidelog.model.topics import TopicPartition
from tidelog.storage.log.stable import last_stable_offset

TOPIC = "t"

Read = tuple[list[int], int | None]
"""The offsets of all records, and the end of the partition where the client can say it."""

Reader = Callable[[str, bool, int], Read]
"""Reads from the beginning on, until the last offset that is expected."""


def level(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


def by_librdkafka(bootstrap: str, committed: bool, last: int) -> Read:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": level(committed),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    got: list[int] = []
    until = time.monotonic() + DEADLINE_S
    while last not in got and time.monotonic() < until:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            got.append(message.offset())
    consumer.close()
    return got, None


def by_kafka_python(bootstrap: str, committed: bool, last: int) -> Read:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        isolation_level=level(committed),
    )
    place = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([place])
    got: list[int] = []
    until = time.monotonic() + DEADLINE_S
    while last not in got and time.monotonic() < until:
        for messages in consumer.poll(200).values():
            got += [each.offset for each in messages]
    end = consumer.end_offsets([place])[place]
    consumer.close()
    return got, end


def by_aiokafka(bootstrap: str, committed: bool, last: int) -> Read:
    async def run() -> Read:
        got: list[int] = []
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            isolation_level=level(committed),
        )
        await consumer.start()
        try:
            place = aiokafka.TopicPartition(TOPIC, 0)
            consumer.assign([place])
            async with asyncio.timeout(DEADLINE_S):
                while last not in got:
                    for messages in (await consumer.getmany(timeout_ms=200)).values():
                        got += [each.offset for each in messages]
            end = (await consumer.end_offsets([place]))[place]
        finally:
            await consumer.stop()
        return got, end

    return asyncio.run(run())


def by_tidelog(bootstrap: str, committed: bool, last: int) -> Read:
    isolation = IsolationLevel[level(committed).upper()]
    place = TopicPartition(TOPIC, 0)
    with BlockingCluster(bootstrap) as client:
        found = client.call(list_offsets(client.cluster, {place: LATEST}, isolation=isolation))
        end = found[place].offset
        pieces = client.read_ranges({place: (0, end)}, isolation=isolation)
        return [row.offset for piece in pieces for row in piece.rows()], end


@pytest.mark.parametrize("size", [20, 40_000], ids=["memory", "file"])
@pytest.mark.parametrize("committed", [True, False], ids=level)
@pytest.mark.parametrize("reader", [by_librdkafka, by_kafka_python, by_aiokafka, by_tidelog])
def test_a_client_sees_what_its_isolation_level_says(
    tmp_path: Path, reader: Reader, committed: bool, size: int
) -> None:
    served = ThreadedBroker(tmp_path)

    def fill(hosted_size: int) -> tuple[list[int], int, list[int], int]:
        hosted = served.lone.lead(TOPIC, configs={"segment.bytes": "300000"})
        transactions = Transactions(hosted, hosted_size)
        for number in range(10):
            transactions.data(20)
            transactions.data(21)
            transactions.plain()
            (transactions.abort if number % 3 else transactions.commit)(20)
            transactions.data(22)
            transactions.abort(21)
            transactions.commit(22)
            hosted.log.sync()
        transactions.plain()
        transactions.data(20)
        transactions.plain()
        log = hosted.log
        stable = last_stable_offset(log)
        markers = {7 * number + at for number in range(10) for at in (3, 5, 6)}
        all_data = [at for at in range(log.end_offset) if at not in markers]
        return committed_in(log, stable), stable, all_data, log.end_offset

    with served as lone:
        readable, stable, all_data, end = served.run(lambda _: fill(size))
        expected, expected_end = (readable, stable) if committed else (all_data, end)
        assert len(readable) < len(all_data) - 15
        got, said = reader(lone.bootstrap, committed, expected[-1])
        assert got == expected
        assert said in (None, expected_end)
