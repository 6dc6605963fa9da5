"""One simulated world: a loop, a network, machines with disks, and processes that live on them.

Owns lives and deaths. A ``Machine`` keeps its disk; a ``Process`` is one life of some code on a
machine, with its own tasks, connections, view of the disk, clock and randomness. Everything is
drawn from the seed of the world, each consumer from a stream of its own name, so that adding a
consumer does not change what the others draw.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.kernel.disk import UNLIMITED, DiskView, SimulatedDisk
from tests.simulation.kernel.faults import ProcessKilled
from tests.simulation.kernel.loop import CURRENT, MAX_STEPS, START_SECONDS, SimulatedLoop
from tests.simulation.kernel.network import Network, NetworkProfile
from tidelog.runtime.seams import Seams

COLLECTED_AFTER = 100_000
"""New objects between two collections of cycles: Python's 700 cost a run a sixth of its time."""

START_WALL_MS = 1_767_225_600_000
"""The time of day at which every run begins: 2026-01-01 00:00 UTC."""


class VirtualClock:
    """The product's ``Clock`` on the loop's time; ``offset_ms`` shifts the time of day."""

    def __init__(self, loop: SimulatedLoop, offset_ms: int = 0) -> None:
        self._loop = loop
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        passed = (self._loop.time() - START_SECONDS) * 1000
        return START_WALL_MS + int(passed) + self.offset_ms

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def monotonic_ns(self) -> int:
        return int(self._loop.time() * 1_000_000_000)


class Process:
    """One life of some code on a machine."""

    def __init__(self, machine: Machine, name: str, life: int) -> None:
        self.machine = machine
        self.host = machine.name
        self.name = f"{name}#{life}"
        self.alive = True
        self.held: list[Any] | None = None
        self.disk: DiskView = machine.disk.view(self.name)
        world = machine.world
        self.seams = Seams(
            clock=VirtualClock(world.loop),
            random=world.random(f"process/{self.name}@{machine.name}"),
            disk=self.disk,
        )
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, self)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of this process; a test may await it, and must not if the process dies."""
        return self.machine.world.loop.create_task(
            coroutine, name=self.name, context=self._context.copy()
        )

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a plain function inside this process."""
        return self._context.copy().run(function, *arguments)

    def pause(self) -> None:
        """SIGSTOP: nothing of it runs; what it has on the wire arrives, and what comes waits."""
        if self.alive and self.held is None:
            self.machine.world.trace.event("pause", self.name, self.host)
            self.held = []

    def resume(self) -> None:
        """SIGCONT: it goes on with all that came meanwhile, as if no time had passed."""
        held, self.held = self.held, None
        if held is not None:
            self.machine.world.trace.event("resume", self.name, self.host)
            self.machine.world.loop.resume(held)

    def kill(self) -> None:
        """kill -9: what it wrote stays, its connections are reset, nothing of it runs again."""
        self._end("kill", silent=False)

    def _end(self, how: str, *, silent: bool) -> None:
        if not self.alive:
            return
        self.alive = False
        self.held = None
        world = self.machine.world
        world.trace.event("end", self.name, how)
        self.machine.disk.kill(self.disk)
        self.machine.processes.remove(self)
        world.network.end_of_process(self, silent=silent)
        world.notice_deaths()


class Machine:
    """A host name, a disk, and the processes that live there now."""

    def __init__(self, world: World, name: str, capacity: int) -> None:
        self.world = world
        self.name = name
        self.processes: list[Process] = []
        self._lives: dict[str, int] = {}
        self._disks = 0
        self.observer: Callable[[str, str, int, bytes], None] | None = None
        self.disk = self._new_disk(capacity)

    def observe_disk(self, observer: Callable[[str, str, int, bytes], None]) -> None:
        """Script ``observer`` of every write and rename on this machine's disks from now on."""
        self.observer = self.disk.observer = observer

    def replace_disk(self) -> None:
        """Put an empty disk in: for a machine on which nothing runs."""
        assert not self.processes
        self.disk = self._new_disk(self.disk.capacity)

    def _new_disk(self, capacity: int) -> SimulatedDisk:
        self._disks += 1
        suffix = "" if self._disks == 1 else f"/{self._disks}"
        disk = SimulatedDisk(
            self.world.random(f"disk/{self.name}{suffix}"),
            self.world.trace,
            VirtualClock(self.world.loop).wall_ms,
            name=self.name,
            capacity=capacity,
        )
        disk.on_crash = self._crash
        disk.observer = self.observer
        return disk

    def process(self, name: str) -> Process:
        """Begin a new life of a process; start its code with ``Process.run``."""
        life = self._lives[name] = self._lives.get(name, 0) + 1
        process = Process(self, name, life)
        self.processes.append(process)
        self.world.trace.event("begin", process.name, self.name)
        return process

    def lose_power(self) -> None:
        """End all processes without a word to their peers; unsynced bytes may vanish or tear."""
        for process in list(self.processes):
            process._end("power", silent=True)
        self.disk.lose_power()

    def _crash(self, view: DiskView, kind: str) -> None:
        if kind == "power":
            self.lose_power()
        else:
            for process in [p for p in self.processes if p.disk is view]:
                process.kill()


class World:
    """Everything of one run. Use as a context manager: closing ends what still runs."""

    def __init__(
        self,
        seed: int,
        profile: NetworkProfile | None = None,
        *,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(self.random("loop"), max_steps=max_steps)
        self.trace = self.loop.trace
        self.network = Network(self.loop, self.random("network"), profile or NetworkProfile())
        self.machines: dict[str, Machine] = {}
        self._watchers: list[asyncio.Future[None]] = []
        self._thresholds = gc.get_threshold()

    def random(self, name: str) -> random.Random:
        """Return a stream of randomness of its own, fixed by the seed and the name."""
        return random.Random(f"{self.seed}/{name}")

    def machine(self, name: str, capacity: int = UNLIMITED) -> Machine:
        """Add a machine to the network."""
        machine = self.machines[name] = Machine(self, name, capacity)
        self.network.hosts.add(name)
        return machine

    def notice_deaths(self) -> None:
        """Wake all tasks that wait for the end of some process."""
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    async def dead(self, process: Process) -> None:
        """Wait until a process has ended."""
        while process.alive:
            future = self.loop.create_future()
            self._watchers.append(future)
            await future

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until a condition holds; TimeoutError after so many virtual seconds."""
        deadline = self.loop.time() + seconds
        while not condition():
            if self.loop.time() > deadline:
                raise TimeoutError(f"not within {seconds} virtual seconds")
            await asyncio.sleep(0.001)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end of ``main``; an error prints the seed and the last events."""
        try:
            return self.loop.run_until_complete(main)
        except (Exception, ProcessKilled) as error:
            print(
                "broken: no promise by name: the run itself failed\n"
                f"event: {type(error).__name__}: {error}\n"
                f"seed: {self.seed}; replay it with: make simulate SEED={self.seed}\n"
                f"digest: {self.digest()}\nlast events:\n{self.trace.tail()}",
                file=sys.stderr,
            )
            raise

    def digest(self) -> str:
        """Return the digest of everything that happened; the same seed gives the same."""
        return self.trace.digest()

    def close(self) -> None:
        self.loop.close()

    def __enter__(self) -> World:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(COLLECTED_AFTER, *self._thresholds[1:])
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
        gc.set_threshold(*self._thresholds)
