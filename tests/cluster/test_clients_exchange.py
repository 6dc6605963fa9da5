"""Every stock client writes with every compression; every one reads all of it, in order."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support import clients
from tests.support.clients import COMPRESSIONS, Record
from tests.support.java import ToolRunner, missing
from tests.support.log_files import batches
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until

RECORDS_PER_RUN = 40
HEADERS = (("source", "tidelog"), ("trace", "0042"))


@dataclass(frozen=True)
class Exchange:
    """A topic with one run of records of each writer and compression."""

    topic: str
    written: list[Record]


def records_of(writer: str, compression: str) -> list[Record]:
    """Text that compresses well, so that every writer really compresses."""
    return [
        Record(f"{writer}-{number}", f"{compression} {number} " + "tide " * 60, HEADERS)
        for number in range(RECORDS_PER_RUN)
    ]


def writers_here() -> list[str]:
    """The clients that can run on this machine."""
    here = ["confluent-kafka", "aiokafka"]
    if clients.kafka_python_lacks() is None:
        here.append("kafka-python")
    if clients.kcat_missing() is None:
        here.append("kcat")
    if missing() is None:
        here.append("java")
    return here


@pytest.fixture(scope="module")
def exchange(node: Node, _tool_runner: ToolRunner) -> Iterator[Exchange]:
    """All writers, one after another, into one partition."""
    write = {
        "confluent-kafka": clients.write_confluent,
        "kafka-python": clients.write_kafka_python,
        "aiokafka": clients.write_aiokafka,
        "kcat": clients.write_kcat,
        "java": clients.java_writer(_tool_runner),
    }
    topic = f"exchange-{uuid.uuid4().hex[:8]}"
    clients.create_topic(node.bootstrap, topic)
    written = []
    for writer in writers_here():
        for compression in COMPRESSIONS:
            records = records_of(writer, compression)
            write[writer](node.bootstrap, topic, records, compression)
            written += records
    yield Exchange(topic, written)


def test_confluent_reads_all(node: Node, exchange: Exchange) -> None:
    got = clients.read_confluent(node.bootstrap, exchange.topic, len(exchange.written))
    assert got == exchange.written


def test_kafka_python_reads_all(node: Node, exchange: Exchange) -> None:
    reason = clients.kafka_python_lacks()
    if reason is not None:
        pytest.skip(reason)
    got = clients.read_kafka_python(node.bootstrap, exchange.topic, len(exchange.written))
    assert got == exchange.written


def test_aiokafka_reads_all(node: Node, exchange: Exchange) -> None:
    got = clients.read_aiokafka(node.bootstrap, exchange.topic, len(exchange.written))
    assert got == exchange.written


def test_kcat_reads_all(node: Node, exchange: Exchange) -> None:
    reason = clients.kcat_missing()
    if reason is not None:
        pytest.skip(reason)
    got = clients.read_kcat(node.bootstrap, exchange.topic, len(exchange.written))
    assert got == exchange.written


@pytest.mark.java
def test_java_reads_all(node: Node, exchange: Exchange, tools: ToolRunner) -> None:
    got = clients.java_reader(tools)(node.bootstrap, exchange.topic, len(exchange.written))
    assert got == exchange.written


def test_the_log_keeps_the_producers_compression(node: Node, exchange: Exchange) -> None:
    def record_counts() -> dict[str, int]:
        found = dict.fromkeys(COMPRESSIONS, 0)
        for batch in batches(node.log_folder(), exchange.topic):
            found[batch.compression] += batch.record_count
        return found

    expected = dict.fromkeys(COMPRESSIONS, RECORDS_PER_RUN * len(writers_here()))
    wait_until(
        lambda: sum(record_counts().values()) == len(exchange.written), DEADLINE_S, "all on disk"
    )
    assert record_counts() == expected
