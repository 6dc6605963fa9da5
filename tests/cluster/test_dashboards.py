"""What stock dashboards for Kafka ask for is there, has its type, and moves under load.

One story on two brokers and a controller: a load, a broker that dies, an unclean election, and the
way back. Each look at all three processes is kept; then each name of the list is held against them.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic

from tests.support.clients import admin
from tests.support.cluster import TidelogCluster
from tests.support.metrics import Page, page
from tests.support.node import Node, receive_frame
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tests.support.target import TARGET
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import codec, messages

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "fixtures" / "dashboard_metrics.txt"
ALERTS = ROOT / "examples" / "prometheus" / "alerts.yml"
OURS = ROOT / "examples" / "grafana" / "tidelog.json"
WANTED = [line.split() for line in LIST.read_text().splitlines() if not line.startswith("#")]

pytestmark = [
    pytest.mark.long(15),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="Kafka's metrics are JMX beans"),
]

LOAD, LOOSE, STRICT, GROUP = "load", "loose", "strict", "readers"
PARTITIONS, RECORDS, VALUE_BYTES = 4, 400, 5_000
HELD = 3
"""Connections to each process's page that say nothing: each has a thread."""

CONSTANT = {"kafka_controller_kafkacontroller_activecontrollercount": 1.0}
"""What the only controller shows as long as it is the active one."""


@dataclass
class Story:
    """The looks at each process, in order; `lives` counts its starts."""

    cluster: TidelogCluster
    looks: dict[str, list[tuple[int, Page]]] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    under_load: list[Page] = field(default_factory=list)
    """The brokers' pages when the load was over and all lived."""

    def look(self) -> None:
        """Look at every process that runs."""
        nodes = {"controller": self.cluster.controller, **self.brokers()}
        for name, node in nodes.items():
            if node.running_pid is not None:
                life = self.lives.setdefault(name, 1)
                self.looks.setdefault(name, []).append((life, page(node.metrics_port)))

    def brokers(self) -> dict[str, TidelogNode]:
        return {f"broker {number}": node for number, node in self.cluster.brokers.items()}

    def of(self, broker: int) -> Page:
        """The present page of a broker."""
        return page(self.cluster.brokers[broker].metrics_port)

    def start(self, broker: int) -> None:
        self.lives[f"broker {broker}"] += 1
        self.cluster.brokers[broker].start()

    def last(self, broker: int) -> Page:
        return self.looks[f"broker {broker}"][-1][1]


def create(cluster: TidelogCluster) -> None:
    cluster.create_topic(LOAD, PARTITIONS, 2)
    cluster.create_topic(STRICT, 1, 2, min_insync_replicas=2)
    # Broker 1 leads it, and is its whole ISR when broker 2 is dead.
    wanted = NewTopic(
        LOOSE, 1, replica_assignment=[[1, 2]], config={"unclean.leader.election.enable": "true"}
    )
    client = admin(cluster.bootstrap)
    client.create_topics([wanted])[LOOSE].result(DEADLINE_S)
    in_sync(cluster, LOOSE, 2)


def in_sync(cluster: TidelogCluster, topic: str, members: int) -> None:
    def reached() -> bool:
        found = cluster.partitions(topic).values()
        return bool(found) and all(x.leader >= 0 and len(x.isrs) == members for x in found)

    wait_until(reached, DEADLINE_S, f"{topic} has {members} replicas in sync", 0.05)


def produce(cluster: TidelogCluster) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    value = os.urandom(VALUE_BYTES)
    for number in range(RECORDS):
        producer.produce(LOAD, value, partition=number % PARTITIONS)
    producer.produce(LOOSE, b"x", partition=0)
    assert producer.flush(DEADLINE_S) == 0


def refused_record(cluster: TidelogCluster) -> None:
    """A record that is larger than the topic takes, and than this client minds."""
    settings = {"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 10_000_000}
    producer = confluent_kafka.Producer(settings)
    told: list[KafkaError | None] = []
    producer.produce(
        LOAD, bytes(2_000_000), partition=0, on_delivery=lambda error, _: told.append(error)
    )
    assert producer.flush(DEADLINE_S) == 0
    assert told[0] is not None and told[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def refused_read(cluster: TidelogCluster) -> None:
    """A read from an offset far beyond the end of the log."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "elsewhere",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(LOAD, 0, 10**9)])
        message = consumer.poll(DEADLINE_S)
        assert message is not None and message.error() is not None


def read_as_group(cluster: TidelogCluster, count: int) -> confluent_kafka.Consumer:
    """A member that has read so many records; it has committed the half of each partition. The
    caller closes it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([LOAD])
    got = 0
    while got < count:
        messages_ = consumer.consume(count - got, DEADLINE_S)
        assert messages_, "records come"
        got += len(messages_)
    half = RECORDS // PARTITIONS // 2
    places = [confluent_kafka.TopicPartition(LOAD, n, half) for n in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    return consumer


def out_of_memory(cluster: TidelogCluster) -> None:
    """Have the system forget what it holds of the logs: the next reader's bytes come from disks."""
    for node in cluster.brokers.values():
        for path in node.log_folder().glob(f"{LOAD}-*/*.log"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def ask_for_many_topics(node: TidelogNode) -> None:
    """One request whose answer makes more objects than the collector lets grow."""
    topic = messages.MetadataRequest.MetadataRequestTopic
    request = messages.MetadataRequest(
        topics=[topic(name=f"no-{number}") for number in range(45_000)],
        allow_auto_topic_creation=False,
    )
    frame = b"".join(codec.encode_request(ApiKey.METADATA, 8, 1, "many", request))
    with socket.create_connection(("127.0.0.1", node.port), DEADLINE_S) as connection:
        connection.sendall(frame)
        receive_frame(connection)


def until(what: str, condition: Callable[[], bool]) -> None:
    wait_until(condition, DEADLINE_S, what, 0.1)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    config = {
        "broker.session.timeout.ms": 3000,
        "offsets.topic.num.partitions": 1,
        "auto.create.topics.enable": "false",
    }
    with TidelogCluster(tmp_path_factory.mktemp("cluster"), 2, config) as cluster:
        told = Story(cluster)
        told.look()
        loaded(told)
        died(told)
        elected_uncleanly(told)
        yield told


def loaded(told: Story) -> None:
    cluster = told.cluster
    create(cluster)
    held = [
        socket.create_connection(("127.0.0.1", node.metrics_port), DEADLINE_S)
        for node in cluster.brokers.values()
        for _ in range(HELD)
    ]
    try:
        told.look()
    finally:
        for each in held:
            each.close()
    produce(cluster)
    refused_record(cluster)
    out_of_memory(cluster)
    with closing(read_as_group(cluster, RECORDS // 2)):
        refused_read(cluster)
        for node in cluster.brokers.values():
            ask_for_many_topics(node)
        of_group = f'{{consumergroup="{GROUP}"}}'

        def has_member() -> bool:
            told.look()
            pages = [told.last(number) for number in cluster.brokers]
            found = [x.samples.get("kafka_consumergroup_members", {}) for x in pages]
            lags = sum(len(x.samples.get("kafka_consumergroup_lag", {})) for x in pages)
            told.under_load = pages
            return any(x.get(of_group) == 1 for x in found) and lags == PARTITIONS

        until("the group is shown", has_member)


def died(told: Story) -> None:
    cluster = told.cluster
    cluster.brokers[2].kill()
    in_sync(cluster, LOOSE, 1)

    def is_short() -> bool:
        told.look()
        return told.last(1).total("kafka_cluster_partition_underminisr") > 0

    until("a partition is under its minimum", is_short)


def elected_uncleanly(told: Story) -> None:
    cluster = told.cluster
    cluster.brokers[1].kill()
    offline = "kafka_controller_kafkacontroller_offlinepartitionscount"

    def is_offline() -> bool:
        told.look()
        return told.looks["controller"][-1][1].total(offline) > 0

    until("partitions have no leader", is_offline)
    told.start(2)

    def is_elected() -> bool:
        told.look()
        name = "kafka_controller_controllerstats_uncleanleaderelections_total"
        return told.looks["controller"][-1][1].total(name) > 0

    until("an unclean leader is elected", is_elected)
    told.start(1)
    for topic in (LOAD, LOOSE, STRICT):
        in_sync(cluster, topic, 2)

    def has_grown() -> bool:
        told.look()
        name = "kafka_server_replicamanager_isrexpands_total"
        return sum(told.last(number).total(name) for number in cluster.brokers) > 0

    until("replicas joined", has_grown)


def samples_of(name: str, kind: str) -> list[str]:
    """The names of the samples of a family."""
    return [f"{name}_count", f"{name}_sum"] if kind == "summary" else [name]


@pytest.mark.parametrize(("role", "name", "kind"), WANTED, ids=lambda each: str(each))
def test_a_name_of_a_stock_dashboard(story: Story, role: str, name: str, kind: str) -> None:
    found = {who: looks for who, looks in story.looks.items() if who.startswith(role)}
    assert found
    for sample in samples_of(name, kind):
        moved = False
        for looks in found.values():
            for _, shown in looks:
                assert shown.types.get(name) == kind, (name, shown.types.get(name))
            series = [(life, shown.total(sample)) for life, shown in looks]
            moved = moved or len({value for _, value in series}) > 1
            if kind in ("counter", "summary"):
                steps = pairwise(series)
                assert all(a <= b for (one, a), (two, b) in steps if one == two), series
        if sample in CONSTANT:
            expected = {CONSTANT[sample]}
            assert {shown.total(sample) for x in found.values() for _, shown in x} == expected
        else:
            assert moved, f"{sample} stood still"


def test_what_was_done_is_what_is_counted(story: Story) -> None:
    """The numbers of the load, of whoever led its partitions in the first lives."""
    pages = story.under_load
    topic = f'{{topic="{LOAD}"}}'

    def both(name: str, labels: str = topic) -> float:
        return sum(shown.samples.get(name, {}).get(labels, 0) for shown in pages)

    of_topics = "kafka_server_brokertopicmetrics"
    assert both(f"{of_topics}_messagesin_total") == RECORDS
    # Without the copies that the followers took: those are counted for themselves.
    sent = RECORDS * VALUE_BYTES
    assert sent < both(f"{of_topics}_bytesin_total") < 1.2 * sent
    assert both(f"{of_topics}_replicationbytesin_total", "") > sent
    assert both(f"{of_topics}_bytesout_total") < 1.2 * sent
    assert both(f"{of_topics}_failedproducerequests_total") == 1
    assert both(f"{of_topics}_failedfetchrequests_total") >= 1
    last = [shown for _, shown in story.looks["broker 1"] if shown.total("process_open_fds")]
    assert max(x.value("kafka_server_replicamanager_isrshrinks_total") for x in last) >= 1
    (groups,) = [x for x in pages if x.samples.get("kafka_consumergroup_lag")]
    of_group = f'{{consumergroup="{GROUP}",topic="{LOAD}"}}'
    assert groups.value("kafka_consumergroup_current_offset_sum", of_group) == RECORDS // 2
    assert groups.value("kafka_consumergroup_lag_sum", of_group) == RECORDS // 2
    # Also of partitions that another broker leads.
    assert len(groups.samples["kafka_consumergroup_lag"]) == PARTITIONS


def test_the_dashboard_of_ours_asks_for_what_a_server_shows(node: Node) -> None:
    assert isinstance(node, TidelogNode)
    asked = set()
    for panel in json.loads(OURS.read_text())["panels"]:
        for target in panel.get("targets", ()):
            asked.update(re.findall(r"\b(?:kafka|tidelog|process)_\w+", target["expr"]))
    assert len(asked) > 30
    # A rule about a name that is not there never fires.
    rules = re.findall(r"^ +expr: (.+)$", ALERTS.read_text(), re.MULTILINE)
    assert len(rules) > 10
    asked.update(re.findall(r"\b(?:kafka|tidelog|process)_\w+", " ".join(rules)))
    shown = page(node.metrics_port)
    parts = ("_bucket", "_sum", "_count")
    missing = []
    for name in sorted(asked):
        family = next((name.removesuffix(x) for x in parts if name.endswith(x)), name)
        if name not in shown.types and shown.types.get(family) != "histogram":
            missing.append(name)
    assert missing == []
