"""What tools write to the store at a bad moment: a lower minimum, a mark that must not count, what
cannot be read.

Owns stories that a directed course asks for: they need a moment without a controller, a
configuration of their own, or a follower that joins just then.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from tests.simulation.cluster.node_control import NodeControl
from tests.simulation.cluster.nodes import BrokerNode
from tests.simulation.cluster.store import SESSION_SECONDS, TOOL
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode, PartitionState
from tidelog.metadata.store import Create, Operation, Set

TOPIC = "plain"


class ToolFaults(NodeControl):
    """What a tool can do to a cluster."""

    def _by_tool(self, *operations: Operation) -> None:
        tree = self.cluster.tree
        session = tree.new_session()
        tree.owners[session] = TOOL
        self._say(f"a tool writes {[x.path for x in operations]}")
        tree.apply(session, operations)
        tree.end_session(session)

    def _state(self) -> PartitionState | None:
        kept = self.cluster.tree.nodes.get(layout.state(TOPIC, 0))
        found = None if kept is None else layout.decode(layout.state(TOPIC, 0), kept.data)
        return found if isinstance(found, PartitionState) else None

    async def lower_a_minimum_unseen(self) -> None:
        """A leader is alone below the minimum, which is lowered while no controller runs.

        It acknowledges alone now. Then it dies, and the replicas come back that were eligible.
        """
        state = self._state()
        nodes = [*self.cluster.brokers, *self.cluster.controllers]
        if state is None or any(node.host in self._busy or not node.alive for node in nodes):
            return
        leaders = [node for node in self.cluster.brokers if node.node_id == state.leader]
        if not leaders or len(state.isr) < len(self.cluster.brokers):
            return
        self._busy.update(node.host for node in nodes)
        others = [node for node in self.cluster.brokers if node is not leaders[0]]
        for node in others:
            self._end(node, "kill")
            await asyncio.sleep(1.0)
        with contextlib.suppress(TimeoutError):
            await self.world.until(self._has_eligible, 8)
        for controller in self.cluster.controllers:
            self._end(controller, "kill")
        path = layout.topic_configs(TOPIC)
        known = layout.decode(path, self.cluster.tree.nodes[path].data)
        assert isinstance(known, ConfigNode)
        lowered = {**known.config, "min.insync.replicas": "1"}
        self._by_tool(Set(path, layout.encode(msgspec.structs.replace(known, config=lowered))))
        for controller in self.cluster.controllers:
            self._begin_again(controller)
        # The former session with the store lasts for a while.
        await asyncio.sleep(SESSION_SECONDS)
        with contextlib.suppress(TimeoutError):
            await self.world.until(lambda: self.cluster.active is not None, 12)
        # ScriptedRun of it, it acknowledges alone.
        await asyncio.sleep(self.rng.uniform(2, 4))
        self._end(leaders[0], "kill")
        for node in others:
            self._begin_again(node)
        await asyncio.sleep(4.0)
        self._begin_again(leaders[0])

    def _has_eligible(self) -> bool:
        state = self._state()
        return state is not None and bool(state.eligible_replicas) and len(state.isr) == 1

    async def damage_a_topic(self) -> None:
        """A follower comes back to its leader while the node of the topic cannot be read.

        What the leader asks for it then is answered with an error, until a tool heals the node.
        """
        state, path = self._state(), layout.topic(TOPIC)
        nodes = {node.node_id: node for node in self.cluster.brokers if node.alive}
        hosts = {node.host for node in self.cluster.brokers}
        if state is None or state.leader not in nodes or hosts & self._busy:
            return
        self._busy |= hosts
        leader = nodes[state.leader].host
        follower = next(node for node in nodes.values() if node.node_id != state.leader)
        cuts = [(leader, follower.host), (follower.host, leader)]
        for source, target in cuts:
            self.world.network.cut(source, target, one_way=True)
        with contextlib.suppress(TimeoutError):
            await self.world.until(lambda: self._is_out(follower.node_id), 8)
        healthy = self.cluster.tree.nodes[path].data
        self._by_tool(Set(path, b"damaged"))
        try:
            self.world.network.heal(*cuts)
            await asyncio.sleep(self.rng.uniform(2, 5))
        finally:
            self._by_tool(Set(path, healthy))
            self._busy -= hosts

    def _is_out(self, node_id: int) -> bool:
        state = self._state()
        return state is not None and node_id not in state.isr

    async def mark_in_vain(self) -> None:
        """A tool marks a topic while deletion is switched off, and channels begin again then."""
        for controller in self.cluster.controllers:
            controller.slow_store_s = 2.0
        self._by_tool(Create(layout.deletion_mark(TOPIC), b""))
        await asyncio.sleep(0.5)
        brokers: list[BrokerNode] = list(self.cluster.brokers)
        for node in self.rng.sample(brokers, 2):
            self.world.network.reset_connections(node.host)
        await asyncio.sleep(4.0)
        for controller in self.cluster.controllers:
            controller.slow_store_s = 0.0
