"""Stock clients with `auto.offset.reset=latest` read a topic that grows: they skip no record.

The children get records before the client has asked for new metadata, and while the group has no
members. The group begins at the births of the children (promise 9). And it reads on when they have
retired and are removed: the client commits them once more before it joins again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import NewPartitions

from tests.support import clients
from tests.support.java import java_command
from tests.support.processes import DEADLINE_S, Program, wait_until
from tests.support.resizes import resize
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


def shrink(bootstrap: str, topic: str, count: int) -> None:
    """Shrink a topic; return when its retired partitions are drained and removed."""
    resize(bootstrap, topic, count)
    admin = clients.admin(bootstrap)

    def are_removed() -> bool:
        found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return len(found) == count

    wait_until(are_removed, DEADLINE_S, "the retired partitions are drained and removed")


EACH_CLIENT = pytest.mark.parametrize(
    "command",
    [
        pytest.param(of_python(LIBRDKAFKA), id="librdkafka"),
        pytest.param(of_python(KAFKA_PYTHON), id="kafka-python"),
        pytest.param(of_java, id="java", marks=pytest.mark.java),
    ],
)


@pytest.mark.long(25)
@EACH_CLIENT
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


@pytest.mark.long(25)
@EACH_CLIENT
def test_a_group_reads_on_when_retired_partitions_are_removed(
    tmp_path: Path, command: Callable[[str, str, str], list[str]]
) -> None:
    topic, group = "t", "g"
    config = {
        "inter.broker.protocol.version": "1.5",
        "retired.check.interval.ms": "200",
        "retired.purge.delay.ms": "0",
    }
    with TidelogNode(tmp_path / "node", config) as node:
        clients.create_topic(node.bootstrap, topic, 2, retired_purge="drained")
        writer = Writer(node.bootstrap, topic)
        with Program(command(node.bootstrap, topic, group), tmp_path / "reader.out") as reader:

            def has_all() -> bool:
                return writer.written <= set(reader.output().split())

            probes = Writer(node.bootstrap, topic)

            def reads() -> bool:
                probes.write("probe", 2, 1)
                return {"probe-0-0", "probe-1-0"} <= set(reader.output().split())

            wait_until(reads, DEADLINE_S, "the group reads both partitions")
            grow(node.bootstrap, topic, 4)
            writer.write("grown", 4)
            wait_until(has_all, DEADLINE_S, "all is read")
            shrink(node.bootstrap, topic, 2)
            for number in range(3):
                writer.write(f"shrunk-{number}", 2)
                wait_until(has_all, DEADLINE_S, "the group reads on")


@pytest.mark.long(15)
@pytest.mark.java
def test_kafkas_tool_describes_a_group_of_removed_partitions(tmp_path: Path) -> None:
    config = {
        "inter.broker.protocol.version": "1.5",
        "retired.check.interval.ms": "200",
        "retired.purge.delay.ms": "0",
    }
    with TidelogNode(tmp_path / "node", config) as node:
        clients.create_topic(node.bootstrap, "t", 2, retired_purge="drained")
        grow(node.bootstrap, "t", 3)
        Writer(node.bootstrap, "t").write("grown", 3, 1)
        reader = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
        ends = [confluent_kafka.TopicPartition("t", at, 2) for at in range(3)]
        reader.commit(offsets=ends, asynchronous=False)
        reader.close()
        shrink(node.bootstrap, "t", 2)
        done = subprocess.run(
            java_command(
                *("kafka-consumer-groups", "--bootstrap-server", node.bootstrap),
                *("--describe", "--group", "g", "--timeout", "20000"),
            ),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        rows = [line.split()[1:4] for line in done.stdout.splitlines() if line.startswith("g ")]
        assert sorted(rows) == [["t", "0", "2"], ["t", "1", "2"]], done
