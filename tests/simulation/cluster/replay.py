"""Requests between the cluster's processes, taken down on the wire and handed over once more.

Owns what is recorded and how it is replayed. TCP never delivers twice, but a request may sit in a
buffer for long, and a rule must hold for whatever order requests come in: so a recorded one is sent
on a connection of its own, and StopReplica and LeaderAndIsr also past the check of the channel,
where the rules of KIP-570 and KIP-516 must suffice alone.

Only the channel keeps out what has no field for a rule (docs/design/levels.md): past
its check goes no StopReplica of level 1.0, which has no leader epoch, none of a deletion below 1.4
and no LeaderAndIsr below 1.4 of a name that comes and goes, which have no topic id.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.simulation.cluster.clients import TEMPORARY
from tests.simulation.cluster.nodes import CONTROLLER_PORT, PORT, BrokerNode, Cluster
from tests.simulation.kernel.connection import Endpoint
from tests.simulation.secret import secret_outside
from tidelog.broker.handlers import leader_and_isr, stop_replica
from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError
from tidelog.metadata import layout
from tidelog.model.api_keys import ApiKey
from tidelog.model.work import finish
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.command_rules import LeaderAndIsrType

KEPT = 40
"""Requests kept of each kind and target."""

KINDS = (
    ApiKey.METADATA,
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.ALTER_ISR,
)
FIRST_STOP_BY_EPOCH, FIRST_STOP_BY_ID = 3, 4


class Taken(NamedTuple):
    """One request as it went over the wire, with its length in front."""

    host: str
    port: int
    kind: ApiKey
    version: int
    frame: bytes


class Recording:
    """Recorded requests; ``replay`` delivers one of them again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.replayed = 0
        self.secret = secret_outside(cluster.world)
        self._kept: dict[tuple[str, ApiKey], deque[Taken]] = {}
        self._servers = {(node.host, PORT) for node in cluster.brokers} | {
            (node.host, CONTROLLER_PORT) for node in cluster.controllers
        }
        cluster.world.network.tap = self._listen

    def _listen(self, endpoint: Endpoint, content: bytes) -> None:
        peer = endpoint.peer.name
        if peer not in self._servers or len(content) < 8:
            return
        if int.from_bytes(content[:4], "big") != len(content) - 4:
            return
        key = int.from_bytes(content[4:6], "big")
        if key not in KINDS:
            return
        kind = ApiKey(key)
        version = int.from_bytes(content[6:8], "big")
        kept = self._kept.setdefault((peer[0], kind), deque(maxlen=KEPT))
        kept.append(Taken(*peer, kind, version, content))

    def pick(self, rng: random.Random, kind: ApiKey | None = None) -> Taken | None:
        """Return some recorded request."""
        places = sorted(place for place in self._kept if kind in (None, place[1]))
        if not places:
            return None
        return rng.choice(list(self._kept[rng.choice(places)]))

    async def replay(self, taken: Taken, rng: random.Random) -> None:
        """Hand a request over once more, by one of the two ways."""
        self.replayed += 1
        world = self.cluster.world
        world.trace.event("replay", taken.host, taken.kind.name, taken.version)
        node = next((x for x in self.cluster.brokers if x.host == taken.host), None)
        past_the_door = taken.kind in (ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR)
        if node is not None and past_the_door and rng.random() < 0.7:
            self._obey(node, taken)
            return
        await self._send(taken)

    def stop_late(
        self, node: BrokerNode, topic: str, partition: int, topic_id: str, rng: random.Random
    ) -> None:
        """Order a broker to delete a replica, with an older leader epoch than the one it knows."""
        if node.running is None or not node.ready:
            return
        hosted = node.running.broker.partitions.get(topic, partition)
        if hosted is None or hosted.leader_epoch < 1:
            return
        self.replayed += 1
        request = messages.StopReplicaRequest
        state = request.StopReplicaPartitionState(
            partition_index=partition,
            leader_epoch=rng.randrange(hosted.leader_epoch),
            delete_partition=True,
        )
        stop = request.StopReplicaTopicState(
            topic_name=topic,
            topic_id=layout.parse_id(topic_id) or hosted.topic_id,
            partition_states=[state],
        )
        # A replica that has no id yet got its orders below level 1.4.
        by_id = hosted.topic_id != NO_UUID
        version = FIRST_STOP_BY_ID if by_id else FIRST_STOP_BY_EPOCH
        self._deliver(node, stop_replica.handle, request(topic_states=[stop]), version)

    def _obey(self, node: BrokerNode, taken: Taken) -> None:
        frame = memoryview(taken.frame)[4:]
        body = codec.decode_request_header(frame).body
        request: Any = finish(codec.decode_request(taken.kind, taken.version, frame, body))
        if taken.kind is ApiKey.STOP_REPLICA:
            if taken.version >= FIRST_STOP_BY_ID:
                self._deliver(node, stop_replica.handle, request, taken.version)
        elif (
            request.type in (LeaderAndIsrType.INCREMENTAL, LeaderAndIsrType.UNSPECIFIED)
            and node.ready
            and self._is_current(node, request)
        ):
            self._deliver(node, leader_and_isr.handle, request, taken.version)

    def _deliver(
        self, node: BrokerNode, handle: Callable[..., Any], request: Any, version: int
    ) -> None:
        """Let the open channel deliver it, with that channel's epochs."""
        process, running = node.process, node.running
        if process is None or not process.alive or process.held is not None or not node.ready:
            return
        assert running is not None
        channel = running.broker.channel.present
        if channel is None or channel.connection.is_closing:
            return
        request.controller_epoch = channel.controller_epoch
        request.broker_epoch = running.broker.session.broker_epoch
        context = SimpleNamespace(version=version, connection=channel.connection)
        process.run(_handled(handle, running.broker, request, context))

    def _is_current(self, node: BrokerNode, request: Any) -> bool:
        """Whether all topics are in the incarnation that the broker knows; a request about another
        one is refused by the channel alone."""
        assert node.running is not None
        known = {tuple(p.key): p.topic_id for p in node.running.broker.partitions.all()}
        return all(
            known.get((topic.topic_name, state.partition_index)) == topic.topic_id
            if topic.topic_id != NO_UUID
            else topic.topic_name != TEMPORARY
            and (topic.topic_name, state.partition_index) in known
            for topic in request.topic_states
            for state in topic.partition_states
        )

    async def _send(self, taken: Taken) -> None:
        """Send it on a connection of its own that has proved the secret: scopes let it pass."""
        try:
            connection = await connect(
                taken.host,
                taken.port,
                negotiate=False,
                connect_timeout_ms=2000,
                secret=self.secret,
            )
        except ClientError:
            return
        transport = connection._transport
        if transport is not None:
            transport.write(taken.frame)
        await asyncio.sleep(1.0)
        connection.close()


async def _handled(handle: Callable[..., Any], *arguments: Any) -> None:
    answer = handle(*arguments)
    if inspect.isawaitable(answer):
        await answer
