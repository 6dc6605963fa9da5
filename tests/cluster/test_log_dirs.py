"""Replicas that move between the log directories of their brokers while they serve (KIP-113).

Kafka's tool with `log_dirs` in its plan, its AdminClient, `kafka-log-dirs`; a writer with ids, one
without and a group meanwhile; kill -9 of the broker in the midst of the copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.support import java
from tests.support.cluster import TidelogCluster
from tests.support.java import ToolResult, ToolRunner
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.reassigning import Load
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.java,
    pytest.mark.kill,
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

PARTITIONS = 2
BROKERS = (1, 2)
RATE_NAME = "replica.alter.log.dirs.io.max.bytes.per.second"
SOURCE = Path(__file__).with_name("LogDirs.java")

Run = Callable[..., ToolResult]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    config = {
        "broker.session.timeout.ms": 3000,
        "log.segment.delete.delay.ms": 200,
        "min.insync.replicas": 1,
    }
    made = TidelogCluster(tmp_path_factory.mktemp("dirs"), len(BROKERS), config)
    for node in made.brokers.values():
        both = ",".join(str(node.data / each) for each in ("one", "two"))
        node.configure({"log.dirs": both})
    with made as started:
        yield started


class LogDirs:
    """What Kafka's tools do with the log directories of a cluster."""

    def __init__(self, cluster: TidelogCluster, tools: ToolRunner, folder: Path) -> None:
        self._cluster, self._tools, self._folder = cluster, tools, folder

    def run(self, tool: str, *args: str) -> ToolResult:
        return self._tools.run(tool, "--bootstrap-server", self._cluster.bootstrap, *args)

    def plan(self, topic: str, place: str) -> Path:
        """A plan file that moves all replicas into one directory of their brokers."""
        found = self._cluster.partitions(topic)
        partitions = [
            {
                "topic": topic,
                "partition": index,
                "replicas": list(part.replicas),
                "log_dirs": [
                    str(self._cluster.brokers[each].data / place) for each in part.replicas
                ],
            }
            for index, part in sorted(found.items())
        ]
        path = self._folder / f"{topic}-{place}.json"
        path.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return path

    def execute(self, plan: Path) -> None:
        self.run(
            "kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--execute"
        ).check()

    def verify(self, plan: Path) -> str:
        args = ("--reassignment-json-file", str(plan), "--verify", "--preserve-throttles")
        return self.run("kafka-reassign-partitions", *args).check().out

    def throttle(self, rate: int | None) -> None:
        change = (
            ("--delete-config", RATE_NAME)
            if rate is None
            else ("--add-config", f"{RATE_NAME}={rate}")
        )
        whole = ("--entity-type", "brokers", "--entity-default", "--alter", *change)
        self.run("kafka-configs", *whole).check()

    def described(self, topic: str) -> list[dict[str, object]]:
        """The replicas that `kafka-log-dirs` lists, each with its broker and directory."""
        said = self.run("kafka-log-dirs", "--describe", "--topic-list", topic).check().out
        listed = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
        return [
            {**part, "broker": broker["broker"], "logDir": place["logDir"]}
            for broker in listed["brokers"]
            for place in broker["logDirs"]
            for part in place["partitions"]
        ]


@pytest.fixture
def dirs(cluster: TidelogCluster, tools: ToolRunner, tmp_path: Path) -> LogDirs:
    return LogDirs(cluster, tools, tmp_path)


def places(cluster: TidelogCluster, topic: str) -> dict[int, dict[str, set[str]]]:
    """By broker and directory: the folders of the topic."""
    return {
        node_id: {
            each: {path.name for path in (node.data / each).glob(f"{topic}-*")}
            for each in ("one", "two")
        }
        for node_id, node in cluster.brokers.items()
    }


def until_in(cluster: TidelogCluster, topic: str, place: str) -> None:
    """Wait until all folders of a topic are in this directory, and no other is left over."""
    other = "one" if place == "two" else "two"
    wanted = {f"{topic}-{index}" for index in range(PARTITIONS)}

    def moved() -> bool:
        found = places(cluster, topic)
        return all(each[place] == wanted and not each[other] for each in found.values())

    wait_until(moved, DEADLINE_S, lambda: f"{topic} in {place}: {places(cluster, topic)}", 0.1)


def fill(cluster: TidelogCluster, topic: str, megabytes: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for _ in range(megabytes * 10):
        for index in range(PARTITIONS):
            producer.produce(topic, bytes(100_000), partition=index, headers={"filled": b"1"})
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def test_a_loaded_topic_moves_to_and_fro_between_directories(
    cluster: TidelogCluster, dirs: LogDirs
) -> None:
    topic = "to-and-fro"
    cluster.create_topic(topic, PARTITIONS, replication=2, file_delete_delay_ms=100)
    with Load(cluster, topic, PARTITIONS) as load:
        load.until_more(100)
        for place in ("two", "one", "two", "one"):
            plan = dirs.plan(topic, place)
            dirs.execute(plan)
            until_in(cluster, topic, place)
            load.until_more(50)
            assert len(re.findall(r"is completed", dirs.verify(plan))) >= PARTITIONS
        assert not load.writers[0].failed


def test_kill_9_in_the_midst_of_a_copy(cluster: TidelogCluster, dirs: LogDirs) -> None:
    topic = "killed"
    cluster.create_topic(topic, PARTITIONS, replication=2, file_delete_delay_ms=100)
    dirs.execute(dirs.plan(topic, "one"))
    until_in(cluster, topic, "one")
    with Load(cluster, topic, PARTITIONS) as load:
        load.until_more(100)
        for broker in BROKERS:
            there = "two" if broker == BROKERS[0] else "one"
            load.until_more(300)
            dirs.throttle(20_000)
            dirs.execute(dirs.plan(topic, there))
            node = cluster.brokers[broker]
            wait_until(
                lambda n=node, t=there: any((n.data / t).glob(f"{topic}-*-future/*.log")),
                DEADLINE_S,
                "the copy has begun",
                0.02,
            )
            node.kill()
            node.start()
            dirs.throttle(None)
            until_in(cluster, topic, there)
            cluster.until_in_sync(topic, 2)
            load.until_more(50)


def test_what_kafkas_tools_see_of_a_move(
    cluster: TidelogCluster, dirs: LogDirs, tools: ToolRunner
) -> None:
    topic = "seen"
    cluster.create_topic(topic, PARTITIONS, replication=2, file_delete_delay_ms=100)
    dirs.execute(dirs.plan(topic, "one"))
    until_in(cluster, topic, "one")
    fill(cluster, topic, 2)
    dirs.throttle(1_000)
    plan = dirs.plan(topic, "two")
    dirs.execute(plan)

    def copies() -> list[dict[str, object]]:
        return [each for each in dirs.described(topic) if each["isFuture"]]

    wait_until(lambda: len(copies()) == 4, DEADLINE_S, "all copies are seen", 0.1)
    assert all(str(each["logDir"]).endswith("/two") for each in copies())
    assert any(int(str(each["offsetLag"])) > 0 for each in copies())
    said = dirs.verify(plan)
    assert len(re.findall(r"is still in progress|still in progress", said)) >= 1, said
    dirs.throttle(None)
    until_in(cluster, topic, "two")
    assert copies() == []
    said = dirs.verify(plan)
    assert "still in progress" not in said and "is completed" in said, said


def test_the_admin_client_moves_and_describes_replicas(
    cluster: TidelogCluster, dirs: LogDirs
) -> None:
    topic = "by-admin"
    cluster.create_topic(topic, PARTITIONS, replication=2, file_delete_delay_ms=100)
    dirs.execute(dirs.plan(topic, "one"))
    until_in(cluster, topic, "one")
    data = cluster.brokers[1].data

    def asked(*args: str) -> list[str]:
        said = java.run_java(str(SOURCE), cluster.bootstrap, *args)
        return said.check().out.splitlines()

    assert asked(f"{topic}-0-1=/nowhere", f"unknown-0-1={data}/two") == [
        f"moves {topic}-0-1 LogDirNotFoundException",
        "moves unknown-0-1 ReplicaNotAvailableException",
    ]
    assert asked(f"{topic}-0-1={data}/two") == [f"moves {topic}-0-1 done"]

    def is_there() -> bool:
        return asked(f"{topic}-0-1")[0].startswith(f"is in {data}/two future null")

    wait_until(is_there, DEADLINE_S, "the replica is in the other directory", 0.2)
    assert asked(f"{topic}-0-2")[0].startswith(f"is in {cluster.brokers[2].data}/one future null")
