"""Faults of the brokers' disks: a crash within an operation, EIO, no room, slowness, flipped bits.

Owns what one disk does while its machine runs on.
"""

from __future__ import annotations

import asyncio
import errno

from tests.simulation.cluster.node_control import NodeControl
from tests.simulation.cluster.nodes import LOGS, BrokerNode, Node
from tests.simulation.kernel import UNLIMITED, Crash, DiskOperation, Fail
from tests.simulation.kernel.loop import Failure

CONTROL_NOTES = "controller-seen"
"""What a broker notes of its controllers: no log; each note replaces the file."""

FAILING_SECONDS = (0.001, 0.1, 0.5)
"""What a disk that is about to fail takes for a call, at most, one of these."""

SLOWEST_SECONDS = 2.0
"""Most that a slow disk takes to begin, and again to end, what a helper thread does."""


class DiskFaults(NodeControl):
    """What can happen to a disk."""

    async def crash_in_an_operation(self) -> None:
        node = self._take(self._brokers)
        if node is None or node.process is None:
            return
        disk, process = node.machine.disk, node.process
        at, part = disk.operations + self.rng.randint(1, 150), self.rng.random()

        def plan(operation: DiskOperation) -> Crash | None:
            return Crash("kill", part) if operation.number >= at else None

        node.wanted = False
        disk.plan = plan
        try:
            await self.world.until(lambda: not process.alive, 10)
        except TimeoutError:
            node.kill()
        disk.plan = None
        self._say(f"crash in an operation of {node.host}")
        node.kill()
        await self._again(node, (0.1, 6))

    async def fail_a_sync(self) -> None:
        """fsync says EIO once; the life goes on, and its directory must not.

        What stands elsewhere is looked at when the disk fails, too: that may be seconds later. What
        helper threads had begun before their process learned of the failure may go on.
        """
        node = self._take(self._brokers)
        if node is None or node.process is None or not self._nothing_else_is_corrupted(node):
            return
        disk, life = node.machine.disk, node.life
        failures: list[Failure] = []
        left = [self.rng.randint(0, 8)]

        def plan(operation: DiskOperation) -> Fail | None:
            failed = node.host in self.disks_failed
            if not operation.path.startswith(LOGS) or operation.kind != "sync":
                return None
            if operation.path.endswith(CONTROL_NOTES):
                return None
            if failed:
                # A start that it failed is made again, as another life.
                if node.life == life and not self.world.loop.is_in_flight(failures[0]):
                    self.history.directory(LOGS, life, f"sync of {operation.path}")
                return None
            left[0] -= operation.path.endswith(".log")
            if left[0] >= 0 or not operation.path.endswith(".log") or not self._may_fail(node):
                return None
            failures.append(self.world.loop.failure())
            self.disks_failed.add(node.host)
            self._say(f"EIO on {node.host}: {operation.path}")
            self.history.directory(LOGS, life, "sync failed")
            return Fail(errno.EIO)

        # Before it fails it may be slow: then many logs share a trip to a thread.
        self._slow[node.host] = self.rng.choice(FAILING_SECONDS)
        disk.plan = plan
        await asyncio.sleep(self.rng.uniform(2, 8))
        disk.plan = None
        self._slow.pop(node.host, None)
        if node.host not in self.disks_failed:
            self._busy.discard(node.host)
            return
        # The page cache is not to be believed any more: the machine is started again.
        self._end(node, "lose_power")
        await self._again(node, (0.1, 4))

    def _may_fail(self, node: Node) -> bool:
        """Whether a disk may fail now: where acknowledged is synced, that alone loses nothing."""
        others_hold_it = self.synced or not self.careful or not self.states.not_whole()
        return others_hold_it and not self._corrupted_beside(node)

    async def flip_bits(self) -> None:
        """Bits of files are turned over, under a process that runs or while there is none."""
        node = self._take(self._brokers)
        if not isinstance(node, BrokerNode) or not self._nothing_else_is_corrupted(node):
            return
        # What others have no whole copy of is left alone; this one is not missed before it ends.
        lonely = self.states.not_whole() if self.careful else set()
        how = self.rng.choice(("", "", "kill", "stop"))
        if how == "kill":
            self._end(node, "kill")
        elif how == "stop":
            self._say(f"stop {node.host}")
            await node.stop()
        for _ in range(self.rng.randint(1, 3)):
            if self._corrupted_beside(node):
                break  # by another fault, while this one was stopped
            flip = self.corruptions.flip(node, self.rng, lonely)
            if flip is not None:
                self._say(f"flip a bit on {node.host}: {flip.path} byte {flip.byte}")
        if how:
            await self._again(node, (0.1, 6))
        else:
            self._busy.discard(node.host)

    async def fill_the_disk(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        disk = node.machine.disk
        disk.capacity = disk.used() + self.rng.randint(0, 10_000)
        self._say(f"full disk on {node.host}")
        self.history.disk_space("full", node.host)
        await asyncio.sleep(self.rng.uniform(0.5, 8))
        self.make_room(node)

    def make_room(self, node: BrokerNode) -> None:
        """End a full disk, if it is one."""
        if node.machine.disk.capacity < UNLIMITED:
            node.machine.disk.capacity = UNLIMITED
            self._say(f"room on {node.host}")
            self.history.disk_space("room", node.host)

    async def slow_disk(self) -> None:
        node = self._take(self._brokers)
        if node is None:
            return
        self._slow[node.host] = self.rng.choice((0.05, 0.5, SLOWEST_SECONDS))
        self._say(f"slow disk on {node.host}")
        await asyncio.sleep(self.rng.uniform(1, 8))
        self._slow.pop(node.host, None)
        await asyncio.sleep(2 * SLOWEST_SECONDS)
        self._busy.discard(node.host)
