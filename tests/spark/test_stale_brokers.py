"""The source of Spark where one of several real brokers is of a former time.

The leader of a topic is cut off from the controller and from the other brokers, and clients still
reach it: its metadata is old, and it leads in an epoch that is over. The source asks the brokers of
its bootstrap address. The methods are called in the order in which Spark calls them; no JVM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import NewPartitions, NewTopic
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.links import Network
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tidelog.pipeline import brokers
from tidelog.pipeline.options import Mode, parse
from tidelog.pipeline.planning.positions import Positions
from tidelog.pipeline.planning.ranges import OffsetRange
from tidelog.pipeline.schema import arrow_schema
from tidelog.pipeline.stream_reader import StreamReader
from tidelog.pipeline.tasks import ReadTask

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]

QUICK = {
    "startingOffsets": "earliest",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "50",
    "kafkaConsumer.pollTimeoutMs": "3000",
    "kafka.fetch.max.wait.ms": "50",
    "kafka.request.timeout.ms": "5000",
}
DEFAULT_TIMES = {
    "fetchOffset.retryIntervalMs": "1000",
    "kafkaConsumer.pollTimeoutMs": "120000",
    "kafka.fetch.max.wait.ms": "500",
    "kafka.request.timeout.ms": "30000",
}
LEADER_S = 4.0
"""A trigger, with its plan and its tasks, costs less when a leader is stopped before it."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[TidelogCluster]:
    config = {"auto.leader.rebalance.enable": "false"}
    with TidelogCluster(tmp_path_factory.mktemp("cluster"), 3, config, network) as started:
        yield started


@pytest.fixture(autouse=True)
def _whole_network(cluster: TidelogCluster, network: Network) -> Iterator[None]:
    """After each test nothing is cut, and no client is connected."""
    yield
    for end in ("controller", *map(str, cluster.brokers)):
        network.heal(end, ["controller", *map(str, cluster.brokers)])
    fresh_process()

    def all_live() -> bool:
        found = (
            admin(each).list_topics(timeout=DEADLINE_S) for each in cluster.bootstrap.split(",")
        )
        return all(len(each.brokers) == len(cluster.brokers) for each in found)

    wait_until(all_live, DEADLINE_S, "all brokers are registered again", 0.1)


@dataclass
class Query:
    """A stream of one topic: its offset, and all that its batches brought."""

    topic: str
    offset: dict[str, Any] = field(default_factory=lambda: {"init": True})
    read: list[tuple[int, int, bytes]] = field(default_factory=list)

    def reader(self, bootstrap: str, **more: str) -> StreamReader:
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": self.topic, **QUICK, **more}
        options = parse(given, Mode.STREAM)
        return StreamReader(options, from_arrow_schema(arrow_schema(options.columns)))

    def step(self, bootstrap: str, tasks_by: str | None = None, **more: str) -> bool:
        """One trigger by way of a bootstrap address, its tasks perhaps by another; whether there
        was a batch."""
        start = self.offset
        reader = self.reader(bootstrap, **more)
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            return False
        reader = self.reader(tasks_by or bootstrap, **more)
        for task in reader.partitions(start, end):
            for batch in reader.read(task):
                self.read += [
                    (row["partition"], row["offset"], row["value"]) for row in batch.to_pylist()
                ]
        self.offset = end
        return True

    def drain(self, bootstrap: str, **more: str) -> None:
        while self.step(bootstrap, **more):
            pass

    def until(self, bootstrap: str, wanted: int) -> None:
        def enough() -> bool:
            self.step(bootstrap)
            return len(self.read) >= wanted

        wait_until(enough, DEADLINE_S, lambda: f"{len(self.read)} of {wanted} are read", 0.1)


def write(bootstrap: str, topic: str, values: list[bytes], partition: int = 0, **more: Any) -> int:
    """Write records; how many were not acknowledged."""
    failed: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 2, **more}
    )
    for value in values:
        producer.produce(
            topic, value, None, partition, on_delivery=lambda error, _: error and failed.append(1)
        )
    return producer.flush(DEADLINE_S) + len(failed)


def named(word: str, count: int, first: int = 0) -> list[bytes]:
    return [b"%s-%d" % (word.encode(), number) for number in range(first, first + count)]


@dataclass
class Parted:
    """A cluster with a leader that is cut off: `stale` reaches that alone, `fresh` the others."""

    leader: int
    stale: str
    fresh: str


def address(cluster: TidelogCluster, node_id: int) -> str:
    return cluster.bootstrap.split(",")[node_id - 1]


def until_led_by_another(bootstrap: str, topic: str, former: int) -> None:
    def deposed() -> bool:
        # By a new client: one with old metadata may ask the former leader.
        found = admin(bootstrap).list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return 0 in found and found[0].leader not in (-1, former)

    wait_until(deposed, DEADLINE_S, "another leads", 0.1)


def cut_off(cluster: TidelogCluster, network: Network, topic: str) -> Parted:
    """Cut off the topic's leader, and wait until the others have another."""
    leader = cluster.leader(topic)
    others = [node_id for node_id in cluster.brokers if node_id != leader]
    for end in ("controller", *map(str, others)):
        network.cut(str(leader), end)
        network.cut(end, str(leader))
    fresh = ",".join(address(cluster, node_id) for node_id in others)
    until_led_by_another(fresh, topic, leader)
    return Parted(leader, address(cluster, leader), fresh)


def fresh_process() -> None:
    """Forget the connections and all metadata: the next step is that of a new process."""
    for made in list(brokers._clusters.values()):
        made._client.close()
    brokers._clusters.clear()


def test_a_deposed_leader_neither_loses_nor_repeats_and_holds_nothing_up(
    cluster: TidelogCluster, network: Network, topic_name: str
) -> None:
    """P5: it names itself, ends before the position, and has records that are not committed."""
    cluster.create_topic(topic_name, 1, min_insync_replicas=1)
    assert write(cluster.bootstrap, topic_name, named("first", 100), acks="all") == 0
    query = Query(topic_name)
    query.drain(cluster.bootstrap)
    assert len(query.read) == 100
    parted = cut_off(cluster, network, topic_name)
    # Acknowledged by the leader alone (acks=1), and gone when it follows again.
    assert write(parted.stale, topic_name, named("gone", 20), acks=1) == 0
    assert write(parted.fresh, topic_name, named("second", 50), acks="all") == 0
    fresh_process()
    assert not query.step(parted.stale), "what the leader alone has is not to be read"
    query.drain(parted.fresh)
    assert len(query.read) == 150
    assert write(parted.fresh, topic_name, named("third", 50), acks="all") == 0
    fresh_process()
    # Planned by the others; the task begins at the deposed leader.
    assert query.step(parted.fresh, parted.stale)
    assert write(parted.fresh, topic_name, named("fourth", 50), acks="all") == 0
    for loss in ("true", "false"):
        fresh_process()
        query.drain(parted.stale, failOnDataLoss=loss)
    assert len(query.read) == 250, "the cluster goes on, and so does the query"
    wanted = [*named("first", 100), *named("second", 50), *named("third", 50), *named("fourth", 50)]
    assert query.read == [(0, offset, value) for offset, value in enumerate(wanted)]


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_deposed_leader_is_not_believed_where_no_epoch_is_known(
    cluster: TidelogCluster, network: Network, topic_name: str, loss: str
) -> None:
    """P5: an offset of version 1 has no epochs, and so has a task that was planned from one."""
    cluster.create_topic(topic_name, 1, min_insync_replicas=1)
    assert write(cluster.bootstrap, topic_name, named("first", 100), acks="all") == 0
    query = Query(topic_name)
    query.drain(cluster.bootstrap)
    parted = cut_off(cluster, network, topic_name)
    assert write(parted.fresh, topic_name, named("second", 50), acks="all") == 0
    (pid,) = Positions.from_json(query.offset).at
    for start in (90, 120):
        fresh_process()
        task = ReadTask(OffsetRange(pid, start, 150), pid.topic_id, of_stream=True)
        rows = [
            row["offset"]
            for batch in query.reader(parted.stale, failOnDataLoss=loss).read(task)
            for row in batch.to_pylist()
        ]
        assert rows == list(range(start, 150))
    fresh_process()
    query.offset["topics"][topic_name]["positions"]["0"] = [150, -1]
    assert not query.step(parted.stale, failOnDataLoss=loss)


def test_partitions_that_a_broker_does_not_know_of_are_kept_and_read_on(
    cluster: TidelogCluster, network: Network, topic_name: str
) -> None:
    """P3: the topic has grown while the broker was cut off."""
    cluster.create_topic(topic_name, 1, min_insync_replicas=1)
    assert write(cluster.bootstrap, topic_name, named("first", 10), acks="all") == 0
    query = Query(topic_name)
    query.drain(cluster.bootstrap)
    parted = cut_off(cluster, network, topic_name)
    others = admin(parted.fresh)
    others.create_partitions([NewPartitions(topic_name, 3)])[topic_name].result(DEADLINE_S)
    # Each partition has a fence: of the growth, or of its birth.
    written = [(0, 11 + n) for n in range(10)] + [(p, 1 + n) for p in (1, 2) for n in range(10)]
    for number in range(3):
        assert write(parted.fresh, topic_name, named("second", 10), number, acks="all") == 0
    query.drain(parted.fresh)
    for loss in ("true", "false"):
        fresh_process()
        assert not query.step(parted.stale, failOnDataLoss=loss)
    for number in range(3):
        assert write(parted.fresh, topic_name, named("third", 10), number, acks="all") == 0
    fresh_process()
    query.drain(parted.stale)
    more = [(0, 21 + n) for n in range(10)] + [(p, 11 + n) for p in (1, 2) for n in range(10)]
    found = sorted((partition, offset) for partition, offset, _ in query.read)
    assert found == sorted([*((0, n) for n in range(10)), *written, *more])


def test_a_topic_that_a_broker_knows_by_its_former_id(
    cluster: TidelogCluster, network: Network, topic_name: str
) -> None:
    """P3, P13: it was deleted and created again while the broker was cut off."""
    cluster.create_topic(topic_name, 1, min_insync_replicas=1)
    assert write(cluster.bootstrap, topic_name, named("former", 200), acks="all") == 0
    parted = cut_off(cluster, network, topic_name)
    others = admin(parted.fresh)
    others.delete_topics([topic_name])[topic_name].result(DEADLINE_S)

    def created() -> bool:
        client = admin(parted.fresh)
        try:
            client.create_topics([NewTopic(topic_name, 1, 2)])[topic_name].result(DEADLINE_S)
        except confluent_kafka.KafkaException:
            return False
        return True

    wait_until(created, DEADLINE_S, "the topic can be created again", 0.2)
    until_led_by_another(parted.fresh, topic_name, parted.leader)
    assert write(parted.fresh, topic_name, named("first", 100), acks="all") == 0
    query = Query(topic_name)
    query.drain(parted.fresh)
    for loss in ("true", "false"):
        fresh_process()
        assert not query.step(parted.stale, failOnDataLoss=loss)
    assert write(parted.fresh, topic_name, named("second", 50), acks="all") == 0
    fresh_process()
    assert query.step(parted.fresh, parted.stale)
    assert query.read == [
        (0, offset, value)
        for offset, value in enumerate([*named("first", 100), *named("second", 50)])
    ]


def test_a_leader_that_was_stopped_and_goes_on(cluster: TidelogCluster, topic_name: str) -> None:
    """A process that was stopped while it was deposed responds before it gets the change."""
    cluster.create_topic(topic_name, 1, min_insync_replicas=1)
    assert write(cluster.bootstrap, topic_name, named("first", 100), acks="all") == 0
    query = Query(topic_name)
    query.drain(cluster.bootstrap, **DEFAULT_TIMES)
    leader = cluster.leader(topic_name)
    others = ",".join(address(cluster, each) for each in cluster.brokers if each != leader)
    program = cluster.brokers[leader].program
    assert write(others, topic_name, named("unread", 10), acks="all") == 0
    program.send(SIGSTOP)
    stopped_s = time.monotonic()
    try:
        # With the default times.
        query.step(cluster.bootstrap, **DEFAULT_TIMES)
        took_s = time.monotonic() - stopped_s
        assert len(query.read) == 110 and took_s < LEADER_S, f"{took_s:.1f} s"
        until_led_by_another(others, topic_name, leader)
        assert write(others, topic_name, named("second", 50), acks="all") == 0
        # By connections of before, some of which lead to the stopped broker.
        query.until(cluster.bootstrap, 160)
    finally:
        program.send(SIGCONT)
    assert write(others, topic_name, named("third", 50), acks="all") == 0
    fresh_process()
    query.until(address(cluster, leader), 210)
    words = {"first": 100, "unread": 10, "second": 50, "third": 50}
    wanted = [value for word, count in words.items() for value in named(word, count)]
    assert query.read == [(0, offset, value) for offset, value in enumerate(wanted)]
