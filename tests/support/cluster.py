"""A cluster of real processes: one controller alone, and brokers that can be killed one by one."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import NewTopic

from tests.support.clients import DEADLINE_S, admin
from tests.support.node import Node
from tests.support.processes import free_ports, wait_until
from tests.support.server import TidelogNode


class ControllerNode(TidelogNode):
    """A process with the controller's role alone."""

    name = "the controller"

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, config)
        self.controller_port = free_ports(1)[0]
        self.configure(
            {
                "process.roles": "controller",
                "node.id": 100,
                "listeners": f"CONTROLLER://127.0.0.1:{self.controller_port}",
                "advertised.listeners": None,
                "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            }
        )

    def _ready_or_ended(self) -> bool:
        if self.program.exit_status() is not None:
            return True
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.controller_port)) == 0


class TidelogCluster:
    """A controller and brokers 1..n. Used as a context all are started, and killed at the end."""

    def __init__(
        self, folder: Path, brokers: int = 3, config: Mapping[str, object] | None = None
    ) -> None:
        shared = {
            "default.replication.factor": min(3, brokers),
            "offsets.topic.replication.factor": min(3, brokers),
            **(config or {}),
        }
        self.controller = ControllerNode(folder / "controller", shared)
        at = f"127.0.0.1:{self.controller.controller_port}"
        self.brokers: dict[int, TidelogNode] = {}
        for node_id in range(1, brokers + 1):
            node = TidelogNode(folder / f"broker-{node_id}", shared)
            node.configure(
                {
                    "process.roles": "broker",
                    "node.id": node_id,
                    "listeners": f"PLAINTEXT://127.0.0.1:{node.port}",
                    "controller.quorum.bootstrap.servers": at,
                    "metadata.store": None,
                }
            )
            self.brokers[node_id] = node

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(node.bootstrap for node in self.brokers.values())

    def __enter__(self) -> TidelogCluster:
        with ExitStack() as started:
            started.enter_context(self.controller)
            for node in self.brokers.values():
                started.callback(node.__exit__)
            with ThreadPoolExecutor(len(self.brokers)) as threads:
                list(threads.map(TidelogNode.start, self.brokers.values()))
            self._nodes = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._nodes.close()

    def create_topic(
        self, topic: str, partitions: int = 1, replication: int = 3, **config: object
    ) -> None:
        """Create a topic and return when every partition has all replicas in sync."""
        names = {name.replace("_", "."): str(value) for name, value in config.items()}
        client = admin(self.bootstrap)
        wanted = NewTopic(topic, partitions, replication, config=names)
        client.create_topics([wanted])[topic].result(DEADLINE_S)
        self.until_in_sync(topic, replication)

    def partitions(
        self, topic: str, ask: int | None = None
    ) -> dict[int, confluent_kafka.admin.PartitionMetadata]:
        """The topic's partitions as one broker (or any) tells of them."""
        at = self.bootstrap if ask is None else self.brokers[ask].bootstrap
        found = admin(at).list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return dict(found)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition, -1 for none."""
        return int(self.partitions(topic)[partition].leader)

    def until_in_sync(self, topic: str, members: int, deadline_s: float = DEADLINE_S) -> None:
        """Wait until every partition has a leader and so many members of its ISR."""

        def reached() -> bool:
            found = self.partitions(topic).values()
            return all(each.leader >= 0 and len(each.isrs) == members for each in found)

        wait_until(reached, deadline_s, f"{members} replicas of {topic} in sync", 0.05)

    def empty(self, broker: int) -> None:
        """Take everything from a stopped broker's disk."""
        shutil.rmtree(self.brokers[broker].data)

    def said(self, expected: str) -> str:
        """The ends of all logs, for a failure."""
        nodes: Iterable[Node] = (self.controller, *self.brokers.values())
        return "\n".join(node.said(expected) for node in nodes)


def differing_replicas(cluster: TidelogCluster, topic: str, partitions: int) -> list[str]:
    """What differs between the replicas' bytes of stopped brokers; empty when all are the same."""
    wrong = []
    for partition in range(partitions):
        found = {}
        for node_id, node in cluster.brokers.items():
            folder = node.log_folder() / f"{topic}-{partition}"
            if folder.is_dir():
                segments = sorted(folder.glob("*.log"))
                found[node_id] = b"".join(segment.read_bytes() for segment in segments)
        if len(set(found.values())) != 1:
            sizes = {node_id: len(content) for node_id, content in found.items()}
            wrong.append(f"{topic}-{partition}: the replicas differ, bytes by broker {sizes}")
    return wrong
