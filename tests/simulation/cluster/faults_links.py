"""Faults of the network: cuts, resets, delays, requests that come again or late, damaged bytes.

Owns what happens between nodes; what is replayed is recorded by ``replay``.
"""

from __future__ import annotations

import asyncio

from tests.simulation.cluster.disks import HEADER_SIZE, damaged
from tests.simulation.cluster.node_control import NodeControl
from tests.simulation.cluster.nodes import PORT
from tests.simulation.kernel.connection import Endpoint
from tests.simulation.kernel.network import NetworkProfile
from tidelog.model.api_keys import ApiKey


class LinkFaults(NodeControl):
    """What can happen between nodes."""

    async def _without(self, cuts: list[tuple[str, str]], seconds: float) -> None:
        self._say(f"cut {' '.join(f'{a}>{b}' for a, b in cuts)}")
        for source, target in cuts:
            self.world.network.cut(source, target, one_way=True)
        await asyncio.sleep(seconds)
        self._say(f"mend {' '.join(f'{a}>{b}' for a, b in cuts)}")
        self.world.network.heal(*cuts)

    async def cut(self) -> None:
        """Between any two nodes, in both directions or one."""
        hosts = [node.host for node in self.cluster.nodes]
        one, other = self.rng.sample(hosts, 2)
        cuts = [(one, other)] + ([(other, one)] if self.rng.random() < 0.6 else [])
        await self._without(cuts, self._seconds())

    async def isolate(self) -> None:
        """One broker from all other nodes; clients may still reach it."""
        node = self.rng.choice(self.cluster.brokers)
        others = [other.host for other in self.cluster.nodes if other is not node]
        cuts = [(node.host, other) for other in others]
        await self._without(cuts + [(b, a) for a, b in cuts], self._seconds())

    async def cut_from_controllers(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        cuts = [(node.host, other.host) for other in self.cluster.controllers]
        way = self.rng.choice((0, 1, 2))
        back = [(b, a) for a, b in cuts]
        await self._without([cuts, back, cuts + back][way], self._seconds())

    async def reset(self) -> None:
        node = self.rng.choice(self.cluster.nodes)
        self._say(f"reset connections of {node.host}")
        self.world.network.reset_connections(node.host, share=self.rng.choice((0.3, 1.0)))

    async def slow_network(self) -> None:
        self._say("slow network")
        self.world.network.profile = NetworkProfile(
            delay=(1e-3, 50e-3), spikes=0.1, spike_delay=1.0, tearing=0.05
        )
        await asyncio.sleep(self.rng.uniform(1, 6))
        self.world.network.profile = self._usual_profile()

    async def replay(self) -> None:
        """A burst of recorded requests, in any order."""
        for _ in range(self.rng.randint(1, 6)):
            kind = self.rng.choice((None, ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR))
            taken = self.recording.pick(self.rng, kind)
            if taken is not None:
                self._say(f"replay {taken.kind.name} to {taken.host}")
                await self.recording.replay(taken, self.rng)
            await asyncio.sleep(self.rng.uniform(0, 0.5))

    async def late_stop(self) -> None:
        """A StopReplica of an earlier assignment, which came back to the same broker since.

        It is what a controller sent when it took the replica away in leader epoch e; the broker
        was assigned again with a later epoch before it arrived (KIP-570's case).
        """
        places = [
            place
            for place, known in self.states.places.items()
            if known.state.leader_epoch > 0
            and self.states.place(place.topic, place.partition) == place
        ]
        if not places:
            return
        place = self.rng.choice(places)
        replicas = self.states.topics[place.topic].partitions[place.partition]
        targets = self.states.places[place].state.target_replicas or []
        hosts = [*replicas, *(x for x in targets if x not in replicas)]
        node = self.cluster.broker(self.rng.choice(hosts))
        self._say(f"late stop of {place} to {node.host}")
        self.recording.stop_late(node, place.topic, place.partition, place.topic_id, self.rng)

    async def damage_on_the_wire(self) -> None:
        """A bit of a record between brokers is turned over, and TCP does not see it."""
        ports = {(node.host, PORT) for node in self.cluster.brokers}
        hosts = {node.host for node in self.cluster.brokers}
        left = [self.rng.randint(1, 3)]
        hit = [0]
        bit = self.rng.randrange(8)

        def tamper(endpoint: Endpoint, content: bytes) -> bytes:
            # Only answers to other brokers: what a client sends has no second copy to compare.
            from_server = endpoint.name in ports and endpoint.peer.host in hosts
            if not left[0] or not from_server or len(content) < 2 * HEADER_SIZE:
                return content
            changed = damaged(content, 16, bit)
            if changed is None:
                return content
            left[0] -= 1
            hit[0] += 1
            return changed

        self._log("damage on the wire")
        self.world.network.tamper = tamper
        await asyncio.sleep(self.rng.uniform(0.5, 3))
        self.world.network.tamper = None
        if hit[0]:
            self._say(f"{hit[0]} answers were damaged")
