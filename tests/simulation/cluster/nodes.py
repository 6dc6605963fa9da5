"""The machines of the simulated cluster: controllers and brokers that start, end and come back.

Owns the lives of both kinds and their configuration, with the level of each. When they end is the
faults' (``faults``), when their level changes is ``rolls``'.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.cluster.store import SESSION_SECONDS, JournalTree, SimulatedStore
from tests.simulation.kernel import UNLIMITED, Machine, Process, World
from tests.simulation.secret import put_secret, secret_of
from tests.support.lone_controller import LoneController
from tidelog.broker.process import BOOT_ID, BrokerProcess, StartFailed
from tidelog.metadata.store import StoreRefused, StoreUnavailable
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.levels import LATEST
from tidelog.storage.names import CLEAN_SHUTDOWN

LOGS = "/data/logs"
LEVEL = "inter.broker.protocol.version"
PORT = 9092
CONTROLLER_PORT = 9093
STOP_SECONDS = 30.0
RESTART_SECONDS = 1.0
"""A supervisor starts a process again that could not start, after this time."""


def _configs(values: dict[str, str]) -> ServerConfigs:
    found = from_mapping(values)
    assert isinstance(found, ServerConfigs), found
    return found


class Node:
    """One machine with one process on it, which is started again and again."""

    def __init__(self, world: World, host: str, values: dict[str, str]) -> None:
        """``values`` is its configuration, all but the level: the newest until it is set."""
        self.world = world
        self.host = host
        self._values = values
        self.set_level(LATEST.name)
        self.machine: Machine = world.machine(host)
        self.process: Process | None = None
        self.ready = False
        self.wanted = False
        """Whether a supervisor keeps it running."""
        self.boots = 0
        self.starts = 0
        self.ended_at = 0.0
        """When the last life ended that has ended."""
        self.refused: list[str] = []
        """Why starts failed."""
        self.slow_stops = 0
        """How often a clean stop did not end in time."""
        self.longest_stop = 0.0
        """The seconds that the longest clean stop took."""
        self.name_boot()

    def configure(self, values: dict[str, str]) -> None:
        """Have the next life start with these configurations, too."""
        self._values = {**self._values, **values}
        self.set_level(self.level)

    def set_level(self, name: str) -> None:
        """Have the next life send its requests at this level."""
        self.level = name
        self.configs = _configs({**self._values, LEVEL: name})

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def life(self) -> str:
        """The name of the present life."""
        return "" if self.process is None else f"{self.host}/{self.process.name}"

    def name_boot(self) -> None:
        """Let the machine have started: its boot has a new name, outside of what power takes."""
        self.boots += 1
        view = self.machine.disk.view("kernel")
        view.make_directory(BOOT_ID.rpartition("/")[0])
        # The kernel's files take no room on a disk.
        capacity, self.machine.disk.capacity = self.machine.disk.capacity, UNLIMITED
        view.replace(BOOT_ID, f"{self.host}-boot-{self.boots}\n".encode())
        put_secret(view)
        self.machine.disk.capacity = capacity

    def start(self) -> None:
        assert not self.alive
        self.ready = False
        self.wanted = True
        self.starts += 1
        self.process = self.machine.process(type(self).__name__)
        self.process.run(self._guarded(self.process))

    async def _guarded(self, process: Process) -> None:
        try:
            await self.serve(process)
        except (StartFailed, StoreRefused, StoreUnavailable, OSError) as error:
            self.refused.append(f"{type(error).__name__}: {error}")
            self.world.trace.event("start-failed", self.host, type(error).__name__)
            # Outside of the process, which ends now.
            self.world.network.soon(process.kill)
            return
        self.ready = True
        self.world.trace.event("ready", self.host)

    async def serve(self, process: Process) -> None:
        raise NotImplementedError

    def stopping(self) -> Coroutine[Any, Any, None] | None:
        """Return what stops the present life cleanly."""
        raise NotImplementedError

    async def stop(self) -> None:
        """SIGTERM: a clean stop; kill -9 if that takes too long."""
        process = self.process
        stopping = self.stopping() if self.ready else None
        if process is None or stopping is None:
            self.kill()
            return
        self.wanted = False
        began = self.world.loop.time()
        task = process.run(stopping)
        try:
            await self.world.until(lambda: task.done() or not process.alive, STOP_SECONDS)
            if process.alive and not task.cancelled() and task.exception() is None:
                self.stopped()
        except TimeoutError:
            self.slow_stops += 1
        finally:
            self.longest_stop = max(self.longest_stop, self.world.loop.time() - began)
            self.kill()

    def stopped(self) -> None:
        """A clean stop has gone through."""

    def kill(self) -> None:
        """kill -9."""
        self.wanted = False
        if self.process is not None and self.process.alive:
            self.process.kill()
        self.ended()

    def lose_power(self) -> None:
        self.wanted = False
        self.machine.lose_power()
        self.ended()
        self.name_boot()

    def ended(self) -> None:
        """The process is dead."""
        if self.ready:
            self.ended_at = self.world.loop.time()
        self.ready = False


class ControllerNode(Node):
    """A controller on the common store."""

    def __init__(
        self, world: World, host: str, node_id: int, tree: JournalTree, extra: dict[str, str]
    ) -> None:
        super().__init__(
            world,
            host,
            {
                "process.roles": "controller",
                "node.id": str(node_id),
                "listeners": f"CONTROLLER://{host}:{CONTROLLER_PORT}",
                "controller.listener.names": "CONTROLLER",
                "metadata.store": "memory:",
                **extra,
            },
        )
        self.tree = tree
        self.sessions: list[SimulatedStore] = []
        self.cut_off = False
        """Whether the store cannot be reached from here."""
        self.fate_of_a_write: Callable[[], str] = lambda: ""
        self.slow_store_s = 0.0
        """How much longer a write takes."""
        self.is_new = True
        """Whether an empty store is that of a new cluster: False after a loss of the store."""
        self.controller: LoneController | None = None

    async def serve(self, process: Process) -> None:
        rng = self.world.random(f"store/{self.host}/{self.starts}")
        store = SimulatedStore(self.tree, self, process, rng)
        secret = secret_of(process)
        self.controller = LoneController(
            self.configs, process.seams, store, secret, is_new=self.is_new
        )
        await self.controller.start()

    def stopping(self) -> Coroutine[Any, Any, None] | None:
        return None if self.controller is None else self.controller.stop()

    @property
    def active(self) -> bool:
        return self.alive and self.controller is not None and self.controller.active

    def ended(self) -> None:
        """Its sessions with the store last for a while: they were not closed."""
        super().ended()
        for session in list(self.sessions):
            self.world.loop.call_later(SESSION_SECONDS, session.expire)


class BrokerNode(Node):
    """A broker."""

    def __init__(
        self,
        world: World,
        host: str,
        node_id: int,
        controllers: list[tuple[str, int]],
        extra: dict[str, str],
    ) -> None:
        super().__init__(
            world,
            host,
            {
                "process.roles": "broker",
                "node.id": str(node_id),
                "listeners": f"PLAINTEXT://{host}:{PORT}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.bootstrap.servers": ",".join(
                    f"{name}:{port}" for name, port in controllers
                ),
                "log.dirs": LOGS,
                **extra,
            },
        )
        self.node_id = node_id
        self.running: BrokerProcess | None = None
        self.controllers = controllers
        self.has_appended = False
        """Whether something was appended since the last clean stop, which syncs everything."""

    async def serve(self, process: Process) -> None:
        self.running = BrokerProcess(
            self.configs, process.seams, self.controllers, secret=secret_of(process)
        )
        await self.running.start()

    def stopping(self) -> Coroutine[Any, Any, None] | None:
        return None if self.running is None else self.running.stop()

    def stopped(self) -> None:
        self.has_appended = False

    @property
    def is_as_it_was_stopped(self) -> bool:
        """Whether its disk is what the last clean stop has synced: no life has begun since."""
        marker = self.machine.disk.lookup(f"{LOGS}/{CLEAN_SHUTDOWN}")
        return marker is not None and not self.has_appended

    def wipe(self) -> None:
        """The disk is replaced by an empty one. The process must have ended."""
        self.machine.replace_disk()
        self.name_boot()


class Cluster:
    """All nodes, and the store between the controllers."""

    def __init__(self, world: World, controllers: int, brokers: int, extra: dict[str, str]) -> None:
        self.world = world
        self.tree = JournalTree(world)
        addresses = [(f"c{number + 1}", CONTROLLER_PORT) for number in range(controllers)]
        self.controllers = [
            ControllerNode(world, host, 101 + number, self.tree, extra)
            for number, (host, _) in enumerate(addresses)
        ]
        self.brokers = [
            BrokerNode(world, f"b{number + 1}", number + 1, addresses, extra)
            for number in range(brokers)
        ]

    @property
    def nodes(self) -> list[Node]:
        return [*self.controllers, *self.brokers]

    def broker(self, node_id: int) -> BrokerNode:
        return self.brokers[node_id - 1]

    @property
    def active(self) -> ControllerNode | None:
        """The active controller that runs, if there is one."""
        return next((node for node in self.controllers if node.active), None)

    def start(self) -> None:
        """Start everything, and begin to start again what could not start."""
        for node in self.nodes:
            node.start()
        self.world.loop.call_later(RESTART_SECONDS, self._supervise)

    def _supervise(self) -> None:
        for node in self.nodes:
            if node.wanted and not node.alive:
                node.ended()
                node.start()
        self.world.loop.call_later(RESTART_SECONDS, self._supervise)
