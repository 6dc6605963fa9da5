"""`tidelog server FILE` as a real process on ephemeral ports, and the commands beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.loop_guard import ON_START
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, free_ports


class TidelogNode(Node):
    """One process with both roles on an SQLite store.

    `config` overrides lines of the properties file; a value of None leaves the line out.
    """

    name = "tidelog"

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        port, controller_port, self.metrics_port = free_ports(3)
        super().__init__(folder, port)
        self._module = "tidelog.cli.main"
        self.ran_before = folder.exists()
        """Whether the cluster may not be new; a test sets it that takes a disk away."""
        self._environment: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "server.properties"
        self.config: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "metadata.store": f"sqlite:{folder / 'metadata.db'}",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "metrics_port": self.metrics_port,
        }
        self.configure(config or {})

    def configure(self, config: Mapping[str, object]) -> None:
        """Change lines of the properties file; they count from the next start."""
        self.config.update(config)
        lines = [f"{name}={value}" for name, value in self.config.items() if value is not None]
        self.file.write_text("\n".join(lines) + "\n")

    def run_with(self, module: str, environment: Mapping[str, str]) -> None:
        """Run `module` in place of tidelog's own main one, from the next start on."""
        self._module = module
        self._environment = {"PYTHONPATH": os.pathsep.join([ON_START, *sys.path]), **environment}

    def command(self) -> list[str]:
        # Without proof the first topic of a new cluster waits for brokers of a former life.
        proof = [] if self.ran_before else ["--new-cluster"]
        self.ran_before = True
        return [sys.executable, "-m", self._module, "server", str(self.file), *proof]

    def environment(self) -> dict[str, str]:
        return self._environment


def tidelog_command(*args: str) -> list[str]:
    """The command line of `tidelog ARGS` with this interpreter."""
    return [sys.executable, "-m", "tidelog.cli.main", *args]


def run_tidelog(
    *args: str, stdin: str = "", deadline_s: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    """Run `tidelog ARGS` to its end; status and both streams in the answer."""
    return subprocess.run(
        tidelog_command(*args), input=stdin, capture_output=True, text=True, timeout=deadline_s
    )
