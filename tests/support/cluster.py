"""A cluster of real processes: one controller alone, and brokers that can be killed one by one.

With a `Network` all of them talk through its links. A broker finds another by the listener that its
own `inter.broker.listener.name` names, and each has one: so every directed link has an address.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import NewTopic

from tests.support.clients import admin
from tests.support.links import Network
from tests.support.log_files import BatchOnDisk, batches_by_partition
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, free_ports, wait_until
from tests.support.proofs import write_secret
from tests.support.server import TidelogNode


class ControllerNode(TidelogNode):
    """A process with the controller's role alone."""

    name = "the controller"

    def __init__(
        self, folder: Path, config: Mapping[str, object] | None = None, node_id: int = 100
    ) -> None:
        super().__init__(folder, config)
        self.controller_port = free_ports(1)[0]
        self.configure(
            {
                "process.roles": "controller",
                "node.id": node_id,
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
    """A controller and brokers 1..n. Used as a context all are started, and killed at the end.

    Several controllers need a `store` that takes them; their ids are 100, 101, ….
    """

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        config: Mapping[str, object] | None = None,
        network: Network | None = None,
        controllers: int = 1,
        store: str | None = None,
    ) -> None:
        self.secret = write_secret(folder)
        shared = {
            "cluster.secret.file": self.secret,
            "default.replication.factor": min(3, brokers),
            "offsets.topic.replication.factor": min(3, brokers),
            "transaction.state.log.replication.factor": min(3, brokers),
            **(config or {}),
        }
        named = shared if store is None else {**shared, "metadata.store": store}
        self.controllers = [
            ControllerNode(folder / f"controller{number or ''}", named, 100 + number)
            for number in range(controllers)
        ]
        at = ",".join(f"127.0.0.1:{each.controller_port}" for each in self.controllers)
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
        self._addresses = [node.bootstrap for node in self.brokers.values()]
        if network is not None:
            self._addresses = self._lay_links(network)

    @property
    def controller(self) -> ControllerNode:
        """The only controller, or the first."""
        return self.controllers[0]

    @property
    def controller_ends(self) -> list[str]:
        """What the controllers are called on the network: "controller", "controller2", …."""
        return [f"controller{number or ''}" for number in (0, *range(2, len(self.controllers) + 1))]

    def _lay_links(self, network: Network) -> list[str]:
        """Lead everything through links; return where clients find the brokers."""
        sources = [*self.controller_ends, *(str(node_id) for node_id in self.brokers)]
        names = ["CLIENT", *(f"FROM_{source.upper()}" for source in sources)]
        protocols = ",".join(f"{name}:PLAINTEXT" for name in ("CONTROLLER", *names))
        for end, controller in zip(self.controller_ends, self.controllers, strict=True):
            controller.configure(
                {
                    "inter.broker.listener.name": f"FROM_{end.upper()}",
                    "listener.security.protocol.map": protocols,
                }
            )
        for_clients = []
        for node_id, node in self.brokers.items():
            own = str(node_id)
            ports = [node.port, *free_ports(len(names) - 1)]
            ends = ["client", *sources]
            links = [network.link(end, own, port) for end, port in zip(ends, ports, strict=True)]
            for_clients.append(f"127.0.0.1:{links[0]}")
            found = [
                network.link(own, end, controller.controller_port)
                for end, controller in zip(self.controller_ends, self.controllers, strict=True)
            ]
            node.configure(
                {
                    "listeners": _listeners(names, ports),
                    "advertised.listeners": _listeners(names, links),
                    "inter.broker.listener.name": f"FROM_{own}",
                    "listener.security.protocol.map": protocols,
                    "controller.quorum.bootstrap.servers": ",".join(
                        f"127.0.0.1:{port}" for port in found
                    ),
                }
            )
        return for_clients

    @property
    def bootstrap(self) -> str:
        """Where clients find all brokers."""
        return ",".join(self._addresses)

    def __enter__(self) -> TidelogCluster:
        with ExitStack() as started:
            for controller in self.controllers:
                started.enter_context(controller)
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
        create_replicated(self.bootstrap, topic, partitions, replication, **config)

    def partitions(
        self, topic: str, ask: int | None = None
    ) -> dict[int, confluent_kafka.admin.PartitionMetadata]:
        """The topic's partitions as one broker (or any) tells of them."""
        at = self.bootstrap if ask is None else self.brokers[ask].bootstrap
        found = admin(at).list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return dict(found)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition, once one does: a broker that lacks the last election
        may respond that there is no leader."""
        led: list[int] = []

        def is_led() -> bool:
            led.append(int(self.partitions(topic)[partition].leader))
            return led[-1] >= 0

        wait_until(is_led, DEADLINE_S, f"{topic}-{partition} has a leader")
        return led[-1]

    def until_in_sync(self, topic: str, members: int) -> None:
        """Wait until every partition has a leader and so many members of its ISR."""
        until_in_sync(self.bootstrap, topic, members)

    def batches_of(self, topic: str) -> Callable[[int], list[BatchOnDisk]]:
        """Return what gives the batches of a partition of the topic."""
        return batches_by_partition((each.log_folder() for each in self.brokers.values()), topic)

    def pids(self) -> list[int]:
        """The processes that run now."""
        found = (node.running_pid for node in (*self.controllers, *self.brokers.values()))
        return [pid for pid in found if pid is not None]

    def empty(self, broker: int) -> None:
        """Take everything from a killed broker's disk."""
        data = self.brokers[broker].data

        def is_empty() -> bool:
            for path in data.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            return not any(data.iterdir())

        # A helper process of the broker lives a moment longer, and may still write.
        wait_until(is_empty, DEADLINE_S, "the disk is empty")

    def said(self, expected: str) -> str:
        """The ends of all logs, for a failure."""
        nodes: Iterable[Node] = (*self.controllers, *self.brokers.values())
        return "\n".join(node.said(expected) for node in nodes)


def create_replicated(
    bootstrap: str, topic: str, partitions: int = 1, replication: int = 3, **config: object
) -> None:
    """Create a topic and return when every partition has all replicas in sync."""
    names = {name.replace("_", "."): str(value) for name, value in config.items()}
    wanted = NewTopic(topic, partitions, replication, config=names)
    client = admin(bootstrap)
    client.create_topics([wanted])[topic].result(DEADLINE_S)
    until_in_sync(bootstrap, topic, replication)


def until_in_sync(bootstrap: str, topic: str, members: int) -> None:
    """Wait until the topic is there, and every partition has a leader and so many members of its
    ISR."""
    client = admin(bootstrap)

    def reached() -> bool:
        found = client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        # A broker lists no partition of a topic that is missing in its metadata.
        return bool(found) and all(
            each.leader >= 0 and len(each.isrs) == members for each in found.values()
        )

    wait_until(reached, DEADLINE_S, f"{members} replicas of {topic} in sync", 0.05)


def _listeners(names: list[str], ports: list[int]) -> str:
    pairs = zip(names, ports, strict=True)
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in pairs)


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
