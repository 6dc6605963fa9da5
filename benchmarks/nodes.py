"""The nodes that are measured: tidelog and Apache Kafka with the settings they ship with."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support import clients, log_files
from tests.support.kafka import PRODUCTION_FLAGS, KafkaNode
from tests.support.node import Node
from tests.support.processes import tree_cpu_s
from tests.support.server import TidelogNode

OF_ONE_BROKER = {
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


def apache_kafka(folder: Path) -> Node:
    """Apache Kafka with the JVM flags of its own start script."""
    return KafkaNode(folder, flags=PRODUCTION_FLAGS)


def tidelog(folder: Path) -> Node:
    """tidelog with its defaults, and the log of transactions of a single broker."""
    return TidelogNode(folder, OF_ONE_BROKER)


MAKERS: dict[str, Callable[[Path], Node]] = {"Apache Kafka": apache_kafka, "tidelog": tidelog}


class Target:
    """A running node under its name in the table, and what the rows ask of it."""

    def __init__(self, name: str, make: Callable[[Path], Node], folder: Path) -> None:
        self.name = name
        self.filled: set[str] = set()
        self._make = make
        self._folder = folder
        self._numbers = itertools.count()
        self.node = make(folder / "node")
        self.bootstrap = self.node.bootstrap

    def cpu_s(self) -> float:
        """CPU seconds of the node's process and those it started."""
        return tree_cpu_s(self.node.program.pid)

    def create_topic(self, topic: str) -> None:
        """A topic of one partition that has its leader."""
        clients.create_topic(self.bootstrap, topic)

    @contextlib.contextmanager
    def topic(self) -> Iterator[str]:
        """A fresh topic of one partition, deleted afterwards."""
        name = f"round-{next(self._numbers)}"
        self.create_topic(name)
        yield name
        # Held in a name: a client that is collected gives up its requests.
        admin = clients.admin(self.bootstrap)
        admin.delete_topics([name])[name].result(60)

    def log_bytes(self, topic: str) -> int:
        """How large the topic's log is."""
        return log_files.log_bytes(self.node.log_folder(), topic)

    def another(self) -> Node:
        """A second, empty node of the same make, not yet started."""
        return self._make(self._folder / f"another-{next(self._numbers)}")
