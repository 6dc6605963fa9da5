"""Clusters of a controller and three brokers: tidelog's and Apache Kafka's, of the same shape.

Owns how they start, what they cost, and what their brokers say of a topic. Knows no row.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.support import clients
from tests.support.cluster import TidelogCluster
from tests.support.kafka import PRODUCTION_FLAGS, KafkaNode
from tests.support.node import Node, receive_frame
from tests.support.processes import free_ports, tree_cpu_s, tree_resident_bytes, wait_until

BROKERS = (1, 2, 3)
CONTROLLER_FLAGS = tuple(flag for flag in PRODUCTION_FLAGS if not flag.startswith("-Xm"))
REST_S = 10.0
"""Over how long the CPU of a cluster at rest is measured."""


class KafkaController(KafkaNode):
    """A process with the controller's role alone."""

    name = "Apache Kafka's controller"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, flags=(*CONTROLLER_FLAGS, "-Xmx512m", "-Xms512m"))
        self.controller_port = free_ports(1)[0]
        address = f"127.0.0.1:{self.controller_port}"
        self.configure(
            {
                "process.roles": "controller",
                "node.id": 100,
                "listeners": f"CONTROLLER://{address}",
                "advertised.listeners": f"CONTROLLER://{address}",
                "controller.quorum.bootstrap.servers": address,
            }
        )

    def _ready_or_ended(self) -> bool:
        if self.program.exit_status() is not None:
            return True
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.controller_port)) == 0


class KafkaBroker(KafkaNode):
    """A process with the broker's role alone."""

    format_option = "--no-initial-controllers"

    def __init__(self, folder: Path, node_id: int, controller: int) -> None:
        config = {
            "process.roles": "broker",
            "node.id": node_id,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "default.replication.factor": len(BROKERS),
            "offsets.topic.replication.factor": len(BROKERS),
        }
        super().__init__(folder, config, PRODUCTION_FLAGS)
        listener = f"PLAINTEXT://127.0.0.1:{self.port}"
        self.configure({"listeners": listener, "advertised.listeners": listener})


class Cluster:
    """A controller and brokers by their ids.

    Used as a context it is made ready (Kafka's formatting is not a part of its start), started by
    `start`, and killed at the end.
    """

    def __init__(self, controller: Node, brokers: Mapping[int, Node]) -> None:
        self.controller = controller
        self.brokers = brokers
        self.bootstrap = ",".join(node.bootstrap for node in brokers.values())

    @property
    def nodes(self) -> list[Node]:
        """All of them, the controller first."""
        return [self.controller, *self.brokers.values()]

    def start(self) -> float:
        """Start all processes at once; seconds until each broker names all of them."""
        begun = time.monotonic()
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(Node.start, self.nodes))
        wait_until(self._all_known, 60, "every broker names all brokers", 0.01)
        return time.monotonic() - begun

    def _all_known(self) -> bool:
        seen = [describe(node.port)[0] for node in self.brokers.values()]
        return all(brokers == set(self.brokers) for brokers in seen)

    def cpu_s(self) -> float:
        """CPU seconds of all its processes, the controller included."""
        return sum(tree_cpu_s(node.program.pid) for node in self.nodes)

    def settle(self) -> None:
        """Wait until its CPU has come to rest (below 0.3 of a core), at most a minute."""
        end = time.monotonic() + 60
        last = -1.0
        while time.monotonic() < end and self.cpu_s() - last > 0.15:
            last = self.cpu_s()
            time.sleep(0.5)

    def resident_bytes(self) -> float:
        """Resident memory of a broker, the mean of them."""
        pids = [node.program.pid for node in self.brokers.values()]
        return sum(map(tree_resident_bytes, pids)) / len(pids)

    def cpu_at_rest(self) -> float:
        """The CPU of an idle broker, as a share of a core: the mean of all brokers."""
        pids = [node.program.pid for node in self.brokers.values()]
        before = sum(map(tree_cpu_s, pids))
        time.sleep(REST_S)
        return (sum(map(tree_cpu_s, pids)) - before) / REST_S / len(pids)

    def all_led(self, topic: str, partitions: int, in_sync: int = 1) -> bool:
        """Whether every broker names a leader, and so many replicas in sync, of all partitions."""
        for node in self.brokers.values():
            seen = describe(node.port, topic)[1]
            if len(seen) < partitions or any(
                leader < 0 or len(isr) < in_sync for leader, isr in seen.values()
            ):
                return False
        return True

    def all_served(self, topic: str, partitions: int) -> bool:
        """Whether the leader of each partition, as one broker names them, tells its end offset."""
        seen = describe(next(iter(self.brokers.values())).port, topic)[1]
        led: dict[int, list[int]] = {}
        for index, (leader, _) in seen.items():
            led.setdefault(leader, []).append(index)
        return len(seen) == partitions and all(
            leader in self.brokers and serves(self.brokers[leader].port, topic, indexes)
            for leader, indexes in led.items()
        )

    def __enter__(self) -> Cluster:
        kafka = [node for node in self.nodes if isinstance(node, KafkaNode)]
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(KafkaNode.format, kafka))
        return self

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            node.__exit__()


def kafka_cluster(folder: Path) -> Cluster:
    """Apache Kafka: one controller and three brokers, each broker with 1 GB of heap."""
    controller = KafkaController(folder / "controller")
    brokers = {
        node_id: KafkaBroker(folder / f"broker-{node_id}", node_id, controller.controller_port)
        for node_id in BROKERS
    }
    return Cluster(controller, brokers)


def tidelog_cluster(folder: Path) -> Cluster:
    """tidelog: one controller and three brokers with their defaults."""
    made = TidelogCluster(folder, len(BROKERS))
    return Cluster(made.controller, made.brokers)


CLUSTER_MAKERS: dict[str, Callable[[Path], Cluster]] = {
    "Apache Kafka": kafka_cluster,
    "tidelog": tidelog_cluster,
}


class ClusterTarget:
    """A running cluster under its name in the table, as `Target` is a node; three replicas each."""

    def __init__(self, name: str, make: Callable[[Path], Cluster], folder: Path) -> None:
        self.name = name
        self._make = make
        self._folder = folder
        self._numbers = itertools.count()
        self.node = make(folder / "cluster")
        self.bootstrap = self.node.bootstrap

    def cpu_s(self) -> float:
        """CPU seconds of all processes."""
        return self.node.cpu_s()

    @contextlib.contextmanager
    def topic(self) -> Iterator[str]:
        """A fresh topic of one partition whose replicas are in sync, deleted afterwards."""
        with self.name_of_topic() as name:
            create(clients.admin(self.bootstrap), name, 1)
            wait_until(lambda: self.in_sync(name), 120, f"{name} is in sync")
            yield name

    @contextlib.contextmanager
    def name_of_topic(self) -> Iterator[str]:
        """A name for a topic that the block creates; deleted afterwards."""
        name = f"round-{next(self._numbers)}"
        yield name
        # Held in a name: a client that is collected gives up its requests.
        admin = clients.admin(self.bootstrap)
        admin.delete_topics([name])[name].result(60)
        # What the deletion still has to do would be the next row's burden.
        self.node.settle()

    def in_sync(self, topic: str, partitions: int = 1) -> bool:
        """Whether every broker names a leader and three replicas in sync of all partitions."""
        return self.node.all_led(topic, partitions, len(BROKERS))

    def leader(self, topic: str) -> int:
        """The broker that leads partition 0."""
        return describe(self.node.brokers[1].port, topic)[1][0][0]

    def another(self) -> Cluster:
        """A second, empty cluster of the same make, not yet started."""
        return self._make(self._folder / f"another-{next(self._numbers)}")


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    """Ask for a topic with three replicas whose files go at once when it is deleted."""
    config = {"file.delete.delay.ms": "1000"}
    wanted = NewTopic(topic, partitions, len(BROKERS), config=config)
    admin.create_topics([wanted], request_timeout=120)[topic].result(120)


Seen = dict[int, tuple[int, list[int]]]


def describe(port: int, topic: str | None = None) -> tuple[set[int], Seen]:
    """What one broker answers to Metadata v1: the brokers, and a topic's leaders and ISRs.

    Nothing of a topic that it does not know, and nothing at all while it does not answer.
    """
    names = [] if topic is None else [_text(topic)]
    answer = _ask(port, 3, struct.pack(">i", len(names)) + b"".join(names))
    return (set(), {}) if answer is None else _read_metadata(_Cursor(answer, 4))


def serves(port: int, topic: str, indexes: Sequence[int]) -> bool:
    """Whether a broker tells the end offset of each of these partitions (ListOffsets v1)."""
    asked = b"".join(struct.pack(">iq", index, -1) for index in indexes)
    head = struct.pack(">ii", -1, 1) + _text(topic) + struct.pack(">i", len(indexes))
    answer = _ask(port, 2, head + asked)
    if answer is None:
        return False
    cursor = _Cursor(answer, 4)
    cursor.take(">i")
    cursor.skip_text()
    for _ in range(cursor.take(">i")):
        cursor.take(">i")
        if cursor.take(">h"):
            return False
        cursor.take(">q")
        cursor.take(">q")
    return True


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _ask(port: int, api_key: int, body: bytes) -> bytes | None:
    """Version 1 of a request and its response; None from a broker that does not answer."""
    request = struct.pack(">hhi", api_key, 1, 1) + _text("bench") + body
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return receive_frame(connection)
    except OSError:
        return None


class _Cursor:
    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def take(self, format_: str) -> int:
        value: int = struct.unpack_from(format_, self._data, self._position)[0]
        self._position += struct.calcsize(format_)
        return value

    def skip_text(self) -> None:
        length = self.take(">h")
        self._position += max(0, length)

    def numbers(self) -> list[int]:
        return [self.take(">i") for _ in range(self.take(">i"))]


def _read_metadata(cursor: _Cursor) -> tuple[set[int], Seen]:
    brokers: set[int] = set()
    for _ in range(cursor.take(">i")):
        brokers.add(cursor.take(">i"))
        cursor.skip_text()
        cursor.take(">i")
        cursor.skip_text()
    cursor.take(">i")
    seen: Seen = {}
    for _ in range(cursor.take(">i")):
        cursor.take(">h")
        cursor.skip_text()
        cursor.take(">b")
        for _ in range(cursor.take(">i")):
            cursor.take(">h")
            index, leader = cursor.take(">i"), cursor.take(">i")
            cursor.numbers()
            seen[index] = leader, cursor.numbers()
    return brokers, seen
