"""Stock readers of a topic that grows and shrinks under load: each receives every record.

kafka-console-consumer, kcat and kafka-python, each with a group from the beginning. Retired
partitions still have records that no client has read when the topic shrinks. That `latest` skips
nothing: see `test_latest_through_growth.py`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.support import clients
from tests.support.cluster import TidelogCluster
from tests.support.java import java_command
from tests.support.processes import DEADLINE_S, Program, wait_until
from tests.support.resizes import resize
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

TOPIC, FEW = "t", 2
METADATA_MS = 1_000
KAFKA_PYTHON = """
import signal, sys
from kafka import KafkaConsumer
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
reader = KafkaConsumer(
    sys.argv[2], bootstrap_servers=sys.argv[1].split(","), group_id=sys.argv[3],
    auto_offset_reset="earliest", metadata_max_age_ms=int(sys.argv[4]),
)
try:
    for found in reader:
        print(found.value.decode(), flush=True)
finally:
    reader.close()
"""


def kafka_python(bootstrap: str, group: str) -> list[str]:
    return [sys.executable, "-c", KAFKA_PYTHON, bootstrap, TOPIC, group, str(METADATA_MS)]


def console_consumer(bootstrap: str, group: str) -> list[str]:
    return java_command(
        *("kafka-console-consumer", "--bootstrap-server", bootstrap, "--topic", TOPIC),
        *("--group", group, "--from-beginning"),
        *("--consumer-property", f"metadata.max.age.ms={METADATA_MS}"),
    )


def kcat(bootstrap: str, group: str) -> list[str]:
    return [
        *("kcat", "-b", bootstrap, "-G", group, "-u", "-q", "-f", "%s\\n"),
        *("-X", "auto.offset.reset=earliest"),
        *("-X", f"topic.metadata.refresh.interval.ms={METADATA_MS}"),
        TOPIC,
    ]


KCAT = pytest.mark.skipif(clients.kcat_missing() is not None, reason="kcat is not installed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    config = {
        "retired.check.interval.ms": 200,
        "retired.purge.delay.ms": 0,
        "group.initial.rebalance.delay.ms": 100,
    }
    with TidelogCluster(tmp_path, config=config) as started:
        started.create_topic(TOPIC, FEW, 3, retired_purge="drained")
        yield started


class Writer:
    """Writes numbered records to each partition that takes them."""

    def __init__(self, bootstrap: str) -> None:
        self.written: set[str] = set()
        self._bootstrap = bootstrap
        self._numbers = itertools.count()

    def write(self, count: int, records: int = 40) -> None:
        """Write so many records to each of ``count`` partitions; all are acknowledged."""
        refused: list[confluent_kafka.KafkaError] = []
        # A new one knows all partitions at once.
        producer = confluent_kafka.Producer({"bootstrap.servers": self._bootstrap, "log_level": 3})

        def answered(error: confluent_kafka.KafkaError | None, _: object) -> None:
            if error is not None:
                refused.append(error)

        for partition in range(count):
            for _ in range(records):
                value = f"{partition}-{next(self._numbers)}"
                producer.produce(TOPIC, value, partition=partition, on_delivery=answered)
                self.written.add(value)
        assert producer.flush(DEADLINE_S) == 0 and not refused, refused


def until_listed(cluster: TidelogCluster, count: int) -> None:
    """Wait until the group has committed past all retired partitions, and they are removed."""
    wait_until(
        lambda: len(cluster.partitions(TOPIC)) == count,
        DEADLINE_S,
        lambda: f"{sorted(cluster.partitions(TOPIC))} are listed, not {count}",
    )


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(console_consumer, id="console-consumer", marks=pytest.mark.java),
        pytest.param(kcat, id="kcat", marks=KCAT),
        pytest.param(kafka_python, id="kafka-python"),
    ],
)
def test_each_reads_all_through_growth_and_shrinking(
    tmp_path: Path, cluster: TidelogCluster, command: Callable[[str, str], list[str]]
) -> None:
    writer = Writer(cluster.bootstrap)
    writer.write(FEW)
    with Program(command(cluster.bootstrap, "g"), tmp_path / "reader.out") as reader:

        def until_all_is_read(when: str) -> None:
            def missing() -> set[str]:
                return writer.written - set(reader.output().split())

            wait_until(
                lambda: not missing(),
                DEADLINE_S,
                lambda: f"{len(missing())} records lack {when}, as {sorted(missing())[:5]}",
            )

        until_all_is_read("at first")
        present = FEW
        for count in (5, FEW, 4, 7, 3, FEW):
            if count > present:
                until_listed(cluster, present)
            # Just before: what retires has records that are not read yet.
            writer.write(present)
            resize(cluster.bootstrap, TOPIC, count)
            present = count
            writer.write(present)
        until_all_is_read("at the end")
        until_listed(cluster, FEW)
        writer.write(FEW)
        until_all_is_read("afterwards")
