"""Stock clients with `auto.offset.reset=latest` read a topic that grows: they skip no record.

The children get records before the client has asked for new metadata, and while the group has no
members. The group begins at the births of the children (promise 9).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import NewPartitions

from tests.support import clients
from tests.support.java import java_command
from tests.support.processes import DEADLINE_S, Program, wait_until
from tests.support.server import TidelogNode

LIBRDKAFKA = """
import signal, sys
from confluent_kafka import Consumer
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
reader = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": sys.argv[3], "auto.offset.reset": "latest",
    "topic.metadata.refresh.interval.ms": 2000,
})
reader.subscribe([sys.argv[2]])
try:
    while True:
        found = reader.poll(0.2)
        if found is not None and not found.error():
            print(found.value().decode(), flush=True)
finally:
    reader.close()
"""

KAFKA_PYTHON = """
import signal, sys
from kafka import KafkaConsumer
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
reader = KafkaConsumer(
    sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[3], auto_offset_reset="latest",
    metadata_max_age_ms=2000,
)
try:
    for found in reader:
        print(found.value.decode(), flush=True)
finally:
    reader.close()
"""


def of_python(script: str) -> Callable[[str, str, str], list[str]]:
    return lambda *args: [sys.executable, "-c", script, *args]


def of_java(bootstrap: str, topic: str, group: str) -> list[str]:
    return java_command(
        *("kafka-console-consumer", "--bootstrap-server", bootstrap, "--topic", topic),
        *("--group", group, "--consumer-property", "auto.offset.reset=latest"),
        *("--consumer-property", "metadata.max.age.ms=2000"),
    )


class Writer:
    """Writes numbered records to partitions."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.written: set[str] = set()

    def write(self, what: str, partitions: int, count: int = 5) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self._bootstrap, "log_level": 3})
        for at in range(partitions):
            for number in range(count):
                value = f"{what}-{at}-{number}"
                producer.produce(self._topic, value, partition=at)
                self.written.add(value)
        assert producer.flush(DEADLINE_S) == 0


def grow(bootstrap: str, topic: str, count: int) -> None:
    admin = clients.admin(bootstrap)
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(DEADLINE_S)


@pytest.mark.long(25)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(of_python(LIBRDKAFKA), id="librdkafka"),
        pytest.param(of_python(KAFKA_PYTHON), id="kafka-python"),
        pytest.param(of_java, id="java", marks=pytest.mark.java),
    ],
)
def test_a_group_with_latest_skips_nothing(
    tmp_path: Path, command: Callable[[str, str, str], list[str]]
) -> None:
    topic, group = "t", "g"
    with TidelogNode(tmp_path / "node", {"inter.broker.protocol.version": "1.5"}) as node:
        clients.create_topic(node.bootstrap, topic, 2)
        writer = Writer(node.bootstrap, topic)
        arguments = command(node.bootstrap, topic, group)

        def read(*programs: Program) -> set[str]:
            return {line for program in programs for line in program.output().split()}

        with Program(arguments, tmp_path / "first.out") as first:
            probes = Writer(node.bootstrap, topic)

            def reads() -> bool:
                probes.write("probe", 2, 1)
                return {"probe-0-0", "probe-1-0"} <= read(first)

            wait_until(reads, DEADLINE_S, "the group reads both partitions")
            grow(node.bootstrap, topic, 4)
            writer.write("grown", 4)
            wait_until(lambda: writer.written <= read(first), DEADLINE_S, "all is read")
            first.stop()
        # Without members the group exists by its commits.
        grow(node.bootstrap, topic, 8)
        writer.write("away", 8)
        with Program(arguments, tmp_path / "second.out") as second:
            done = lambda: writer.written <= read(first, second)  # noqa: E731
            wait_until(done, DEADLINE_S, "all is read by the next member")
            writer.write("back", 8)
            wait_until(done, DEADLINE_S, "the rest is read")
