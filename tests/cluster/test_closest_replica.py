"""Consumers read from the replica of their rack (KIP-392): three real brokers in three racks.

The bytes are counted where they were read; when that broker dies the consumer goes on elsewhere.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator

import confluent_kafka
import pytest

from tests.support.cluster import TidelogCluster
from tests.support.java import ToolRunner
from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S, free_ports, wait_until
from tests.support.target import TARGET
from tidelog.protocol import messages

pytestmark = [
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
VALUE = b"x" * 1000
RECORDS = 2000


class Racks(TidelogCluster):
    """Broker n is in rack-n and shows its metrics."""

    def __init__(self, folder: object) -> None:
        shared = {"replica.selector.class": SELECTOR, "broker.session.timeout.ms": 3000}
        super().__init__(folder, config=shared)  # type: ignore[arg-type]
        self.metrics = dict(zip(self.brokers, free_ports(len(self.brokers)), strict=True))
        for node_id, node in self.brokers.items():
            node.configure(
                {"broker.rack": f"rack-{node_id}", "metrics_port": self.metrics[node_id]}
            )

    def bytes_out(self, broker: int, topic: str) -> float:
        """The bytes of a topic that a broker has given to clients and followers."""
        at = f"http://127.0.0.1:{self.metrics[broker]}/metrics"
        with urllib.request.urlopen(at, timeout=DEADLINE_S) as answer:
            text = answer.read().decode()
        name = "kafka_server_brokertopicmetrics_bytesout_total"
        for line in text.splitlines():
            if line.startswith(name) and f'topic="{topic}"' in line:
                return float(line.rsplit(" ", 1)[1])
        return 0.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racks]:
    with Racks(tmp_path_factory.mktemp("racks")) as started:
        yield started


def write(cluster: Racks, topic: str, first: int, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5}
    )
    for number in range(first, first + count):
        producer.produce(topic, VALUE + str(number).encode(), partition=0)
    assert producer.flush(DEADLINE_S) == 0


class RackReader:
    """A consumer of librdkafka in one rack."""

    def __init__(self, cluster: Racks, topic: str, rack: str) -> None:
        self.read: list[int] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "client.rack": rack,
                "auto.offset.reset": "error",
                "topic.metadata.refresh.interval.ms": 2000,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def until(self, count: int) -> None:
        """Read until so many records have come in all."""

        def reached() -> bool:
            for message in self._consumer.consume(500, 0.2):
                assert not message.error(), message.error()
                self.read.append(int(message.value()[len(VALUE) :]))
            return len(self.read) >= count

        wait_until(reached, DEADLINE_S, f"{count} records read", 0.01)
        assert self.read == list(range(len(self.read)))

    def close(self) -> None:
        self._consumer.close()


def test_bytes_come_from_the_follower_and_from_elsewhere_when_it_dies(cluster: Racks) -> None:
    topic = "near"
    cluster.create_topic(topic)
    write(cluster, topic, 0, RECORDS)
    leader = cluster.leader(topic)
    near = next(node_id for node_id in cluster.brokers if node_id != leader)
    third = next(node_id for node_id in cluster.brokers if node_id not in (leader, near))
    reader = RackReader(cluster, topic, f"rack-{near}")
    reader.until(RECORDS)
    size = RECORDS * len(VALUE)
    assert cluster.bytes_out(near, topic) >= size, "the follower was read"
    assert cluster.bytes_out(leader, topic) < 2.5 * size, "the leader fed its followers only"
    assert cluster.bytes_out(third, topic) == 0
    # What is written now reaches the reader through the follower, as fast as the watermark.
    write(cluster, topic, RECORDS, 200)
    reader.until(RECORDS + 200)
    cluster.brokers[near].kill()
    write(cluster, topic, RECORDS + 200, 200)
    reader.until(RECORDS + 400)
    cluster.brokers[near].start()
    cluster.until_in_sync(topic, 3)
    write(cluster, topic, RECORDS + 400, 200)
    reader.until(RECORDS + 600)
    reader.close()


def test_the_java_consumer_reads_from_its_rack(cluster: Racks, tools: ToolRunner) -> None:
    topic = "java-near"
    cluster.create_topic(topic)
    write(cluster, topic, 0, RECORDS)
    leader = cluster.leader(topic)
    near = next(node_id for node_id in cluster.brokers if node_id != leader)
    read = ("kafka-console-consumer", "--bootstrap-server", cluster.bootstrap, "--topic", topic)
    rack = ("--command-property", f"client.rack=rack-{near}")
    count = ("--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "90000")
    found = tools.run(*read, *rack, *count).check()
    assert found.out.count("\n") == RECORDS
    assert cluster.bytes_out(near, topic) >= RECORDS * len(VALUE)


def test_without_a_rack_the_leader_is_read(cluster: Racks) -> None:
    topic = "far"
    cluster.create_topic(topic)
    write(cluster, topic, 0, 100)
    reader = RackReader(cluster, topic, "")
    reader.until(100)
    reader.close()
    leader = cluster.leader(topic)
    others = [node_id for node_id in cluster.brokers if node_id != leader]
    assert [cluster.bytes_out(node_id, topic) for node_id in others] == [0, 0]


def test_metadata_shows_the_racks(cluster: Racks) -> None:
    found = asyncio.run(racks_by_broker(cluster.brokers[2].port))
    assert found == {node_id: f"rack-{node_id}" for node_id in cluster.brokers}


async def racks_by_broker(port: int) -> dict[int, str | None]:
    """What a broker's Metadata says."""
    peer = await Peer.connect(port)
    answer = await peer.ask(messages.MetadataRequest(topics=[]), 12)
    peer.writer.close()
    return {broker.node_id: broker.rack for broker in answer.brokers}
