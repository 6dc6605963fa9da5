"""How a controller's work grows with the partitions: `python -m benchmarks.controller_scale`.

A real controller process on an SQLite store, and ten brokers in this process that keep no logs
(`fake_brokers.py`): real sessions and control channels over loopback, every request decoded. Ten
thousand partitions with three replicas, then twenty and forty. The seconds include the work of the
ten brokers on the same two cores; the CPU seconds are the controller's alone. Followers catch up at
once: leaders propose the ISR as soon as a broker has received all state.

Then a plan that moves a replica of each partition, in one request of a client.

Writes benchmarks/CONTROLLER.md. Options: --partitions, --only-plan, --profile FOLDER (cProfile of
each phase's controller).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster import ControllerNode
from tests.support.processes import tree_cpu_s, tree_resident_bytes

from benchmarks.cores import machine
from benchmarks.ending import end_on_sigterm
from benchmarks.fake_brokers import FakeBroker
from benchmarks.measuring import number
from benchmarks.pauses import Pauses
from tidelog.client.connecting.connection import connect
from tidelog.model.registration import FormerRegistration
from tidelog.protocol import messages
from tidelog.runtime import loop as runtime_loop

HERE = Path(__file__).parent
BROKERS = range(1, 11)
REPLICAS = 3
PARTITIONS_PER_TOPIC = 100
TOPICS_PER_REQUEST = 10
DEADLINE_S = 300
SESSION_TIMEOUT_MS = 60_000
"""Ten times the default: ten brokers in one process, on two cores, may be late with a heartbeat
that ten machines would send in time. How long the controller itself is silent is measured."""
PHASES = {
    "create": "create the topics",
    "start": "start: load the store, send all state to ten brokers",
    "failure": "a broker killed: all its partitions have new leaders at the brokers",
    "return": "it comes back: receives all state, in all its ISRs again",
    "rolling": "rolling restart of all ten, ISRs full after each",
    "plan": "a plan for all partitions is accepted: one request that moves a replica of each",
    "commanded": "after that: all targets have their commands",
    "move": "after that: all targets join, the moves complete, the former replicas are stopped",
}

PLANNED = {
    "plan": "until the plan is accepted",
    "commanded": "until all targets have their commands",
    "move": "until its moves are done",
}


class Profiled(ControllerNode):
    """A controller that writes its profile where it ends."""

    profile: Path | None = None

    def command(self) -> list[str]:
        plain = super().command()
        if self.profile is None:
            return plain
        return [plain[0], "-m", "cProfile", "-o", str(self.profile), *plain[1:]]


@dataclass(frozen=True)
class Taken:
    """What a phase took: seconds, CPU seconds of the controller, its longest silence in seconds."""

    seconds: float
    cpu_s: float
    silent_s: float


class Scene:
    """One controller and its ten brokers; `phases` holds what each phase took."""

    def __init__(
        self, folder: Path, partitions: int, profiles: Path | None, only_plan: bool = False
    ) -> None:
        self.partitions = partitions
        self.phases: dict[str, Taken] = {}
        self.counts: dict[str, int] = {}
        """Commits of the store, and messages to brokers, of each phase of the plan."""
        self.resident_mb = 0.0
        self.load = 0.0
        """The machine's load average when this size was done: its last minute."""
        self._own_silence_s = 0.0
        self._profiles = profiles
        self._only_plan = only_plan
        self._changed = asyncio.Event()
        self._node = Profiled(folder, {"broker.session.timeout.ms": SESSION_TIMEOUT_MS})
        self._brokers = {
            node_id: FakeBroker(node_id, self._node.controller_port, self._changed)
            for node_id in BROKERS
        }

    async def run(self) -> None:
        """All phases, one after another."""
        noticing = asyncio.create_task(self._notice_own_silence())
        try:
            self._start("create")
            await self._all(
                broker.begin(FormerRegistration.CRASHED) for broker in self._brokers.values()
            )
            await self._until(lambda: all(x.complete_in == 1 for x in self._brokers.values()))
            await self._phase("create", self._create)
            self._pauses.close()
            # The controller first: it must not suspect the brokers.
            await asyncio.to_thread(self._node.stop)
            await self._all(broker.end_session() for broker in self._brokers.values())
            await self._phase("start", self._start_again)
            self._check()
            if not self._only_plan:
                await self._phase("failure", self._failure)
                await self._phase("return", self._return)
                await self._phase("rolling", self._rolling)
                self._check()
            await self._planned()
            self._check()
            self.resident_mb = tree_resident_bytes(self._node.program.pid) / 1e6
            self.load = os.getloadavg()[0]
        finally:
            noticing.cancel()
            self._pauses.close()
            await self._all(broker.end() for broker in self._brokers.values())
            if self._node.program.exit_status() is None:
                self._node.stop()

    def _start(self, name: str) -> None:
        if self._profiles is not None:
            self._node.profile = self._profiles / f"{name}-{self.partitions}.prof"
        self._node.start()
        self._pauses = Pauses(self._node.controller_port)

    def _cpu_s(self) -> float:
        return tree_cpu_s(self._node.program.pid)

    async def _phase(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        # The start begins with no process at all.
        before = 0.0
        if name != "start":
            before = self._cpu_s()
            self._pauses.longest_s()
        self._own_silence_s = 0.0
        begun = time.perf_counter()
        await work()
        took_s = time.perf_counter() - begun
        self.phases[name] = Taken(took_s, self._cpu_s() - before, self._pauses.longest_s())
        taken = self.phases[name]
        print(
            f"{self.partitions} partitions, {name}: {took_s:.2f} s, {taken.cpu_s:.2f} s CPU, "
            f"controller silent {taken.silent_s:.2f} s, brokers {self._own_silence_s:.2f} s",
            file=sys.stderr,
            flush=True,
        )

    async def _notice_own_silence(self) -> None:
        # How long this process serves none of its brokers: it is not the controller's doing.
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.01)
            self._own_silence_s = max(self._own_silence_s, time.perf_counter() - begun - 0.01)

    async def _start_again(self) -> None:
        self._start("later")
        await self._all(broker.begin(FormerRegistration.SAME) for broker in self._brokers.values())
        await self._until(lambda: all(x.complete_in == 2 for x in self._brokers.values()))

    async def _all(self, work: Iterable[Awaitable[None]]) -> None:
        await asyncio.gather(*work)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def _create(self) -> None:
        request = messages.CreateTopicsRequest
        connection = await connect("127.0.0.1", self._node.controller_port)
        names = [f"topic-{x}" for x in range(self.partitions // PARTITIONS_PER_TOPIC)]
        for start in range(0, len(names), TOPICS_PER_REQUEST):
            topics = [
                request.CreatableTopic(name, PARTITIONS_PER_TOPIC, REPLICAS)
                for name in names[start : start + TOPICS_PER_REQUEST]
            ]
            answer = await connection.send(request(topics, DEADLINE_S * 1000), None, 300_000)
            assert all(topic.error_code == 0 for topic in answer.topics), answer.topics[0]
        connection.close()

    async def _failure(self) -> None:
        killed = self._brokers[BROKERS[0]]
        await killed.end()
        await self._until(lambda: self._none_led_by(killed))

    def _none_led_by(self, gone: FakeBroker) -> bool:
        return all(
            broker.seen.led_by[gone.node_id] == 0
            for broker in self._brokers.values()
            if broker is not gone
        )

    async def _return(self) -> None:
        await self._come_back(self._brokers[BROKERS[0]], FormerRegistration.CRASHED)

    async def _come_back(self, broker: FakeBroker, last_stop: FormerRegistration) -> None:
        await broker.begin(last_stop)
        await self._until(lambda: broker.complete_in > 0)
        fit = set(self._brokers)
        while any(x.seen.thin for x in self._brokers.values()):
            await self._all(leader.propose(fit) for leader in self._brokers.values())
            self._changed.clear()
            if any(x.seen.thin for x in self._brokers.values()):
                async with asyncio.timeout(DEADLINE_S):
                    await self._changed.wait()

    async def _rolling(self) -> None:
        for broker in self._brokers.values():
            await broker.leave()
            await self._come_back(broker, FormerRegistration.CLEAN)

    async def _planned(self) -> None:
        """The phases of a plan."""
        work = {"plan": self._plan, "commanded": self._commanded, "move": self._move}
        for name in PLANNED:
            before = await self._counted()
            await self._phase(name, work[name])
            commits, sent = await self._counted()
            self.counts[f"commits: {name}"] = commits - before[0]
            self.counts[f"messages: {name}"] = sent - before[1]

    async def _counted(self) -> tuple[int, int]:
        """The revision of the store, which each commit raises, and the messages to brokers."""
        connection = await connect("127.0.0.1", self._node.controller_port)
        answer = await connection.send(messages.DescribeConditionRequest(), None, 60_000)
        connection.close()
        sent = sum(broker.messages for broker in self._brokers.values())
        return json.loads(answer.condition)["revision"], sent

    async def _plan(self) -> None:
        request = messages.AlterPartitionReassignmentsRequest
        topics: dict[str, list[Any]] = {}
        for (name, index), state in self._brokers[BROKERS[0]].seen.partitions.items():
            targets = list(state.replicas)
            others = [x for x in BROKERS if x not in targets]
            targets[1] = others[index % len(others)]
            topics.setdefault(name, []).append(request.ReassignablePartition(index, targets))
        asked = request(
            timeout_ms=DEADLINE_S * 1000,
            topics=[request.ReassignableTopic(name, rows) for name, rows in topics.items()],
        )
        connection = await connect("127.0.0.1", self._node.controller_port)
        answer = await connection.send(asked, None, DEADLINE_S * 1000)
        connection.close()
        errors = Counter(row.error_code for each in answer.responses for row in each.partitions)
        assert errors == {0: self.partitions}, (answer.error_message, errors)

    def _held(self) -> int:
        return sum(len(broker.held) for broker in self._brokers.values())

    async def _commanded(self) -> None:
        await self._until(lambda: self._held() == self.partitions * (REPLICAS + 1))

    async def _move(self) -> None:
        fit = set(self._brokers)
        while self._held() > self.partitions * REPLICAS or any(
            broker.seen.thin for broker in self._brokers.values()
        ):
            self._changed.clear()
            await self._all(leader.propose(fit) for leader in self._brokers.values())
            async with asyncio.timeout(DEADLINE_S):
                await self._changed.wait()

    def _check(self) -> None:
        for broker in self._brokers.values():
            assert len(broker.seen.partitions) == self.partitions, len(broker.seen.partitions)
            assert broker.seen.led_by[-1] == 0 and broker.seen.thin == 0
        assert self._held() == self.partitions * REPLICAS, self._held()


def exponent(sizes: list[int], values: list[float]) -> float:
    """The growth: the slope of log(value) over log(size); 1 is linear, 2 the square."""
    x, y = [math.log(size) for size in sizes], [math.log(max(value, 0.01)) for value in values]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - middle_x) ** 2 for a in x)


def report(scenes: list[Scene]) -> str:
    """The page."""
    sizes = [scene.partitions for scene in scenes]
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    heads = " | ".join(f"{size:,}" for size in sizes)
    lines = [
        "# How the controller grows\n",
        "Printed by `python -m benchmarks.controller_scale`: a real controller process on SQLite,",
        f"ten brokers without logs, topics of {PARTITIONS_PER_TOPIC} partitions with "
        f"{REPLICAS} replicas. In a",
        "cell: seconds, which hold what the ten brokers do on the same cores; CPU seconds of the",
        "controller alone; the longest time it left a small request of another process unanswered",
        "(a broker leaves a controller that is silent for 3 s; these wait longer, and have longer",
        "sessions, for they share a process). Growth is the exponent over the sizes: 1 is linear,",
        "2 the square. It says something only where the load averages are alike: sizes come one",
        "after another, and on a busier machine the same work takes more CPU seconds, too.\n",
        f"{when}. {machine()}.\n",
        f"| partitions | {heads} | growth of the seconds | of the CPU |",
        f"|---|{'---|' * len(sizes)}---|---|",
    ]
    for name, title in PHASES.items():
        if name not in scenes[0].phases:
            continue
        found = [scene.phases[name] for scene in scenes]
        cells = " | ".join(
            f"{number(x.seconds)} s, {number(x.cpu_s)} s CPU, silent {number(x.silent_s)} s"
            for x in found
        )
        growth = ["-", "-"]
        if len(sizes) > 1:
            seconds, cpu_s = [x.seconds for x in found], [x.cpu_s for x in found]
            growth = [f"{exponent(sizes, values):.2f}" for values in (seconds, cpu_s)]
        lines.append(f"| {title} | {cells} | {growth[0]} | {growth[1]} |")
    for name in scenes[0].counts:
        kind, phase = name.split(": ")
        numbers = [scene.counts[name] for scene in scenes]
        cells = " | ".join(f"{each:,}" for each in numbers)
        grown = f"{exponent(sizes, list(map(float, numbers))):.2f}" if len(sizes) > 1 else "-"
        whose = "of the store" if kind == "commits" else "to the ten brokers"
        lines.append(f"| {kind} {whose}: {PLANNED[phase]} | {cells} | {grown} | |")
    memory = [scene.resident_mb for scene in scenes]
    cells = " | ".join(f"{number(each)} MB" for each in memory)
    grown = f"{exponent(sizes, memory):.2f}" if len(sizes) > 1 else "-"
    lines.append(f"| resident memory of the controller at the end | {cells} | {grown} | |")
    loads = " | ".join(f"{scene.load:.1f}" for scene in scenes)
    lines.append(f"| load average of the machine when that size was done | {loads} | | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the command line, measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controller_scale")
    parser.add_argument("--partitions", default="10000,20000,40000", help="the sizes")
    parser.add_argument("--only-plan", action="store_true", help="no failure and no restarts")
    parser.add_argument("--profile", type=Path, help="a folder for cProfile's files")
    parser.add_argument("--out", type=Path, default=HERE / "CONTROLLER.md")
    options = parser.parse_args()
    end_on_sigterm()
    scenes = []
    for size in map(int, options.partitions.split(",")):
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:

            async def one(folder: str = folder, size: int = size) -> Scene:
                scene = Scene(Path(folder), size, options.profile, options.only_plan)
                await scene.run()
                return scene

            scenes.append(runtime_loop.run(one()))
    page = report(scenes)
    print(page)
    options.out.write_text(page)


if __name__ == "__main__":
    main()
