"""The node with the only controller loses its disk, with real processes ("Known traps").

Node 1 is controller and broker, nodes 2 and 3 are brokers. Started on an empty folder, node 1
founds no second cluster; with `tidelog doctor restored` all comes back from what brokers keep.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support import clients
from tests.support.clients import Record
from tests.support.cluster import create_replicated, until_in_sync
from tests.support.processes import DEADLINE_S, free_ports, wait_until
from tests.support.proofs import write_secret
from tests.support.server import TidelogNode, run_tidelog
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.long(40),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

CONFIGS = {"retention.ms": 86_400_000, "segment.bytes": 654_321}


class ThreeNodes:
    """Node 1 has both roles and the store; all replication factors are 3."""

    def __init__(self, folder: Path) -> None:
        self.secret = write_secret(folder)
        (controller_port,) = free_ports(1)
        shared = {
            "cluster.secret.file": self.secret,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "default.replication.factor": 3,
            "offsets.topic.replication.factor": 3,
            "broker.session.timeout.ms": 3000,
        }
        self.nodes = {x: TidelogNode(folder / f"node-{x}", shared) for x in (1, 2, 3)}
        first = self.nodes[1]
        listeners = f"PLAINTEXT://127.0.0.1:{first.port},CONTROLLER://127.0.0.1:{controller_port}"
        first.configure({"listeners": listeners})
        for number in (2, 3):
            node = self.nodes[number]
            node.configure(
                {
                    "process.roles": "broker",
                    "node.id": number,
                    "listeners": f"PLAINTEXT://127.0.0.1:{node.port}",
                    "metadata.store": None,
                }
            )
        self.store = first.folder / "metadata.db"
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes.values())

    def lose(self, *, log_dirs: bool) -> None:
        """Take the store from a killed node 1, with its log directories or without them."""
        for path in self.store.parent.glob("metadata.db*"):
            path.unlink()
        if log_dirs:
            shutil.rmtree(self.nodes[1].data)

    def restored(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """`tidelog doctor restored`: exit status and report."""
        found = run_tidelog(
            *("doctor", "restored", "--json", "--bootstrap-server", self.bootstrap),
            *("--cluster-secret-file", str(self.secret)),
            *arguments,
        )
        return found.returncode, json.loads(found.stdout or json.dumps({"error": found.stderr}))

    def health(self, number: int) -> tuple[int, dict[str, Any]]:
        """Status and content of `/health` of a node."""
        address = f"http://127.0.0.1:{self.nodes[number].metrics_port}/health"
        try:
            with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())
        except urllib.error.URLError as error:
            return 0, {"error": str(error)}

    def metric(self, name: str) -> float:
        """A number of node 1 by its whole name."""
        address = f"http://127.0.0.1:{self.nodes[1].metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            lines = answer.read().decode().splitlines()
        (found,) = [line for line in lines if line.startswith(f"{name} ")]
        return float(found.split()[1])

    def said(self, expected: str) -> str:
        return "\n".join(node.said(expected) for node in self.nodes.values())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    made = ThreeNodes(tmp_path)
    with ExitStack() as started:
        for node in made.nodes.values():
            started.callback(node.__exit__)
            node.start()
        yield made


def write(bootstrap: str, topic: str, first: int, count: int) -> list[str]:
    """Write numbered records, acknowledged by all; return their values."""
    values = [f"{topic}-{number}" for number in range(first, first + count)]
    clients.write_confluent(bootstrap, topic, [Record(None, value) for value in values], "none")
    return values


def read(bootstrap: str, topic: str, count: int) -> list[str]:
    found = clients.read_confluent(bootstrap, topic, count)
    return sorted(str(record.value) for record in found)


def committed(bootstrap: str, topic: str) -> dict[int, int]:
    """The offsets of the group, by partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    places = [confluent_kafka.TopicPartition(topic, index) for index in range(2)]
    answer = clients.committed_after_a_move(consumer, places)
    consumer.close()
    return {place.partition: place.offset for place in answer}


def commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    places = [confluent_kafka.TopicPartition(topic, index, offset) for index in range(2)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def test_a_broker_that_comes_after_the_acceptance_keeps_its_replicas(cluster: ThreeNodes) -> None:
    """Its replicas were quarantined, and removed after ``stale.partition.delete.delay.ms``."""
    first, third = cluster.nodes[1], cluster.nodes[3]
    create_replicated(cluster.bootstrap, "orders", 2, 3, **CONFIGS)
    ask = ("--bootstrap-server", cluster.bootstrap)
    made = run_tidelog("topics", *ask, "--create", "--topic", "alone", "--replica-assignment", "3")
    assert made.returncode == 0, made
    orders = write(cluster.bootstrap, "orders", 0, 100)
    alone = write(cluster.bootstrap, "alone", 0, 50)
    third.kill()
    # The later ones are acknowledged by the two that are left.
    until_in_sync(cluster.bootstrap, "orders", 2)
    orders += write(cluster.bootstrap, "orders", 100, 50)
    first.kill()
    cluster.lose(log_dirs=False)
    first.launch()

    def two_are_here() -> bool:
        return cluster.restored()[1].get("brokers_heard") == [1, 2]

    wait_until(two_are_here, DEADLINE_S, lambda: cluster.said("two have registered"), 0.2)
    assert cluster.restored("--accept")[0] == 0
    first.until_ready()
    until_in_sync(cluster.bootstrap, "orders", 2)
    third.configure({"stale.partition.delete.delay.ms": 0})
    third.start()

    def late() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cluster.restored()[1].get("late", [])
        return found

    wait_until(lambda: len(late()) >= 3, DEADLINE_S, lambda: cluster.said("late replicas"), 0.2)
    found = {(x["topic"], x["partition"]): x["fate"] for x in late()}
    assert found["alone", 0] == "comes_back"
    assert found["orders", 0] == found["orders", 1] == "rejoins"
    doctor = run_tidelog("doctor", *ask)
    assert doctor.returncode == 1 and "tidelog doctor restored" in doctor.stdout, doctor
    made = run_tidelog("topics", *ask, "--create", "--topic", "alone")
    assert made.returncode == 1 and "replicas of a topic alone" in made.stderr, made
    orders += write(cluster.bootstrap, "orders", 150, 50)

    status, report = cluster.restored("--accept")
    assert (status, report.get("accepted")) == (0, True), report
    first.until_ready()
    until_in_sync(cluster.bootstrap, "orders", 3)
    until_in_sync(cluster.bootstrap, "alone", 1)
    assert read(cluster.bootstrap, "orders", 200) == sorted(orders)
    assert read(cluster.bootstrap, "alone", 50) == sorted(alone)
    assert cluster.restored()[0] == 0
    alone += write(cluster.bootstrap, "alone", 50, 10)
    assert read(cluster.bootstrap, "alone", 60) == sorted(alone)


@pytest.mark.parametrize("log_dirs", [True, False], ids=["the whole disk", "the store alone"])
def test_a_lost_store_founds_no_second_cluster(cluster: ThreeNodes, *, log_dirs: bool) -> None:
    create_replicated(cluster.bootstrap, "orders", 2, 3, **CONFIGS)
    values = write(cluster.bootstrap, "orders", 0, 200)
    commit(cluster.bootstrap, "orders", 7)
    former = cluster.health(1)[1]["cluster_id"]
    first = cluster.nodes[1]
    first.kill()
    cluster.lose(log_dirs=log_dirs)
    # With the whole disk lost only brokers 2 and 3 know the cluster.
    first.launch()

    def is_lost() -> bool:
        status, report = cluster.restored()
        return status == 1 and "is lost" in str(report.get("went_back"))

    wait_until(is_lost, DEADLINE_S, lambda: cluster.said("the store is lost"), 0.2)
    # No topic is made a second time.
    others = ",".join(cluster.nodes[x].bootstrap for x in (2, 3))
    ask = ("--bootstrap-server", others)
    made = run_tidelog("topics", *ask, "--create", "--topic", "orders")
    assert made.returncode == 1 and f"store of cluster {former} is lost" in made.stderr, made
    doctor = run_tidelog("doctor", *ask)
    assert doctor.returncode == 1, doctor
    assert "tidelog doctor restored" in doctor.stdout + doctor.stderr, doctor
    wait_until(lambda: cluster.health(1)[0] == 503, DEADLINE_S, lambda: cluster.said("health"), 0.2)
    assert f"cluster {former} is lost" in cluster.health(1)[1]["store"]
    assert cluster.metric("tidelog_controller_store_went_back") == 1

    def all_are_here() -> bool:
        return cluster.restored()[1].get("brokers_heard") == [1, 2, 3]

    wait_until(all_are_here, DEADLINE_S, lambda: cluster.said("all have registered"), 0.2)
    _, report = cluster.restored()
    (orders,) = [x for x in report["unknown"] if x["topic"] == "orders"]
    assert orders["configs"] == {name: str(value) for name, value in CONFIGS.items()}
    status, report = cluster.restored("--accept")
    assert (status, report.get("accepted")) == (0, True), report
    first.until_ready()

    replicas = 2 if log_dirs else 3
    until_in_sync(cluster.bootstrap, "orders", replicas)
    until_in_sync(cluster.bootstrap, "__consumer_offsets", replicas)
    assert read(cluster.bootstrap, "orders", 200) == sorted(values)
    assert committed(cluster.bootstrap, "orders") == {0: 7, 1: 7}
    described = run_tidelog(
        *("configs", "--bootstrap-server", cluster.bootstrap, "--describe", "--json"),
        *("--entity-type", "topics", "--entity-name", "orders"),
    )
    assert all(str(value) in described.stdout for value in CONFIGS.values()), described
    values += write(cluster.bootstrap, "orders", 200, 50)
    assert read(cluster.bootstrap, "orders", 250) == sorted(values)
    wait_until(lambda: cluster.health(1)[0] == 200, DEADLINE_S, lambda: str(cluster.health(1)), 0.1)
    assert {cluster.health(x)[1]["cluster_id"] for x in (1, 2, 3)} == {former}
    # The new store is the store of that cluster: the next start of node 1 asks for nothing.
    first.kill()
    first.start()
    values += write(cluster.bootstrap, "orders", 250, 10)
    assert read(cluster.bootstrap, "orders", 260) == sorted(values)
