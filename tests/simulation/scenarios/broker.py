"""The real broker and controller with simulated clients, on a bad network and a worse disk.

Owns the course of one run: a server that is killed, loses power, fills its disk, gets I/O errors
and is cut off, while idempotent producers, one-shot producers and readers go on. Afterwards
everything heals, and the histories are checked.

A seed draws the durability: with `sync` power may go, with `replicated` only the process (a lone
replica promises only that). The metadata store is in memory and outlives its process.
"""

from __future__ import annotations

import asyncio
import errno
import random
import traceback
from collections.abc import Awaitable, Callable

from tests.simulation.checkers import violations
from tests.simulation.clients import (
    SimulatedProducer,
    SimulatedReader,
    Target,
    create_topic,
    delete_topic,
    read_whole,
    send_once,
)
from tests.simulation.history import History
from tests.simulation.kernel import (
    UNLIMITED,
    Crash,
    DiskOperation,
    Fail,
    Machine,
    NetworkProfile,
    Process,
    ProcessKilled,
    World,
)
from tests.simulation.kernel.loop import Failure
from tests.simulation.scenarios.result import Result
from tests.simulation.secret import put_secret, secret_of
from tests.support.lone_controller import LoneController
from tidelog.broker.process import BOOT_ID, BrokerProcess
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.errors import ErrorCode

HOST = "node1"
PORT = 9092
TEMPORARY = "temporary"
LOGS = "/data/logs"
CONTROL_NOTES = "controller-seen"
"""What a broker notes of its controllers: no log; each note replaces the file."""
SETTLE_SECONDS = 120.0
"""Virtual time in which everything must have healed after the last fault (promise 24)."""


def configs_for(durability: str) -> ServerConfigs:
    """Return the server's configuration: short intervals, so that little time shows much."""
    found = from_mapping(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{HOST}:{PORT},CONTROLLER://{HOST}:9093",
            "log.dirs": LOGS,
            "log.durability": durability,
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "log.retention.check.interval.ms": "3000",
            "log.cleaner.backoff.ms": "1000",
            "log.flush.offset.checkpoint.interval.ms": "2000",
            "replica.high.watermark.checkpoint.interval.ms": "2000",
        }
    )
    assert isinstance(found, ServerConfigs), found
    return found


class Server:
    """One server that is started again and again on its machine."""

    def __init__(self, run: BrokerRun) -> None:
        self.run = run
        self.tree = MemoryTree()
        self.machine: Machine = run.world.machine(HOST)
        self.process: Process | None = None
        self.broker: BrokerProcess | None = None
        self.controller: LoneController | None = None
        self.store: MemoryStore | None = None
        self.ready = False
        self.boots = 0
        self.refused: list[str] = []
        """Why a start failed that should not have."""
        self.name_boot()

    def name_boot(self) -> None:
        """Let the machine have started: its boot has a new name, outside of what power takes."""
        self.boots += 1
        view = self.machine.disk.view("kernel")
        view.make_directory(BOOT_ID.rpartition("/")[0])
        view.replace(BOOT_ID, f"boot-{self.boots}\n".encode())
        put_secret(view)

    def start(self) -> None:
        assert self.process is None or not self.process.alive
        self.ready = False
        self.process = self.machine.process("server")
        self.process.run(self._serve(self.process))

    async def _serve(self, process: Process) -> None:
        configs = self.run.configs
        self.store = MemoryStore(self.tree)
        try:
            secret = secret_of(process)
            self.controller = LoneController(configs, process.seams, self.store, secret)
            await self.controller.start()
            controllers = [(HOST, self.controller.listener_port)]
            self.broker = BrokerProcess(configs, process.seams, controllers, secret=secret)
            await self.broker.start()
        except Exception as error:
            self.refused.append(f"{type(error).__name__}: {error}")
            self.run.world.trace.event("start-failed", type(error).__name__)
            self.run.world.loop.call_soon(process.kill)
            return
        self.ready = True
        self.run.world.trace.event("ready", process.name)

    def forget(self) -> None:
        """The process is dead: its session with the store ends."""
        self.ready = False
        if self.store is not None and self.store._session is not None:
            self.tree.end_session(self.store._session)

    def kill(self) -> None:
        if self.process is not None and self.process.alive:
            self.process.kill()
        self.forget()

    def lose_power(self) -> None:
        self.machine.lose_power()
        self.forget()
        self.name_boot()

    async def stop(self) -> None:
        """SIGTERM: a clean stop."""
        process = self.process
        if process is None or not process.alive or not self.ready:
            self.kill()
            return
        task = process.run(self._stop(process))
        await self.run.world.until(lambda: task.done() or not process.alive, 60)
        self.kill()

    async def _stop(self, process: Process) -> None:
        assert self.broker is not None and self.controller is not None
        await self.broker.stop()
        await self.controller.stop()
        self.run.world.trace.event("stopped", process.name)


class BrokerRun:
    """One run of the scenario."""

    temporary_s = 1.0
    """How long the topic that comes and goes may be left alone before it is deleted."""

    def __init__(
        self, seed: int, faults: int | None = None, *, durability: str | None = None
    ) -> None:
        self.seed = seed
        self.world = World(seed, NetworkProfile(tearing=0.2), max_steps=3_000_000)
        self.rng: random.Random = self.world.random("chaos")
        self.durability = durability or self.rng.choice(("replicated", "sync"))
        self.configs = configs_for(self.durability)
        self.history = History()
        self.found: list[str] = []
        slow = self.rng.choice((0.0004, 0.01, 0.1))
        executor = self.world.random("executor")
        self.world.loop.executor_delay = lambda: executor.uniform(10e-6, slow)
        self.faults = self.rng.randint(1, 5) if faults is None else faults
        self.counts = {"faults": 0, "acked": 0, "reads": 0, "starts": 0, "forgotten": 0}
        self.counts["deletions"] = 0
        self.server = Server(self)
        self.targets = [
            Target(HOST, PORT, "plain", 0),
            Target(HOST, PORT, "plain", 1),
            Target(HOST, PORT, "compact", 0),
        ]
        self.compacted = {"compact-0"}
        self.producers: list[SimulatedProducer] = []
        self.readers: list[SimulatedReader] = []
        self.reading: list[asyncio.Task[None]] = []
        self.churning: asyncio.Task[None]
        self.failing: tuple[int, str] | None = None
        """When the disk began to fail in the present life, and that life."""

    def run(self) -> Result:
        with self.world as world:
            try:
                world.loop.run_until_complete(self._main())
            except (Exception, ProcessKilled):
                self.found.append(f"the run ended with an error:\n{traceback.format_exc()}")
            self.found += [f"unhandled: {line}" for line in world.loop.unhandled]
            self.counts["acked"] = sum(producer.acked for producer in self.producers)
            self.counts["reads"] = len(self.history.reads)
            return Result(
                "broker",
                self.seed,
                world.digest(),
                self.found + violations(self.history),
                world.trace.tail(),
                self.counts,
            )

    async def _main(self) -> None:
        self._start()
        await self._until_ready()
        await self._create_topics()
        tasks = self._start_clients()
        for _ in range(self.faults):
            await asyncio.sleep(self.rng.uniform(0.05, 4.0))
            await self._fault()
            self.counts["faults"] += 1
        await self._heal()
        await self._until(lambda: all(task.done() for task in tasks), "producers are answered")
        for task in tasks:
            task.result()
        for reading in (*self.reading, self.churning):
            if reading.done():
                reading.result()
            reading.cancel()
        for producer in self.producers:
            producer.give_up()
            self.counts["forgotten"] += producer.restarts
        await self._final()

    def _start(self) -> None:
        self.counts["starts"] += 1
        self.failing = None
        self.server.start()

    async def _until_ready(self) -> None:
        await self._until(lambda: self.server.ready, "the server is ready")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            await self.world.until(condition, SETTLE_SECONDS)
        except TimeoutError:
            refused = f"; refused: {self.server.refused[-1:]}" if self.server.refused else ""
            raise AssertionError(f"not within {SETTLE_SECONDS} s: {what}{refused}") from None

    async def _create_topics(self) -> None:
        rng = self.rng
        plain = {
            "segment.bytes": str(rng.choice((3_000, 20_000))),
            "retention.bytes": str(rng.choice((-1, 20_000))),
            "index.interval.bytes": "300",
        }
        compact = {
            "cleanup.policy": "compact",
            "segment.bytes": "3000",
            "min.cleanable.dirty.ratio": "0.01",
            "file.delete.delay.ms": "1000",
        }
        await create_topic(HOST, PORT, "plain", 2, plain)
        await create_topic(HOST, PORT, "compact", 1, compact)

    def _start_clients(self) -> list[asyncio.Task[None]]:
        tasks = []
        for target in self.targets:
            for number in range(self.rng.randint(1, 2)):
                producer = SimulatedProducer(
                    self.history,
                    self.world.random(f"producer/{target.name}/{number}"),
                    target,
                    f"p{number}",
                    keys=5,
                    codecs=(0, 0, 1, 4),
                )
                self.producers.append(producer)
                tasks.append(asyncio.create_task(producer.run(self.rng.randint(20, 60), 0.3)))
            reader = SimulatedReader(
                self.history, self.world.random(f"reader/{target.name}"), target, "r"
            )
            self.readers.append(reader)
            self.reading.append(asyncio.create_task(reader.run()))
        self.churning = asyncio.create_task(self._churn())
        return [*tasks, asyncio.create_task(self._send_odd_ones())]

    async def _churn(self) -> None:
        """Create a topic, write to it, delete it, again and again: directories come and go."""
        rng = self.world.random("churn")
        target = Target(HOST, PORT, TEMPORARY, 0)
        while True:
            await create_topic(HOST, PORT, target.topic, 1, {"segment.bytes": "1000"})
            for number in range(rng.randint(0, 10)):
                await send_once(History(), target, "t", number, size=200)
            await asyncio.sleep(rng.uniform(0, self.temporary_s))
            await self._delete_temporary()
            await asyncio.sleep(rng.uniform(0, 1))

    async def _delete_temporary(self) -> None:
        await delete_topic(HOST, PORT, TEMPORARY)
        self.counts["deletions"] += 1

    async def _send_odd_ones(self) -> None:
        """One-shot writes, some of them with a wrong CRC."""
        rng = self.world.random("odd")
        for number in range(40):
            await asyncio.sleep(rng.uniform(0, 0.5))
            target = rng.choice(self.targets[:2])
            await send_once(
                self.history, target, "odd", number, corrupt=rng.random() < 0.5, size=20
            )

    # --- faults --------------------------------------------------------------------------------

    async def _fault(self) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._crash_in_an_operation,
            self._stop_cleanly,
            self._cut,
            self._reset,
            self._fill_the_disk,
            self._slow_executor,
        ]
        if self.durability == "sync":
            faults += [self._lose_power, self._lose_power, self._fail_a_sync]
        fault = self.rng.choice(faults)
        self.world.trace.event("fault", fault.__name__)
        await fault()

    async def _again(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.01, 2.0))
        self._start()
        if self.rng.random() < 0.7:
            await self._until_ready()

    async def _kill(self) -> None:
        self.server.kill()
        await self._again()

    async def _lose_power(self) -> None:
        self.server.lose_power()
        await self._again()

    async def _stop_cleanly(self) -> None:
        await self.server.stop()
        await self._again()

    async def _crash_in_an_operation(self) -> None:
        disk = self.server.machine.disk
        at = disk.operations + self.rng.randint(1, 150)
        kind = self.rng.choice(("kill", "power")) if self.durability == "sync" else "kill"
        part = self.rng.random()

        def plan(operation: DiskOperation) -> Crash | None:
            return Crash(kind, part) if operation.number >= at else None

        disk.plan = plan
        process = self.server.process
        assert process is not None
        try:
            await self.world.until(lambda: not process.alive, 30)
        except TimeoutError:
            process.kill()
        disk.plan = None
        self.server.forget()
        if kind == "power":
            self.server.name_boot()
        await self._again()

    async def _cut(self) -> None:
        one_way = self.rng.random() < 0.5
        ends = self.rng.choice((("outside", HOST), (HOST, "outside")))
        self.world.network.cut(*ends, one_way=one_way)
        await asyncio.sleep(self.rng.uniform(0.1, 15))
        self.world.network.heal()

    async def _reset(self) -> None:
        self.world.network.reset_connections("outside", share=self.rng.choice((0.3, 1.0)))

    async def _fill_the_disk(self) -> None:
        disk = self.server.machine.disk
        disk.capacity = disk.used() + self.rng.randint(0, 10_000)
        self.history.disk_space("full")
        for reader in self.readers:
            reader.errors.clear()
        await asyncio.sleep(self.rng.uniform(0.5, 10))
        if any(ErrorCode.KAFKA_STORAGE_ERROR in reader.errors for reader in self.readers):
            self.history.disk_space("read failed")
        disk.capacity = UNLIMITED
        self.history.disk_space("room")

    async def _slow_executor(self) -> None:
        rng = self.world.random(f"slow/{self.history.now}")
        usual = self.world.loop.executor_delay
        self.world.loop.executor_delay = lambda: rng.uniform(0.001, 0.3)
        await asyncio.sleep(self.rng.uniform(1, 5))
        self.world.loop.executor_delay = usual

    async def _fail_a_sync(self) -> None:
        """EIO of an fsync or a write; then, as the page cache lies, the power goes."""
        disk = self.server.machine.disk
        kind = self.rng.choice(("sync", "write"))
        ending = self.rng.choice((".log", ".log", ""))
        process = self.server.process
        assert process is not None
        life = process.name

        failures: list[Failure] = []
        loop = self.world.loop

        def plan(operation: DiskOperation) -> Fail | None:
            if not operation.path.startswith(LOGS):
                return None
            if self.failing is not None:
                late = not loop.is_in_flight(failures[0])
                if late and operation.kind == "sync" and CONTROL_NOTES not in operation.path:
                    self.history.directory(LOGS, life, f"sync of {operation.path}")
                return None
            if operation.kind != kind or not operation.path.endswith(ending):
                return None
            self.failing = (self.history.now, life)
            failures.append(loop.failure())
            self.history.directory(LOGS, life, f"{kind} failed")
            return Fail(errno.EIO, 0.5)

        disk.plan = plan
        await asyncio.sleep(self.rng.uniform(1, 6))
        disk.plan = None
        self._look_for_acks_after_the_failure()
        self.server.lose_power()
        await self._again()

    def _look_for_acks_after_the_failure(self) -> None:
        if self.failing is None:
            return
        since, life = self.failing
        for write in self.history.writes:
            if write.sent_at > since and write.offset >= 0:
                self.history.directory(LOGS, life, "acked")

    # --- the end -------------------------------------------------------------------------------

    async def _heal(self) -> None:
        self.world.trace.event("healing")
        self.world.network.heal()
        self.server.machine.disk.plan = None
        self.server.machine.disk.capacity = UNLIMITED
        process = self.server.process
        if process is None or not process.alive:
            self.server.forget()
            self._start()
        await self._until_ready()

    async def _final(self) -> None:
        assert self.server.broker is not None
        for partition in self.server.broker.broker.partitions.all():
            if partition.log.damaged:
                self.found.append(f"{partition.key} is damaged: {partition.log.damaged}")
        for reader in self.readers:
            if reader.above_watermark:
                self.found.append(f"served above the high watermark: {reader.above_watermark[:5]}")
        for target in self.targets:
            self.history.finals.append(
                await read_whole(
                    target, compacted=target.name in self.compacted, seconds=SETTLE_SECONDS
                )
            )


def run_broker(seed: int) -> Result:
    """Run the broker scenario once."""
    return BrokerRun(seed).run()
