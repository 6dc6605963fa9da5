"""A target of a move that dies in every single disk operation while it copies, and starts again.

The process or the power goes one disk operation later each time. The next life finds a sound log,
goes on from its end, and the copy ends with the bytes of its leader (KIP-455).
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from tests.simulation.copying_brokers import CopyingBroker, append, state_of
from tests.simulation.kernel import Crash, DiskOperation, Plan, ProcessKilled, World
from tidelog.broker.metadata.configurations import EntityType
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.work import finish
from tidelog.records.batch import Rejected

pytestmark = [pytest.mark.usefixtures("quiet")]

SOURCE, TARGET = 1, 11
BYTES = 60_000
CONFIGS = {"segment.bytes": "16000", "file.delete.delay.ms": "0"}
SECONDS = 60


def at_change(number: int, crash: Crash) -> Plan:
    changes = itertools.count(1)

    def plan(operation: DiskOperation) -> Crash | None:
        return crash if operation.kind != "read" and next(changes) == number else None

    return plan


class Move:
    """A partition that is copied from one machine to another."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine = world.machine("target")
        self.source = CopyingBroker(world.machine("source"), SOURCE)

    async def begin(self, broker: CopyingBroker) -> None:
        await broker.process.run(broker.start())
        broker.session = SimpleNamespace(broker_epoch=7)
        broker.process.call(broker.configure, EntityType.TOPIC, "t", CONFIGS)

    async def lead(self) -> HostedPartition:
        source = self.source
        await self.begin(source)
        state = state_of(SOURCE, TARGET, in_sync=False, target=True)
        led = source.process.call(source.applies, 0, state)
        self.more(led)
        return led

    def more(self, led: HostedPartition) -> None:
        now_ms = self.source.seams.clock.wall_ms()
        self.source.process.call(append, led, BYTES, now_ms)

    async def copy(self, led: HostedPartition, plan: Plan | None = None) -> HostedPartition | None:
        """Begin a life of the target, which ``plan`` may end; return its copy, with all records."""
        target = CopyingBroker(self.machine, TARGET)
        await self.begin(target)
        target.process.call(target.knows, [self.source, target])
        self.machine.disk.plan = plan
        try:
            return await self._copy(target, led)
        except ProcessKilled:
            return None
        finally:
            self.machine.disk.plan = None

    async def _copy(self, target: CopyingBroker, led: HostedPartition) -> HostedPartition | None:
        process, state = target.process, state_of(SOURCE, TARGET, in_sync=False, target=True)
        copy = process.call(target.applies, 0, state)
        assert copy.log.damaged is None

        def has_ended() -> bool:
            return not process.alive or copy.end_offset == led.end_offset

        await self.world.until(has_ended, SECONDS)
        if not process.alive:
            return None
        process.call(copy.log.sync)
        process.call(finish, copy.log.resources.before_cut())
        found: HostedPartition = copy
        return found


async def crashes(world: World, number: int, crash: Crash) -> bool:
    """Let the target die once; False when the copy had ended before that."""
    move = Move(world)
    led = await move.lead()
    first = await move.copy(led, at_change(number, crash))
    if first is not None:
        move.machine.lose_power()
    move.more(led)
    copy = await move.copy(led)
    assert copy is not None
    same(led, copy)
    return first is None


def same(led: HostedPartition, copy: HostedPartition) -> None:
    assert copy.log.start_offset == led.log.start_offset
    assert copy.log.epochs.entries == led.log.epochs.entries
    position = led.log.start_offset
    while position < led.log.end_offset:
        wanted, found = led.log.read(position, 5_500), copy.log.read(position, 5_500)
        assert not isinstance(wanted, Rejected) and not isinstance(found, Rejected)
        assert wanted == found and len(found), position
        position += 1


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_target_that_dies_anywhere_goes_on_with_its_copy(kind: str) -> None:
    for number in range(1, 1_000):
        with World(seed=number) as world:
            if not world.run(crashes(world, number, Crash(kind, number % 2))):
                assert number > 15
                return
    raise AssertionError("the copy never ended")
