"""The processes of a development cluster and their files: role, id and port of each.

Owns the content of each `node-N.properties` that `tidelog up` writes; starts nothing.

| store | controllers | processes |
|---|---|---|
| sqlite | 1 | the first broker is also the controller |
| zookeeper | 1 or more | controllers 101, 102, …, each in its own process |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.cli.cluster_secret import FILE_NAME
from tidelog.model.configs.server import load
from tidelog.storage.names import LOCK

HOST = "127.0.0.1"
FIRST_CONTROLLER_ID = 101
MOST_REPLICAS = 3
"""Replication factors default to this, or to the number of brokers, or machines, if that is
smaller."""

Address = tuple[str, int]

DECIDED = {
    "advertised.listeners": "--port",
    "broker.id": "--brokers",
    "controller.listener.names": "--controllers",
    "controller.quorum.bootstrap.servers": "--controllers",
    "controller.quorum.voters": "--controllers",
    "listeners": "--port",
    "log.dir": "--data",
    "log.dirs": "--data",
    "metadata.store": "--store",
    "node.id": "--brokers",
    "process.roles": "--controllers",
}
"""Configurations that differ between the processes, and the option that decides each."""


def why_not_config(names: Iterable[str], workers: int = 1) -> str | None:
    """Return why these configurations may not be set for all processes; None when they may."""
    decided = DECIDED if workers == 1 else {**DECIDED, "broker.rack": "--workers"}
    for name in names:
        if name in decided:
            return (
                f"--config {name}: `tidelog up` sets it for each process (see {decided[name]}); "
                "use `tidelog server` to set it yourself"
            )
    return None


def invalid_configs(plan: ClusterPlan) -> list[str]:
    """Return one line for each configuration of the plan that a process would refuse."""
    loaded = load(server_properties(plan, plan.members()[0]))
    return [
        f"--config {refused.name}={plan.configs[refused.name]}: {refused.sentence}"
        for refused in (loaded if isinstance(loaded, tuple) else ())
        if refused.name in plan.configs
    ]


@dataclass(frozen=True, slots=True)
class ClusterProcess:
    """One process: its id, its roles, and its port for clients (0: any free port).

    ``machine`` is the number of the machine that a broker is said to be on; 0 without machines.
    """

    node_id: int
    is_broker: bool = True
    is_controller: bool = False
    port: int = 0
    machine: int = 0

    def __str__(self) -> str:
        return f"{'broker' if self.is_broker else 'controller'} {self.node_id}"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The whole cluster. `store` is "sqlite" or a "zookeeper://…" address.

    With more than one of `workers`, each of the `brokers` is a machine with so many of them.
    """

    folder: Path
    brokers: int = 1
    controllers: int = 1
    port: int = 0
    store: str = "sqlite"
    configs: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1

    def file_of(self, member: ClusterProcess) -> Path:
        """Return the properties file of a process: each is written again for a start."""
        return self.folder / f"node-{member.node_id}.properties"

    def log_of(self, member: ClusterProcess) -> Path:
        """Return its log."""
        return self.folder / f"node-{member.node_id}.log"

    def lock_of(self, member: ClusterProcess) -> Path | None:
        """Return the lock file of a broker's log directory."""
        return self.folder / f"broker-{member.node_id}" / LOCK if member.is_broker else None

    def write_file(
        self, member: ClusterProcess, controllers: Sequence[Address], controller_port: int
    ) -> None:
        """Write the properties file. Raises OSError."""
        text = server_properties(self, member, controllers, controller_port)
        self.file_of(member).write_text(text)

    def arguments(self, member: ClusterProcess) -> Sequence[str]:
        """Return none: the file says everything."""
        return ()

    def members(self) -> list[ClusterProcess]:
        """Return all processes, controllers first."""
        embedded = self.store == "sqlite"
        # The first workers of all machines come first: their ids stay when workers are added.
        ids = range(1, self.brokers * self.workers + 1)
        ports = [self.port + node_id - 1 if self.port else 0 for node_id in ids]
        brokers = [
            ClusterProcess(
                node_id,
                is_controller=embedded and node_id == 1,
                port=port,
                machine=(node_id - 1) % self.brokers + 1 if self.workers > 1 else 0,
            )
            for node_id, port in zip(ids, ports, strict=True)
        ]
        alone = range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + self.controllers)
        return [
            *(
                ClusterProcess(x, is_broker=False, is_controller=True)
                for x in alone
                if not embedded
            ),
            *brokers,
        ]


def server_properties(
    plan: ClusterPlan,
    member: ClusterProcess,
    controllers: Sequence[Address] = (),
    controller_port: int = 0,
) -> str:
    """Return the properties file of one process; the plan's configurations override it.

    A broker finds the controllers at `controllers`; a controller listens on `controller_port`, or
    on any free port for 0.
    """
    replicas = str(min(MOST_REPLICAS, plan.brokers))
    listeners = [f"PLAINTEXT://{HOST}:{member.port}"] if member.is_broker else []
    values = {
        "node.id": str(member.node_id),
        "process.roles": "broker" if member.is_broker else "controller",
        "controller.listener.names": "CONTROLLER",
        "metrics_port": f"{HOST}:0",
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, plan.brokers)),
        "group.initial.rebalance.delay.ms": "0",
        "cluster.secret.file": str(plan.folder / FILE_NAME),
    }
    if member.is_broker:
        values["log.dirs"] = str(plan.folder / f"broker-{member.node_id}")
    if member.is_controller:
        listeners.append(f"CONTROLLER://{HOST}:{controller_port}")
        embedded = f"sqlite:{plan.folder / 'metadata.sqlite'}"
        values["metadata.store"] = embedded if plan.store == "sqlite" else plan.store
    if member.is_broker and member.is_controller:
        values["process.roles"] = "broker,controller"
    elif member.is_broker:
        addresses = ",".join(f"{host}:{port}" for host, port in controllers)
        values["controller.quorum.bootstrap.servers"] = addresses
    values["listeners"] = ",".join(listeners)
    values.update(plan.configs)
    if member.machine:
        values["broker.rack"] = f"machine-{member.machine}"
    # In Java's properties a backslash begins an escape.
    return "".join(
        f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in values.items()
    )
