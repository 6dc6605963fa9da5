"""A batch is refused, or four readers read it alike: with ``log.batch.check=full`` (B2).

The kind: what is stored can be read. A reader that meets a batch which it cannot read stays before
it for ever. The batches are those of ``tests/support/lying_batches``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.support.lone_broker import LoneBroker, ThreadedBroker
from tests.support.lying_batches import Lie, family
from tests.support.processes import DEADLINE_S
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected, read_header
from tidelog.records.reader import read_batch
from tidelog.runtime.clock import RealClock
from tidelog.storage.log.results import Appended

PRESENT_MS = RealClock().wall_ms()
SEEDS = range(3)
PER_SEED = 180
TOPIC = "t"

REFUSALS = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
}


class Read(NamedTuple):
    """A record, as each of the clients can name it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def by_librdkafka(bootstrap: str, end: int) -> list[Read]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    got: list[Read] = []
    until = time.monotonic() + DEADLINE_S
    while (not got or got[-1].offset < end - 1) and time.monotonic() < until:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, f"after {got[-1:]}: {message.error()}"
            kind, timestamp = message.timestamp()
            timestamp = -1 if kind == confluent_kafka.TIMESTAMP_NOT_AVAILABLE else timestamp
            headers = tuple(message.headers() or ())
            key, value = message.key(), message.value()
            got.append(Read(message.offset(), timestamp, key, value, headers))
    consumer.close()
    return got


def by_kafka_python(bootstrap: str, end: int) -> list[Read]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(TOPIC, 0)])
    got: list[Read] = []
    until = time.monotonic() + DEADLINE_S
    while (not got or got[-1].offset < end - 1) and time.monotonic() < until:
        for messages in consumer.poll(200).values():
            got += [_read(each) for each in messages]
    consumer.close()
    return got


def by_aiokafka(bootstrap: str, end: int) -> list[Read]:
    async def run() -> list[Read]:
        got: list[Read] = []
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", check_crcs=True
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(TOPIC, 0)])
            async with asyncio.timeout(DEADLINE_S):
                while not got or got[-1].offset < end - 1:
                    for messages in (await consumer.getmany(timeout_ms=200)).values():
                        got += [_read(each) for each in messages]
        finally:
            await consumer.stop()
        return got

    return asyncio.run(run())


def _read(message: Any) -> Read:
    headers = tuple((name, content) for name, content in message.headers)
    return Read(message.offset, message.timestamp, message.key, message.value, headers)


READERS: list[Callable[[str, int], list[Read]]] = [by_librdkafka, by_kafka_python, by_aiokafka]


def taken(lone: LoneBroker, lies: list[Lie]) -> tuple[list[Read], dict[int, str]]:
    """Send all to partition 0; return what our reader finds, and the claim of each offset."""
    partition = lone.lead(TOPIC, configs={"max.message.bytes": "40000000"})
    expected: list[Read] = []
    claims: dict[int, str] = {}
    for lie in lies:
        got = partition.append(lie.batch, PRESENT_MS, resumes=True)
        if isinstance(got, Rejected):
            assert got.error in REFUSALS and got.reason, f"{lie.claim}: {got}"
            continue
        if got.duplicate:
            continue
        assert isinstance(got, Appended)
        data = partition.read(got.first_offset, 1, committed=False)
        assert not isinstance(data, Rejected)
        header, records = read_header(data), read_batch(data)
        assert header.max_timestamp == max(-1, *(each.timestamp for each in records)), lie.claim
        for record in records:
            claims[record.offset] = lie.claim
            expected.append(Read(*record[:4], tuple(record.headers)))
    assert [each.offset for each in expected] == list(range(partition.end_offset))
    return expected, claims


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_taken_is_read_by_all(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    lies = list(family(seed, PRESENT_MS, PER_SEED))
    broker = ThreadedBroker(tmp_path, {"log.batch.check": "full"})
    with broker as lone:
        expected, claims = broker.run(lambda each: taken(each, lies))
        assert len(set(claims.values())) > PER_SEED / 12, "what passes is what this is about"
        with ThreadPoolExecutor(len(READERS)) as threads:
            reads = [threads.submit(read, lone.bootstrap, len(expected)) for read in READERS]
        for reader, read in zip(READERS, reads, strict=True):
            found = read.result()
            for mine, theirs in zip(expected, found, strict=False):
                assert mine == theirs, f"{reader.__name__}: {claims[mine.offset]}"
            assert len(found) == len(expected), f"{reader.__name__}: {claims[len(found)]}"
