"""Moves of partitions on a cluster of real processes: asked for, slowed, awaited, under a load.

Owns no judgement of one test; `until_exact` is what each move must leave.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.support.acked_stream import GroupReader, Writer, settled
from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog

RATE = "reassignment.throttled.rate"
RECORD_BYTES = 500_000
"""Of a record that fills a partition: under a throttle of 1 B/s a target takes one fetch."""

Replicas = Sequence[int]


def create_on(
    cluster: TidelogCluster,
    topic: str,
    replicas: Mapping[int, Replicas],
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create a topic on these brokers; return when all of its replicas are in sync."""
    places = [list(replicas[index]) for index in range(len(replicas))]
    wanted = NewTopic(topic, len(places), replica_assignment=places, config=dict(configs or {}))
    client = admin(cluster.bootstrap)
    client.create_topics([wanted])[topic].result(DEADLINE_S)
    cluster.until_in_sync(topic, len(places[0]))


def alter(cluster: TidelogCluster, topic: str, wanted: Mapping[int, Replicas | None]) -> None:
    """Start, change or cancel (None) the moves of some partitions; each is accepted."""
    asked = {
        kafka.TopicPartition(topic, index): None if replicas is None else list(replicas)
        for index, replicas in wanted.items()
    }
    done = _asked_of_a_live_broker(
        cluster, lambda client: client.alter_partition_reassignments(asked)
    )
    assert set(done.values()) == {None}, done


def _asked_of_a_live_broker(
    cluster: TidelogCluster, request: Callable[[kafka.KafkaAdminClient], Any]
) -> Any:
    """Send a request until a broker takes it: the client may choose one that was just killed."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        client = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            return request(client)
        except kafka.errors.KafkaConnectionError:
            if time.monotonic() > deadline:
                raise
        finally:
            client.close()


def targets(cluster: TidelogCluster, topic: str) -> dict[int, list[int]]:
    """Return by partition the replicas of the moves that run, as they are listed."""
    found = _asked_of_a_live_broker(cluster, lambda client: client.list_partition_reassignments())
    return {part.partition: row["replicas"] for part, row in found.items() if part.topic == topic}


@contextmanager
def slowed(cluster: TidelogCluster) -> Iterator[None]:
    """Let no target get more than one fetch, until the block ends."""
    set_default(cluster, RATE, "1")
    try:
        yield
    finally:
        set_default(cluster, RATE, None)


def set_default(cluster: TidelogCluster, name: str, value: str | None) -> None:
    """Set a dynamic configuration of all brokers, or remove it (None)."""
    change = ("--delete-config", name) if value is None else ("--add-config", f"{name}={value}")
    of_all = ("configs", "--alter", "--broker-defaults", *change)
    done = run_tidelog(*of_all, "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == 0, done


def configure_topic(cluster: TidelogCluster, topic: str, name: str, value: str) -> None:
    """Set a configuration of a topic."""
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
    client = admin(cluster.bootstrap)
    client.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def fill(cluster: TidelogCluster, topic: str, records: int = 6, partitions: int = 1) -> None:
    """Write large records to each partition."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(records * partitions):
        value = f"filler:{number}:".encode().ljust(RECORD_BYTES, b".")
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(DEADLINE_S) == 0


def folders_of(cluster: TidelogCluster, topic: str) -> dict[int, set[str]]:
    """By broker: the directories of the topic, those of deletions and quarantines too."""
    return {
        node_id: {path.name for path in _folders_below(node.data) if path.match(f"{topic}-*")}
        for node_id, node in cluster.brokers.items()
    }


def _folders_below(folder: Path) -> Iterator[Path]:
    """Yield all directories below. A broker may remove one meanwhile: unlike ``rglob``,
    ``os.walk`` passes over it."""
    for place, names, _ in os.walk(folder):
        for name in names:
            yield Path(place, name)


def copied_bytes(cluster: TidelogCluster, broker: int, topic: str, partition: int = 0) -> int:
    """The bytes of a partition's segments on a broker's disk."""
    below = _folders_below(cluster.brokers[broker].data)
    found = [folder for folder in below if folder.name == f"{topic}-{partition}"]
    return sum(path.stat().st_size for folder in found for path in folder.glob("*.log"))


def until_exact(
    cluster: TidelogCluster, topic: str, wanted: Mapping[int, Replicas], *, ordered: bool = False
) -> None:
    """Wait until replicas, ISRs and leaders are as wanted, and no broker has another directory of
    the topic than those of its replicas: none that is deleted or quarantined, either."""

    def exact() -> bool:
        found = cluster.partitions(topic)
        places = {
            node_id: {f"{topic}-{at}" for at, replicas in wanted.items() if node_id in replicas}
            for node_id in cluster.brokers
        }
        return folders_of(cluster, topic) == places and all(
            (list(found[at].replicas) == list(replicas) if ordered else True)
            and set(found[at].replicas) == set(found[at].isrs) == set(replicas)
            and found[at].leader in replicas
            for at, replicas in wanted.items()
        )

    wait_until(
        exact,
        DEADLINE_S,
        lambda: f"{topic} is on {wanted}: {cluster.partitions(topic)} {folders_of(cluster, topic)}",
        0.1,
    )


class Load:
    """Two writers, one of them without ids, and a group that work on a topic while a block runs.

    At its end all is checked against what was acknowledged.
    """

    def __init__(
        self, cluster: TidelogCluster, topic: str, partitions: int = 1, per_s: float = 300
    ) -> None:
        self._cluster, self._topic, self._partitions = cluster, topic, partitions
        self.writers = [
            Writer(cluster.bootstrap, topic, name, partitions, idempotent=idempotent, per_s=per_s)
            for name, idempotent in (("ids", True), ("plain", False))
        ]
        self.reader = GroupReader(cluster.bootstrap, topic, f"g-{topic}")

    def __enter__(self) -> Load:
        for each in (*self.writers, self.reader):
            each.start()
        return self

    def until_more(self, count: int) -> None:
        """Wait until each writer has so many more acknowledgements."""
        for writer in self.writers:
            wanted = len(writer.acked) + count
            wait_until(lambda w=writer, n=wanted: w.has_acked(n), DEADLINE_S, writer.state)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for each in (*self.writers, self.reader):
                each.abandon()
            return
        settled(
            self._cluster.bootstrap,
            self._topic,
            self._partitions,
            self.writers,
            self.reader,
            self._cluster.batches_of(self._topic),
        )
