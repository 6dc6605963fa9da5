"""Mixed levels: where a run begins, and rolls up and down meanwhile.

Owns the order of ``docs/operating/upgrade.md``: up, controllers before brokers; down, brokers
before controllers; one process at a time, the next one when all replicas are in sync again (or when
that takes too long, for the other faults go on). So each mixture that a run sees is one of a roll:
no broker's level is above any controller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from tests.simulation.cluster.node_control import NodeControl
from tests.simulation.cluster.nodes import Cluster, ControllerNode, Node
from tidelog.model.levels import LATEST, LEVEL_NAMES, numbers_of

PATIENCE_SECONDS = 8.0
"""The operator waits so long for a node that is down, or for replicas that are not in sync."""

STEP_SECONDS = 25.0
"""Most that a step takes: a stop of the slowest kind is killed after 30 s, and is looked at."""


def begin_mixed(cluster: Cluster, rng: random.Random) -> str:
    """Let a cluster begin at some level, or between two neighbouring ones; say which."""
    low = rng.randrange(len(LEVEL_NAMES))
    high = min(low + 1, len(LEVEL_NAMES) - 1)
    raised = rng.randrange(len(cluster.nodes))
    for place, node in enumerate(cluster.nodes):
        node.set_level(LEVEL_NAMES[high if place < raised else low])
    return levels_of(cluster)


def levels_of(cluster: Cluster) -> str:
    """Return the levels of all nodes, as the story tells them."""
    return " ".join(f"{node.host}@{node.level}" for node in cluster.nodes)


class RollFaults(NodeControl):
    """What an operator does to levels while everything else happens."""

    rolls: random.Random
    steps = 0
    """Nodes that were restarted at another level."""

    async def roll(self) -> None:
        """Roll to one level after another, mostly a neighbouring one."""
        while True:
            await asyncio.sleep(self.rolls.uniform(0.2, 4))
            now = LEVEL_NAMES.index(self.cluster.controllers[0].level)
            near = [LEVEL_NAMES[x] for x in (now - 1, now, now + 1) if 0 <= x < len(LEVEL_NAMES)]
            await self.roll_to(self.rolls.choice((*near, *near, *LEVEL_NAMES)))

    async def roll_to(self, level: str) -> bool:
        """Restart every node that has another level; False if it was given up on the way."""
        controllers: list[Node] = list(self.cluster.controllers)
        brokers: list[Node] = list(self.cluster.brokers)
        below = [node for node in [*controllers, *brokers] if _is_lower(node.level, level)]
        above = [node for node in [*brokers, *controllers] if _is_lower(level, node.level)]
        for node in [*below, *above]:
            if not await self._restart_at(node, level):
                return False
            with contextlib.suppress(TimeoutError):
                await self.world.until(self.all_in_sync, PATIENCE_SECONDS)
        return True

    async def _restart_at(self, node: Node, level: str) -> bool:
        try:
            await self.world.until(
                lambda: node.host not in self._busy and node.alive, PATIENCE_SECONDS
            )
        except TimeoutError:
            return False
        self._busy.add(node.host)
        self.unquiet_until = max(self.unquiet_until, self.world.loop.time() + STEP_SECONDS)
        before = node.level
        self._say(f"roll {node.host} from {before} to {level}")
        if self.rolls.random() < 0.7:
            await node.stop()
        else:
            node.kill()
        node.set_level(level)
        self.steps += 1
        self._begin_again(node)
        is_controller = isinstance(node, ControllerNode)
        with contextlib.suppress(TimeoutError):
            await self.world.until(
                lambda: node.ready and not (is_controller and self._is_refused()),
                PATIENCE_SECONDS,
            )
        if is_controller and _is_lower(level, before) and (not node.ready or self._is_refused()):
            self._say(f"{node.host} is refused at {level}: back to {before}")
            self._put_back(node, before)
            return False
        return True

    def _is_refused(self) -> bool:
        """Whether no controller takes over because deletions with ids are not done."""
        return self.states.deleting and self.cluster.active is None

    def _put_back(self, node: Node, level: str) -> None:
        node.set_level(level)
        if node.alive and node.host not in self._busy:
            node.kill()
            self._begin_again(node)

    def restore_refused(self) -> None:
        """Have a controller at 1.4 again if all are refused below it, as their line says."""
        if not self.states.deleting or any(
            not _is_lower(node.level, LATEST.name) for node in self.cluster.controllers
        ):
            return
        node = self.cluster.controllers[0]
        self._say(f"{node.host} back to {LATEST.name} until deletions are done")
        node.set_level(LATEST.name)
        node.kill()


def _is_lower(one: str, other: str) -> bool:
    return (numbers_of(one) or ()) < (numbers_of(other) or ())
