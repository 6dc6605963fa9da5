"""Faults of processes and machines: killed, stopped, paused, without power, with an empty disk.

Owns what happens to nodes as a whole; their disks are ``faults_disks``.
"""

from __future__ import annotations

import asyncio

from tests.simulation.cluster.node_control import NodeControl
from tests.simulation.cluster.nodes import BrokerNode, Node


class NodeFaults(NodeControl):
    """What can happen to a process or its machine."""

    async def _end_and_start(self, nodes: list[Node], how: str, after: tuple[float, float]) -> None:
        node = self._take(nodes)
        if node is not None:
            self._end(node, how)
            await self._again(node, after)

    async def kill_broker(self) -> None:
        await self._end_and_start(self._brokers, "kill", (0.3, 12))

    async def bounce_broker(self) -> None:
        """Ended and back at once: faster than its session times out."""
        await self._end_and_start(self._brokers, "kill", (0.001, 0.3))

    async def kill_controller(self) -> None:
        await self._end_and_start(self._controllers, "kill", (0.001, 8))

    async def lose_power(self) -> None:
        node = self._take(self._brokers)
        if node is not None and self._may_lose(node):
            self._end(node, "lose_power")
            await self._again(node, (0.1, 9))

    async def wipe(self) -> None:
        node = self._take(self._brokers)
        if node is not None and self._may_lose(node, is_wiped=True):
            self._end(node, "wipe")
            await self._again(node, (0.1, 9))

    async def lose_all_power(self) -> None:
        """More than promise 1 allows: what none of them has any more is flagged (promise 17).

        Not beside a corrupted disk, where what is left may be damaged and nothing be there to flag.
        """
        if not self._corrupted_beside():
            await self._end_many(self._brokers, "lose_power")

    async def kill_two(self) -> None:
        await self._end_many(self.rng.sample(self._brokers, 2), "kill")

    async def kill_all(self) -> None:
        await self._end_many(list(self.cluster.nodes), "kill")

    async def _end_many(self, nodes: list[Node], how: str) -> None:
        taken = [node for node in nodes if node.host not in self._busy and node.alive]
        for node in taken:
            self._busy.add(node.host)
            self._end(node, how)
        order = self.rng.sample(taken, len(taken))
        for node in order:
            await self._again(node, (0.01, 3))

    async def stop_broker(self) -> None:
        """SIGTERM, then a start."""
        node = self._take(self._brokers)
        if isinstance(node, BrokerNode):
            self._say(f"stop {node.host}")
            await node.stop()
            await self._again(node, (0.01, 4))

    async def pause(self) -> None:
        """SIGSTOP, then SIGCONT."""
        node = self._take(list(self.cluster.nodes))
        if node is None or node.process is None:
            return
        process = node.process
        self._say(f"pause {node.host}")
        process.pause()
        await asyncio.sleep(self.rng.choice((0.3, 2, 8, 15)) * self.rng.uniform(0.5, 1))
        self._say(f"resume {node.host}")
        process.resume()
        self._busy.discard(node.host)
