"""Does to a cluster of real processes what the schedule says, and ends it again.

Owns how a fault is done; which ones, when and on which process: see `schedule.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.chaos.schedule import BROKERS, CONTROLLER, LINKS, Fault, Kind
from tests.support.cluster import TidelogCluster
from tests.support.links import Network
from tests.support.node import Node
from tests.support.processes import SIGCONT, SIGSTOP
from tests.support.small_disk import SmallDisk
from tests.support.zookeeper import ZooKeeper

CHROOT = "/t"
FIRST_CONTROLLER = 100


class FaultyCluster:
    """A cluster with faults of its network and disks; it runs while it is used as a context.

    With a running `zookeeper` it has two controllers, and the active one is the victim.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, object], zookeeper: ZooKeeper | None = None
    ) -> None:
        self._stack = ExitStack()
        self._zookeeper = zookeeper
        self._struck = 0
        self.network = self._stack.enter_context(Network())
        where: dict[str, Any] = {}
        if zookeeper is not None:
            where = {"controllers": 2, "store": f"zookeeper://{zookeeper.address}{CHROOT}"}
        self.cluster = TidelogCluster(folder, 3, config, self.network, **where)
        self.disks = {
            node_id: self._stack.enter_context(SmallDisk(node))
            for node_id, node in self.cluster.brokers.items()
        }

    def __enter__(self) -> FaultyCluster:
        try:
            self._stack.enter_context(self.cluster)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ranks(self, leader: int) -> list[int]:
        """The brokers, a leader first: the schedule's victims are ranks in this list."""
        return sorted(self.cluster.brokers, key=lambda node_id: (node_id != leader, node_id))

    def _active_controller(self) -> int:
        """Which of the controllers is active: its place in the cluster's list."""
        if self._zookeeper is None:
            return 0
        node = self._zookeeper.content(f"{CHROOT}/controller")
        # While there is none the first one is as good a victim as the other.
        return 0 if node is None else int(json.loads(node)["brokerid"]) - FIRST_CONTROLLER

    def begin(self, fault: Fault, ranks: list[int]) -> None:
        """Begin a fault."""
        if fault.victim == CONTROLLER:
            self._struck = self._active_controller()
        victims = self._victims(fault, ranks)
        nodes = [self._node(victim) for victim in victims]
        if fault.kind in (Kind.KILL, Kind.KILL_ALL, Kind.EMPTY):
            for node in nodes:
                node.kill()
        if fault.kind is Kind.EMPTY:
            self.cluster.empty(int(victims[0]))
        if fault.kind is Kind.FULL:
            self.disks[int(victims[0])].fill()
        if fault.kind is Kind.STOP:
            nodes[0].program.send(SIGSTOP)
        if fault.kind in LINKS:
            self._fault_links(fault, victims[0])

    def _fault_links(self, fault: Fault, victim: str) -> None:
        network = self.network
        if fault.kind is Kind.RESET:
            network.reset(victim)
        for other in self._others(fault, victim):
            if fault.kind in (Kind.CUT, Kind.DEAF):
                network.cut(other, victim)
            if fault.kind in (Kind.CUT, Kind.MUTE):
                network.cut(victim, other)
            if fault.kind is Kind.DELAY:
                network.delay(victim, other, fault.delay_s)
                network.delay(other, victim, fault.delay_s)

    def end(self, fault: Fault, ranks: list[int]) -> None:
        """End a fault; what was killed is launched. `until_ready` waits for it."""
        victims = self._victims(fault, ranks)
        nodes = [self._node(victim) for victim in victims]
        if fault.kind in (Kind.KILL, Kind.KILL_ALL, Kind.EMPTY):
            for node in nodes:
                node.launch()
        if fault.kind is Kind.FULL:
            self.disks[int(victims[0])].free()
        if fault.kind is Kind.STOP:
            nodes[0].program.send(SIGCONT)
        if fault.kind is Kind.RESET:
            self.network.reset(victims[0])
        if fault.kind in LINKS:
            self.network.heal(victims[0], self._others(fault, victims[0]))

    def until_ready(self) -> None:
        """Wait until every process answers."""
        for node in (*self.cluster.controllers, *self.cluster.brokers.values()):
            node.until_ready()

    def _victims(self, fault: Fault, ranks: list[int]) -> list[str]:
        """The ends of the network that a fault is done to."""
        if fault.victim == BROKERS:
            return [str(node_id) for node_id in ranks]
        if fault.victim == CONTROLLER:
            return [self.cluster.controller_ends[self._struck]]
        return [str(ranks[int(fault.victim)])]

    def _node(self, end: str) -> Node:
        ends = self.cluster.controller_ends
        if end in ends:
            return self.cluster.controllers[ends.index(end)]
        return self.cluster.brokers[int(end)]

    def _others(self, fault: Fault, victim: str) -> list[str]:
        """The ends that a link's fault parts the victim from."""
        brokers = [str(node_id) for node_id in self.cluster.brokers if str(node_id) != victim]
        found = {BROKERS: brokers, CONTROLLER: self.cluster.controller_ends}
        return [end for word in fault.apart_from for end in found.get(word, [word])]
