"""Moves on real processes that are odd in one way each, under writers and a group.

Replication factor 1 -> 3 -> 1 with a minimum of two replicas in sync, a change of the minimum, or
growth, in the middle of a move, and a partition without a leader.
Nothing acknowledged is lost, and nothing of the writer with ids is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import NewPartitions
from kafka import errors

from tests.support.acked_stream import GroupReader, Writer, settled
from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

FAST = "reassignment.throttled.rate=100000000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    config = {"broker.session.timeout.ms": 3000}
    with TidelogCluster(tmp_path_factory.mktemp("odd"), 4, config) as started:
        yield started


class Load:
    """Two writers and a group that work on a topic of one partition; then all is checked."""

    def __init__(self, cluster: TidelogCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self.writers = [
            Writer(cluster.bootstrap, topic, name, 1, idempotent=idempotent, per_s=200)
            for name, idempotent in (("ids", True), ("plain", False))
        ]
        self.reader = GroupReader(cluster.bootstrap, topic, f"g-{topic}")

    def __enter__(self) -> Load:
        for each in (*self.writers, self.reader):
            each.start()
        self.until_more(100)
        return self

    def until_more(self, count: int) -> None:
        for writer in self.writers:
            wanted = len(writer.acked) + count
            wait_until(lambda w=writer, n=wanted: w.has_acked(n), DEADLINE_S, writer.state)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for each in (*self.writers, self.reader):
                each.abandon()
            return
        settled(self._cluster.bootstrap, self._topic, 1, self.writers, self.reader)


def move(cluster: TidelogCluster, topic: str, replicas: Sequence[int]) -> None:
    python = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        where = kafka.TopicPartition(topic, 0)
        assert python.alter_partition_reassignments({where: list(replicas)}) == {where: None}
    finally:
        python.close()


def until_on(cluster: TidelogCluster, topic: str, replicas: Sequence[int]) -> None:
    def placed() -> bool:
        part = cluster.partitions(topic)[0]
        return list(part.replicas) == list(replicas) and set(part.isrs) == set(replicas)

    wait_until(placed, DEADLINE_S, lambda: f"{topic} on {replicas}: {cluster.partitions(topic)}")


def configure(cluster: TidelogCluster, *words: str) -> None:
    done = run_tidelog("configs", "--bootstrap-server", cluster.bootstrap, "--alter", *words)
    assert done.returncode == 0, done


def test_one_replica_three_and_one_again_with_a_minimum_of_two(cluster: TidelogCluster) -> None:
    topic = "one-three-one"
    cluster.create_topic(topic, 1, 1, min_insync_replicas=2)
    with Load(cluster, topic) as load:
        for replicas in ((1, 2, 3), (4,), (4, 1, 2), (1,)):
            move(cluster, topic, replicas)
            until_on(cluster, topic, replicas)
            load.until_more(100)


@pytest.fixture
def held(cluster: TidelogCluster) -> Iterator[None]:
    """Targets get 20 kB a second: a move lasts until the throttle is removed."""
    rate = "reassignment.throttled.rate"
    configure(cluster, "--broker-defaults", "--add-config", f"{rate}=20000")
    yield
    configure(cluster, "--broker-defaults", "--delete-config", rate)


def fill(cluster: TidelogCluster, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for at in range(2_000):
        producer.produce(topic, f"filler:{at}:".encode().ljust(1000, b"."), partition=0)
    assert producer.flush(DEADLINE_S) == 0


def test_the_minimum_changes_in_the_middle_of_a_move(cluster: TidelogCluster, held: None) -> None:
    topic = "minimum"
    cluster.create_topic(topic, 1, 2, min_insync_replicas=1)
    move(cluster, topic, (1, 2))
    until_on(cluster, topic, (1, 2))
    fill(cluster, topic)
    with Load(cluster, topic) as load:
        move(cluster, topic, (3, 4))
        for minimum in (2, 1, 2):
            configure(cluster, "--topic", topic, "--add-config", f"min.insync.replicas={minimum}")
            load.until_more(50)
        part = cluster.partitions(topic)[0]
        assert set(part.replicas) == {1, 2}, "it moves still"
        # Growth waits for the move.
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            client = admin(cluster.bootstrap)
            client.create_partitions([NewPartitions(topic, 2)])[topic].result(DEADLINE_S)
        assert refused.value.args[0].code() == 60  # REASSIGNMENT_IN_PROGRESS
        configure(cluster, "--broker-defaults", "--add-config", FAST)
        until_on(cluster, topic, (3, 4))
        load.until_more(100)


def test_a_partition_without_a_leader_moves_when_it_has_one(cluster: TidelogCluster) -> None:
    topic = "leaderless"
    cluster.create_topic(topic, 1, 1)
    move(cluster, topic, (4,))
    until_on(cluster, topic, (4,))
    with Load(cluster, topic) as load:
        cluster.brokers[4].kill()
        wait_until(
            lambda: cluster.partitions(topic, ask=1)[0].leader == -1, DEADLINE_S, "no leader", 0.1
        )
        python = kafka.KafkaAdminClient(bootstrap_servers=cluster.brokers[1].bootstrap)
        where = kafka.TopicPartition(topic, 0)
        assert python.alter_partition_reassignments({where: [2, 3]}) == {where: None}
        found = python.list_partition_reassignments()
        assert found == {
            where: {"replicas": [2, 3, 4], "adding_replicas": [2, 3], "removing_replicas": [4]}
        }
        # More targets than brokers, named one by one or twice.
        for bad in ([1, 2, 3, 4, 5], [1, 1]):
            refused = python.alter_partition_reassignments({where: bad})
            assert refused == {where: errors.InvalidReplicationAssignmentError}
        python.close()
        assert cluster.partitions(topic, ask=1)[0].leader == -1
        cluster.brokers[4].start()
        until_on(cluster, topic, (2, 3))
        load.until_more(100)
