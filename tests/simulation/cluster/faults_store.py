"""Faults between the controllers and their store: sessions that end, no answers, uncertain writes.

Owns when they happen; how a store behaves then is ``store``.
"""

from __future__ import annotations

import asyncio
import contextlib

from tests.simulation.cluster.node_control import NodeControl
from tests.simulation.cluster.nodes import ControllerNode


class StoreFaults(NodeControl):
    """What can happen to a controller's session with the store."""

    async def expire_session(self) -> None:
        node = self.rng.choice(self.cluster.controllers)
        for session in list(node.sessions):
            self._say(f"session {session.session} of {node.host} expires")
            session.expire()

    async def cut_off_store(self) -> None:
        """From one controller, or from all (a lost quorum); long enough for sessions to end."""
        share = self.rng.random()
        chosen = [n for n in self.cluster.controllers if share < 0.3 or self.rng.random() < 0.5]
        self._say(f"store cut off from {[node.host for node in chosen]}")
        for node in chosen:
            node.cut_off = True
        seconds = self.rng.choice((1.0, 3.0, 8.0))
        if seconds > 4 and share >= 0.3:
            await asyncio.sleep(4.0)
            for node in chosen:
                for session in list(node.sessions):
                    session.expire()
        await asyncio.sleep(self.rng.uniform(0.3, 1) * seconds)
        for node in chosen:
            node.cut_off = False
        self._say("store back")

    async def unknown_writes(self) -> None:
        """Some writes are lost, or made without an answer."""
        node = self.rng.choice(self.cluster.controllers)
        fates = self.world.random(f"fates/{self.history.now}/{self.world.loop.steps}")
        node.fate_of_a_write = lambda: fates.choice(("", "", "lost", "unknown"))
        self._say(f"writes of {node.host} are uncertain")
        await asyncio.sleep(self.rng.uniform(0.5, 4))
        node.fate_of_a_write = lambda: ""

    async def kill_in_a_write(self) -> None:
        """A controller dies before or after the store has made one of its writes."""
        node = self._take(self._controllers)
        if not isinstance(node, ControllerNode) or node.process is None:
            return
        process = node.process
        left = [self.rng.randint(1, 4)]
        where = self.rng.choice(("killed before", "killed after"))

        def fate() -> str:
            left[0] -= 1
            return where if left[0] == 0 else ""

        node.fate_of_a_write = fate
        node.wanted = False
        # One that writes too little ends anyhow.
        with contextlib.suppress(TimeoutError):
            await self.world.until(lambda: not process.alive, 6)
        node.fate_of_a_write = lambda: ""
        log = self._say if left[0] <= 0 else self._log
        log(f"{node.host} {where} a write")
        node.kill()
        await self._again(node, (0.1, 6))
