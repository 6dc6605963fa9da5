"""Three machines of eight workers, in virtual time: a machine freezes, and a machine dies.

Decisions 0112, 0121 and 0131. The workers of a machine share its ``broker.rack`` and its host.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.cluster.nodes import PORT
from tests.simulation.cluster.scripted_run import Script, ScriptedRun
from tidelog.model.topics import TopicPartition

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.long(40)]

MACHINES = 3
WORKERS = 8
SEEDS = 3
PARTITIONS = 24
SUSPECTED_WITHIN_S = 2.0 + 0.1 + 0.4
"""``broker.silence.suspect.ms``, the time that the controller listens, and the wires."""

FIRST_PORT = 9100


def machine_of(broker: int) -> int:
    return (broker - 1) // WORKERS + 1


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Machines(ScriptedRun):
    """A scripted run on three machines of eight workers; the controller has its own."""

    def __init__(self, seed: int, script: Script) -> None:
        configs = {"min.insync.replicas": "1", "min.insync.machines": "2"}
        super().__init__(seed, script, "replicated", configs, brokers=MACHINES * WORKERS)
        for node in self.cluster.brokers:
            host, port = f"m{machine_of(node.node_id)}", FIRST_PORT + node.node_id
            self.world.network.shared[host, port] = (node.host, PORT)
            node.configure(
                {"broker.rack": f"a/{host}", "advertised.listeners": f"PLAINTEXT://{host}:{port}"}
            )

    def workers(self, machine: int) -> set[int]:
        return {
            node.node_id for node in self.cluster.brokers if machine_of(node.node_id) == machine
        }

    @property
    def suspected(self) -> set[int]:
        active = self.cluster.active
        assert active is not None and active.controller is not None
        return set(active.controller.cluster.suspected)

    @property
    def led_by(self) -> set[int]:
        """The brokers that lead a partition; -1 stands for none."""
        active = self.cluster.active
        assert active is not None and active.controller is not None
        return {state.leader for state in active.controller.cluster.states.values()}

    async def create_many(self) -> None:
        """Make a topic with partitions on all workers: each partition is on all machines."""
        await self.admin.create("many", PARTITIONS, 3, {"min.insync.machines": "2"})
        await self.until(lambda: len(self.states.topics["many"].partitions) == PARTITIONS, "many")
        for topic in ("t", "many"):
            for index, replicas in self.states.topics[topic].partitions.items():
                spread = sorted(machine_of(broker) for broker in replicas)
                assert spread == [1, 2, 3], f"{TopicPartition(topic, index)}: {replicas}"

    async def at_the_end(self, acked: int) -> None:
        assert len(await self.read_at_the_end(self.states.topics["t"].partitions[0])) >= acked


def run_seeds(script: Script) -> None:
    print(f"{SEEDS} seeds of {MACHINES} machines with {WORKERS} workers each")
    for seed in range(SEEDS):
        result = Machines(seed, script).run()
        assert not result.violations, f"seed {seed}: {result.report()}"


async def frozen_machine(run: ScriptedRun) -> None:
    assert isinstance(run, Machines)
    await run.create_many()
    await run.write(5)
    frozen = run.workers(machine_of(run.now.leader))
    processes = [run.cluster.broker(broker).process for broker in sorted(frozen)]
    began_s = now_s()
    # Writes look for the new leader at frozen brokers, too: these may be dead before they go on.
    run.faults.unquiet_until = began_s + 60
    for process in processes:
        assert process is not None
        process.pause()
    seen: list[set[int]] = []
    while run.suspected != frozen:
        assert now_s() - began_s < SUSPECTED_WITHIN_S, f"suspected: {seen}"
        seen.append(run.suspected)
        await asyncio.sleep(0.01)
    # One suspicion for eight brokers: no replica left an ISR in favour of one beside it.
    assert all(suspected in (set(), frozen) for suspected in seen), seen
    await run.until(lambda: not run.led_by & {*frozen, -1}, "the other machines lead")
    assert now_s() - began_s < SUSPECTED_WITHIN_S + 0.5
    await run.write(5)
    for process in processes:
        assert process is not None
        process.resume()
    await run.until(lambda: not run.suspected, "the machine is back")
    await run.write(5)
    await run.at_the_end(15)


def test_a_frozen_machine_of_eight_workers_is_one_suspicion() -> None:
    run_seeds(frozen_machine)


async def dead_machine(run: ScriptedRun) -> None:
    assert isinstance(run, Machines)
    await run.create_many()
    await run.write(5)
    dead = run.workers(machine_of(run.now.leader))
    for broker in sorted(dead):
        run.cluster.broker(broker).kill()
    await run.until(lambda: not run.led_by & {*dead, -1}, "the other machines lead")
    await run.write(5)
    # Without a second one acks=all is refused, although one replica would do.
    second = run.workers(machine_of(run.now.leader))
    (last,) = {machine_of(broker) for broker in run.now.isr} - {machine_of(run.now.leader)}
    for broker in sorted(run.workers(last)):
        run.cluster.broker(broker).kill()
    await run.until(lambda: set(run.now.isr) <= second, "one machine is in sync")
    await run.refused()
    for broker in sorted(dead | run.workers(last)):
        run.cluster.broker(broker).start()
    await run.write(5)
    await run.at_the_end(15)


def test_a_dead_machine_of_eight_workers_takes_nothing_with_it() -> None:
    run_seeds(dead_machine)
