"""What every fault needs: the nodes, the fault that controls each, their ends and starts.

Owns the rule that one fault at a time controls a node, and which losses promise 1 allows.
The faults themselves are in ``faults_*``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from tests.simulation.cluster.corruption import Corruptions
from tests.simulation.cluster.journal import StateWatch
from tests.simulation.cluster.nodes import BrokerNode, Cluster, Node
from tests.simulation.cluster.replay import Recording
from tests.simulation.history import History
from tests.simulation.kernel.loop import CURRENT
from tests.simulation.kernel.network import NetworkProfile


@dataclass(slots=True)
class Begun:
    """One fault that has begun; it has struck when something was done to the cluster."""

    name: str
    has_struck: bool = False


FAULT: ContextVar[Begun | None] = ContextVar("fault", default=None)
"""The fault whose task this is."""


class NodeControl:
    """The cluster as faults control it."""

    def __init__(
        self,
        cluster: Cluster,
        states: StateWatch,
        recording: Recording,
        history: History,
        rng: random.Random,
        say: Callable[[str], None],
        weights: Mapping[str, float],
        *,
        synced: bool = False,
        careful: bool = True,
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.states = states
        self.recording = recording
        self.history = history
        self.rng = rng
        self.weights = dict(weights)
        self.synced = synced
        """Whether acknowledged means synced: then power loss loses nothing."""
        self.careful = careful
        """Whether a disk is only lost while every replica is whole."""
        self.corruptions = Corruptions(cluster, history, synced=synced)
        self.counts: dict[str, int] = {}
        """Faults begun; many find nothing to strike."""
        self.struck: dict[str, int] = {}
        self.disks_failed: set[str] = set()
        """Hosts whose present life has seen its disk fail."""
        self.unquiet_until = 0.0
        """Until when a broker may be silent for another reason than that its process ended."""
        self.when_wiped: Callable[[BrokerNode], None] = lambda node: None
        self._log = say
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._slow: dict[str, float] = {}
        self._executor = self.world.random("executor")
        self.world.loop.executor_delay = self._executor_delay

    def _say(self, line: str) -> None:
        """Script what was done to the cluster: the fault has struck."""
        self._log(line)
        begun = FAULT.get()
        if begun is not None and not begun.has_struck:
            begun.has_struck = True
            self.struck[begun.name] = self.struck.get(begun.name, 0) + 1

    def _executor_delay(self) -> float:
        owner = CURRENT.get()
        host = "" if owner is None else owner.host  # type: ignore[attr-defined]
        return self._executor.uniform(10e-6, self._slow.get(host, 0.001))

    def _usual_profile(self) -> NetworkProfile:
        return NetworkProfile(tearing=0.05)

    def _take(self, nodes: list[Node]) -> Node | None:
        """Return a node that no fault controls, and take it."""
        free = [node for node in nodes if node.host not in self._busy and node.alive]
        if not free:
            return None
        node = self.rng.choice(free)
        self._busy.add(node.host)
        return node

    def _end(self, node: Node, how: str) -> None:
        """End a node's process: ``kill``, ``lose_power`` or ``wipe``."""
        self._say(f"{how} {node.host}")
        if how == "kill":
            node.kill()
            return
        node.lose_power()
        if isinstance(node, BrokerNode):
            if how == "wipe":
                node.wipe()
                self.when_wiped(node)
            if how == "wipe" or not (self.synced or node.is_as_it_was_stopped):
                self.states.lost(node.node_id)

    async def _again(self, node: Node, after: tuple[float, float]) -> None:
        await asyncio.sleep(self.rng.uniform(*after))
        self._begin_again(node)

    def _begin_again(self, node: Node) -> None:
        self.disks_failed.discard(node.host)
        self._busy.discard(node.host)
        if not node.alive:
            node.ended()
            self._log(f"start {node.host}")
            node.start()

    def _may_lose(self, node: Node, *, is_wiped: bool = False) -> bool:
        """Whether a broker's disk may be lost now; lets go of the node if not.

        Promise 1 allows the loss of fewer than ``min.insync.replicas`` disks at a time. With
        ``log.durability=sync`` no power loss is one, whatever others lack.
        """
        if not self._nothing_else_is_corrupted(node):
            return False
        if not self.careful or (self.synced and not is_wiped) or not self.states.not_whole():
            return True
        self._busy.discard(node.host)
        return False

    def _nothing_else_is_corrupted(self, node: Node) -> bool:
        """Whether no other disk is corrupted; lets go of the node if one is."""
        if self._corrupted_beside(node):
            self._busy.discard(node.host)
            return False
        return True

    def _corrupted_beside(self, *nodes: Node) -> set[str]:
        """Return the other brokers with corrupted bits, or with a failed disk."""
        if not self.careful:
            return set()
        return (self.corruptions.hosts() | self.disks_failed) - {node.host for node in nodes}

    def all_in_sync(self) -> bool:
        """Whether every partition has all its replicas in its ISR."""
        return not self.states.out_of_sync()

    @property
    def _brokers(self) -> list[Node]:
        return list(self.cluster.brokers)

    @property
    def _controllers(self) -> list[Node]:
        return list(self.cluster.controllers)

    def _seconds(self) -> float:
        return self.rng.choice((1, 4, 12)) * self.rng.uniform(0.3, 1)
