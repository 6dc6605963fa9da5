"""Copies of many partitions between real brokers on virtual time: their limit, order and places."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tests.simulation.copying_brokers import CopyingBroker, append, state_of
from tests.simulation.kernel import World
from tidelog.broker.metadata.configurations import DEFAULT_BROKER, EntityType
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.replication.copying import STALLED_MS

pytestmark = [pytest.mark.usefixtures("quiet")]

PARTITIONS = 200
LIMIT = 8
BYTES = 20_000
SOURCE, DEAD, TARGET = 1, 2, 11


class Copying:
    """One target that copies partitions of a source, and of another one that does not answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine = world.machine("127.0.0.1")
        self.source, self.dead, self.target = (
            CopyingBroker(self.machine, node_id) for node_id in (SOURCE, DEAD, TARGET)
        )
        self.all = [self.source, self.dead, self.target]
        self.led: dict[int, HostedPartition] = {}
        self.copies: dict[int, HostedPartition] = {}
        self.most = 0
        """The most partitions that had records and were not complete at one moment."""
        self.order: list[int] = []
        """The partitions as they were completed."""

    async def start(self) -> None:
        for each in self.all:
            await each.process.run(each.start())
            each.session = SimpleNamespace(broker_epoch=7)
            each.process.call(each.knows, self.all)

    def lead(self, source: CopyingBroker, index: int, size: int) -> None:
        state = state_of(source.node_id, TARGET, in_sync=False, target=True)
        led = source.process.call(source.applies, index, state)
        source.process.call(append, led, size, source.seams.clock.wall_ms())
        self.led[index] = led

    def move(self, source: CopyingBroker, index: int) -> None:
        state = state_of(source.node_id, TARGET, in_sync=False, target=True)
        self.copies[index] = self.target.process.call(self.target.applies, index, state)

    async def until_complete(self, indexes: set[int], seconds: float) -> None:
        """Look at the copies until these are complete."""
        end = self.world.loop.time() + seconds
        while not indexes.issubset(self.order):
            assert self.world.loop.time() < end, sorted(indexes - set(self.order))
            under_way = 0
            for index, copy in self.copies.items():
                if index in self.order:
                    continue
                if copy.end_offset == self.led[index].end_offset:
                    self.order.append(index)
                else:
                    under_way += copy.end_offset > 0
            self.most = max(self.most, under_way)
            await asyncio.sleep(0.0005)


def test_a_plan_of_200_partitions_has_at_most_its_limit_of_copies_in_flight() -> None:
    with World(seed=1) as world:
        copying = Copying(world)

        async def main() -> None:
            await copying.start()
            for index in range(PARTITIONS):
                copying.lead(copying.source, index, 10 * BYTES)
            for index in range(PARTITIONS):
                copying.move(copying.source, index)
            await copying.until_complete(set(range(PARTITIONS)), 120)

        world.run(main())
        assert 2 <= copying.most <= LIMIT
        copies = copying.target.broker.followers.copies
        assert (copies.running, copies.waiting) == (0, 0)
        sent = sum(each.counts.reassigned_out for each in copying.led.values())
        assert sent == sum(each.counts.reassigned_in for each in copying.copies.values())
        assert sent == sum(each.log.size for each in copying.led.values())


def test_the_smallest_copies_go_first() -> None:
    with World(seed=2) as world:
        copying = Copying(world)

        async def main() -> None:
            await copying.start()
            values = {"reassignment.parallel.copies": "1"}
            target = copying.target
            target.process.call(target.configure, EntityType.BROKER, DEFAULT_BROKER, values)
            for index in range(20):
                # The larger the number, the smaller the partition.
                copying.lead(copying.source, index, (20 - index) * BYTES)
            for index in range(20):
                copying.move(copying.source, index)
            await copying.until_complete(set(range(20)), 120)

        world.run(main())
        assert copying.most == 1
        assert copying.order == list(range(19, -1, -1))


def test_eight_copies_from_a_stopped_leader_let_the_others_finish() -> None:
    with World(seed=3) as world:
        copying = Copying(world)

        async def main() -> None:
            await copying.start()
            dead, live = set(range(LIMIT)), set(range(LIMIT, 60))
            for index in (*dead, *live):
                copying.lead(copying.dead if index in dead else copying.source, index, BYTES)
            copying.dead.process.pause()
            for index in (*dead, *live):
                copying.move(copying.dead if index in dead else copying.source, index)
            await copying.until_complete(live, 3 * STALLED_MS / 1000)
            assert not dead & set(copying.order)
            copying.dead.process.resume()
            await copying.until_complete(dead, 6 * STALLED_MS / 1000)

        world.run(main())
        assert copying.most <= LIMIT
