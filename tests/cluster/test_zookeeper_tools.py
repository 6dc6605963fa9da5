"""An old tool that knows only ZooKeeper, and real brokers: what it writes takes effect.

The tool writes Kafka's nodes and nothing of ours; `test_zookeeper_outside.py` has the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.support import clients
from tests.support.clients import Record
from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tests.support.zookeeper import ZooKeeper, needed

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[KazooClient]:
    needed()
    with ZooKeeper(tmp_path / "zookeeper") as server:
        client = KazooClient(hosts=server.address)
        client.start(DEADLINE_S)
        client.ensure_path("/t")
        client.chroot = "/t"
        yield client
        client.stop()
        client.close()


@pytest.fixture
def cluster(tool: KazooClient, tmp_path: Path) -> Iterator[TidelogCluster]:
    host, port = tool.hosts[0]
    with TidelogCluster(tmp_path, brokers=2, store=f"zookeeper://{host}:{port}/t") as started:
        yield started


def write(cluster: TidelogCluster, values: list[str]) -> None:
    records = [Record(None, value) for value in values]
    clients.write_confluent(cluster.bootstrap, "old", records, "none")


def test_a_topic_of_an_old_tool_lives_and_dies(tool: KazooClient, cluster: TidelogCluster) -> None:
    node = {"version": 1, "partitions": {"0": [1, 2]}}
    tool.create("/brokers/topics/old", json.dumps(node).encode())
    wait_until(
        lambda: "old" in known(cluster), DEADLINE_S, lambda: cluster.said("the topic is known")
    )
    cluster.until_in_sync("old", 2)
    write(cluster, ["a", "b"])

    # Rewritten without what is ours, and with a partition more.
    topic_id = json.loads(tool.get("/brokers/topics/old")[0])["topic_id"]
    node["partitions"] = {"0": [1, 2], "1": [2, 1]}
    tool.set("/brokers/topics/old", json.dumps(node).encode())
    wait_until(
        lambda: len(cluster.partitions("old")) == 2,
        DEADLINE_S,
        lambda: cluster.said("it has grown"),
    )
    cluster.until_in_sync("old", 2)
    assert json.loads(tool.get("/brokers/topics/old")[0])["topic_id"] == topic_id
    found = clients.read_confluent(cluster.bootstrap, "old", 2)
    assert sorted(str(record.value) for record in found) == ["a", "b"]

    config = {"version": 1, "config": {"max.message.bytes": "1234"}}
    tool.create("/config/topics/old", json.dumps(config).encode())
    note = {"version": 2, "entity_path": "topics/old"}
    tool.create("/config/changes/config_change_", json.dumps(note).encode(), sequence=True)
    wait_until(lambda: "1234" in described(cluster), DEADLINE_S, "it takes effect")
    wait_until(lambda: tool.get_children("/config/changes") == [], DEADLINE_S, "the note is gone")

    tool.create("/admin/delete_topics/old", b"")
    wait_until(
        lambda: "old" not in known(cluster), DEADLINE_S, lambda: cluster.said("it is deleted")
    )
    wait_until(
        lambda: not directories(cluster), DEADLINE_S, lambda: cluster.said("its replicas are gone")
    )
    assert tool.get_children("/admin/delete_topics") == []
    assert tool.exists("/brokers/topics/old") is None
    assert tool.get_children("/tidelog/deletions") == []


def known(cluster: TidelogCluster) -> set[str]:
    """The topics that brokers tell of."""
    return set(clients.admin(cluster.bootstrap).list_topics(timeout=DEADLINE_S).topics)


def described(cluster: TidelogCluster) -> str:
    """What `tidelog configs` shows of the topic."""
    server = ("--bootstrap-server", cluster.bootstrap)
    done = run_tidelog("configs", *server, "--describe", "--topic", "old")
    assert done.returncode == 0, done.stderr
    return done.stdout


def directories(cluster: TidelogCluster) -> list[Path]:
    """The replicas on all disks, those renamed for deletion left out."""
    return [
        path
        for node in cluster.brokers.values()
        for path in node.log_folder().glob("old-*")
        if not path.name.endswith("-delete")
    ]
