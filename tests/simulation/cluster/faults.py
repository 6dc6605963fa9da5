"""The faults of docs/promises.md on a simulated cluster: which comes when, and how all of them end.

Owns the weights and the healing; what each fault does is in ``faults_nodes``, ``faults_links``,
``faults_disks``, ``faults_store``, ``faults_joins``, ``faults_tools`` and ``rolls``. One fault at a
time controls a node; everything else may overlap. A directed scenario gives weights of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from tests.simulation.cluster.faults_disks import DiskFaults
from tests.simulation.cluster.faults_joins import JoinFaults
from tests.simulation.cluster.faults_links import LinkFaults
from tests.simulation.cluster.faults_nodes import NodeFaults
from tests.simulation.cluster.faults_store import StoreFaults
from tests.simulation.cluster.faults_tools import ToolFaults
from tests.simulation.cluster.node_control import FAULT, Begun
from tests.simulation.cluster.nodes import BrokerNode
from tests.simulation.cluster.rolls import RollFaults

ENDS_AT_ONCE = frozenset({"kill_broker", "bounce_broker", "kill_two", "kill_controller"})
"""Faults that a controller sees by a closed connection."""

UNQUIET_SECONDS = 25.0
"""Longer than any other fault lasts, and a session after it."""

GENTLE: Mapping[str, float] = {
    "kill_broker": 4,
    "bounce_broker": 3,
    "stop_broker": 2,
    "kill_controller": 3,
}
ALL: Mapping[str, float] = {
    **GENTLE,
    "kill_two": 1.5,
    "kill_all": 0.7,
    "crash_in_an_operation": 2,
    "pause": 4,
    "cut": 5,
    "isolate": 2,
    "cut_from_controllers": 2,
    "reset": 2,
    "slow_network": 1.5,
    "replay": 5,
    "late_stop": 2,
    "damage_on_the_wire": 1,
    "lose_power": 2.5,
    "lose_a_new_member": 1,
    "lose_the_answer_to_a_join": 0.7,
    "lose_all_power": 0.3,
    "wipe": 1,
    "fail_a_sync": 1.5,
    "fill_the_disk": 1.5,
    "flip_bits": 6,
    "slow_disk": 1.5,
    "expire_session": 2,
    "cut_off_store": 1.5,
    "unknown_writes": 2,
    "kill_in_a_write": 3,
}
"""How often each fault comes, relative to the others."""


class Faults(NodeFaults, LinkFaults, DiskFaults, StoreFaults, JoinFaults, RollFaults, ToolFaults):
    """Does things to a cluster; ``heal`` ends all of them."""

    async def run(self, seconds: float, pause: tuple[float, float] = (0.1, 4.0)) -> None:
        """Begin faults for so long; they may still be under way at the end."""
        end = self.world.loop.time() + seconds
        while self.world.loop.time() < end:
            await asyncio.sleep(self.rng.uniform(*pause))
            self.begin(self._draw())

    def _draw(self) -> str:
        return self.rng.choices(list(self.weights), list(self.weights.values()))[0]

    def begin(self, name: str) -> None:
        """Begin one fault by name."""
        fault: Callable[[], Awaitable[None]] = getattr(self, name)

        async def strike() -> None:
            FAULT.set(Begun(name))
            await fault()

        self.counts[name] = self.counts.get(name, 0) + 1
        if name not in ENDS_AT_ONCE:
            self.unquiet_until = self.world.loop.time() + UNQUIET_SECONDS
        self.world.trace.event("fault", name)
        task = asyncio.ensure_future(strike())
        self._tasks.add(task)

    async def heal(self) -> None:
        """End everything: links, disks, store and processes are as they should be."""
        for task in sorted(self._tasks, key=lambda task: task.get_name()):
            if task.done():
                task.result()
            task.cancel()
        await asyncio.sleep(0)
        self._say("healing")
        self.world.network.heal()
        self.world.network.tamper = None
        self.world.network.profile = self._usual_profile()
        self._slow.clear()
        self.restore_refused()
        for controller in self.cluster.controllers:
            controller.cut_off = False
            controller.slow_store_s = 0.0
            controller.fate_of_a_write = lambda: ""
        for node in self.cluster.nodes:
            node.machine.disk.plan = None
            if isinstance(node, BrokerNode):
                self.make_room(node)
            if node.process is not None:
                node.process.resume()
            if node.host in self.disks_failed:
                self._end(node, "lose_power")
            elif node.host in self.corruptions.unmet():
                self._end(node, "kill")
            if not node.alive:
                node.ended()
                node.start()
        self.disks_failed.clear()
        self._busy.clear()
