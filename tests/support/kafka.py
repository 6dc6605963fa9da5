"""Apache Kafka as a real process: the control target of the cluster tests, and the benchmark's.

One node with both roles (KRaft). What is not set here is Kafka's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.java import START_FAST, java_command, run_java
from tests.support.node import Node
from tests.support.processes import free_ports

# Tests want a node that starts soon; the benchmark gives the flags of Kafka's own start script.
TEST_FLAGS = (
    *START_FAST,
    "-Xmx512m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
PRODUCTION_FLAGS = (
    "-server",
    "-Xmx1G",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
CLUSTER_ID = "tidelogtidelogtidelogw"


class KafkaNode(Node):
    """One Apache Kafka node; `config` overrides lines of its server.properties."""

    name = "Apache Kafka"
    start_deadline_s = 90.0
    format_option = "--standalone"

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, object] | None = None,
        flags: tuple[str, ...] = TEST_FLAGS,
    ) -> None:
        port, controller_port = free_ports(2)
        super().__init__(folder, port)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "server.properties"
        self._flags = flags
        self._formatted = False
        controller = f"127.0.0.1:{controller_port}"
        self.config: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        self.configure(config or {})

    def configure(self, config: Mapping[str, object]) -> None:
        """Change lines of the properties file; they count from the next start."""
        self.config.update(config)
        lines = [f"{name}={value}" for name, value in self.config.items() if value is not None]
        self.file.write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return java_command("kafka-server", str(self.file), flags=self._flags)

    def format(self) -> None:
        """Give its folder the cluster's id, once: a start without it would be refused."""
        if not self._formatted:
            run_java(
                *("kafka-storage", "format", self.format_option),
                *("-t", CLUSTER_ID, "-c", str(self.file)),
            ).check()
            self._formatted = True

    def start(self) -> None:
        self.format()
        super().start()
