"""Brokers without logs: real sessions, real control channels, and books instead of partitions.

Owns what a controller benchmark needs of ten brokers in one process: `FakeBroker` registers and
beats with the broker's own `ControllerSession`, takes control requests with the product's server,
decodes them in full, and counts what they say. It stores nothing and serves no client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID, uuid4

from tidelog.broker.control_plane.session import ControllerSession, Identity, Reported
from tidelog.client.errors import ClientError
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.addresses import Listener
from tidelog.model.registration import FormerRegistration
from tidelog.network import api_versions
from tidelog.network.router import Handler, RequestContext, Router, Scope
from tidelog.network.server import Server
from tidelog.protocol import messages

Place = tuple[str, int]
FULL = 2
HEARTBEAT_MS = 500
PATIENCE_MS = REQUEST_TIMEOUT_MS = 60_000
"""A real broker leaves a controller that is silent for 3 s. These share one process, and wait."""


class Seen:
    """The partition states that one broker has received by UpdateMetadata, with counts."""

    def __init__(self) -> None:
        self.partitions: dict[Place, Any] = {}
        self.led_by: Counter[int] = Counter()
        self.thin = 0
        """Partitions whose ISR is smaller than their replicas."""

    def take(self, request: Any) -> None:
        """Apply an update."""
        for topic in request.topic_states:
            for state in topic.partition_states:
                self._count((topic.topic_name, state.partition_index), state)

    def _count(self, place: Place, state: Any) -> None:
        before = self.partitions.get(place)
        if before is not None:
            self.led_by[before.leader] -= 1
            self.thin -= len(before.isr) < len(before.replicas)
        self.partitions[place] = state
        self.led_by[state.leader] += 1
        self.thin += len(state.isr) < len(state.replicas)


class FakeBroker:
    """One broker over its restarts; all share `changed`, which is set when one gets an update."""

    def __init__(self, node_id: int, controller: int, changed: asyncio.Event) -> None:
        self.node_id = node_id
        self.seen = Seen()
        self.held: dict[Place, Any] = {}
        """Its replicas, as received by LeaderAndIsr."""
        self.ids: dict[str, UUID] = {}
        self._lacking: set[Place] = set()
        self._proposed: dict[Place, int] = {}
        self.complete_in = -1
        """The controller epoch whose channel has sent it all state."""
        self.messages = 0
        """Commands and updates of metadata that it has received."""
        self._controller = controller
        self._changed = changed
        self._directory = uuid4()
        self._incarnation = uuid4()
        self._epoch = self._revision = -1
        self._complete = False
        self._server: Server | None = None
        self.session: ControllerSession | None = None

    async def begin(self, last_stop: FormerRegistration) -> None:
        """Begin a life (or a session of the same one) and seek the controller."""
        if last_stop is not FormerRegistration.SAME:
            self._incarnation = uuid4()
        if self._server is None:
            self._server = Server(_router(), self)
            self._port = await self._server.listen("PLAINTEXT", "127.0.0.1", 0)
        self.session = ControllerSession(
            [("127.0.0.1", self._controller)],
            *(HEARTBEAT_MS, PATIENCE_MS, REQUEST_TIMEOUT_MS),
            report=lambda: Reported(last_stop, self._epoch, self._revision, self._inventory()),
            when_registered=self._registered,
        )
        listener = Listener("PLAINTEXT", "127.0.0.1", self._port)
        identity = Identity(self.node_id, "", self._incarnation, self._directory, [listener], None)
        self.session.start(identity)

    async def _registered(self, _broker_epoch: int) -> None:
        self._changed.set()

    async def end_session(self) -> None:
        """Close the connection to the controller, as the end of the process does."""
        session, self.session = self.session, None
        if session is not None:
            await session.stop()

    async def end(self) -> None:
        """End the life: no session, no channel."""
        await self.end_session()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        self.complete_in = -1

    async def leave(self) -> None:
        """Ask to leave until the controller says so, then end."""
        assert self.session is not None
        self.session.ask_to_leave()
        await self.session.should_shut_down.wait()
        await self.end()

    async def propose(self, fit: Collection[int]) -> None:
        """As a leader, propose ISRs with all replicas and targets that live, and with no others.

        Each is proposed once per version of its state: the channel sends the result.
        """
        assert self.session is not None
        request = messages.AlterIsrRequest
        topics: dict[str, list[Any]] = {}
        for place in list(self._lacking):
            state = self.held[place]
            isr = _wanted_isr(state, fit)
            if isr == state.isr or self._proposed.get(place) == state.isr_version:
                continue
            self._proposed[place] = state.isr_version
            data = request.PartitionData(place[1], state.leader_epoch, isr, state.isr_version)
            topics.setdefault(place[0], []).append(data)
        if not topics:
            return
        asked = [request.TopicData(n, p, topic_id=self.ids[n]) for n, p in topics.items()]
        proposed = request(self.node_id, self.session.broker_epoch, asked)
        try:
            answer = await self.session.request(proposed, REQUEST_TIMEOUT_MS)
        except ClientError:
            self._proposed.clear()
            return
        if answer.error_code:
            # Its session expired on an overloaded machine: it registers again.
            self._proposed.clear()
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    # A member that is suspected, or an older version: again when more is known.
                    self._proposed.pop((topic.topic_name, partition.partition_index), None)

    def _inventory(self) -> list[Any]:
        request = messages.BrokerRegistrationRequest
        topics: dict[str, list[Any]] = {}
        for (name, index), state in self.held.items():
            found = request.InventoryPartition(index, -1, state.leader_epoch, 0)
            topics.setdefault(name, []).append(found)
        return [request.InventoryTopic(n, self.ids[n], p) for n, p in topics.items()]

    # -- what the controller commands

    def opened(self, request: Any) -> None:
        """A new channel: everything comes."""
        self._epoch = max(self._epoch, request.controller_epoch)
        self._revision = max(self._revision, request.store_revision)
        self._complete = False

    def obey(self, request: Any) -> list[Any]:
        """Take up LeaderAndIsr; the answer's topics."""
        self.messages += 1
        if request.type == FULL:
            self.held = {}
            self._lacking = set()
        response = messages.LeaderAndIsrResponse
        answer = []
        for topic in request.topic_states:
            self.ids[topic.topic_name] = topic.topic_id
            for state in topic.partition_states:
                place = (topic.topic_name, state.partition_index)
                self.held[place] = state
                if state.leader == self.node_id and set(state.isr) != set(_hosts(state)):
                    self._lacking.add(place)
                else:
                    self._lacking.discard(place)
            errors = [
                response.LeaderAndIsrPartitionError(partition_index=state.partition_index)
                for state in topic.partition_states
            ]
            answer.append(response.LeaderAndIsrTopicError(topic.topic_id, errors))
        return answer

    def stop(self, request: Any) -> list[Any]:
        """Take up StopReplica; the answer's partitions."""
        self.messages += 1
        error = messages.StopReplicaResponse.StopReplicaPartitionError
        answer = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                place = (topic.topic_name, state.partition_index)
                self.held.pop(place, None)
                self._lacking.discard(place)
                answer.append(error(topic_id=topic.topic_id, partition_index=state.partition_index))
        self._changed.set()
        return answer

    def know(self, request: Any) -> None:
        """Take up UpdateMetadata; the first one of a channel is complete."""
        self.messages += 1
        if not self._complete:
            self.seen = Seen()
            self._complete = True
            self.complete_in = request.controller_epoch
        self.seen.take(request)
        self._changed.set()


def _hosts(state: Any) -> list[int]:
    return list(dict.fromkeys((*state.replicas, *(state.target_replicas or ()))))


def _wanted_isr(state: Any, fit: Collection[int]) -> list[int]:
    hosts = _hosts(state)
    kept = [x for x in state.isr if x in hosts]
    return [*kept, *(x for x in hosts if x in fit and x not in kept)]


def _open(broker: FakeBroker, request: Any, _: RequestContext) -> Any:
    broker.opened(request)
    return messages.OpenControlChannelResponse()


def _configs(_: FakeBroker, request: Any, __: RequestContext) -> Any:
    return messages.UpdateConfigsResponse()


def _leader_and_isr(broker: FakeBroker, request: Any, _: RequestContext) -> Any:
    return messages.LeaderAndIsrResponse(topics=broker.obey(request))


def _stop(broker: FakeBroker, request: Any, _: RequestContext) -> Any:
    return messages.StopReplicaResponse(partition_errors=broker.stop(request))


def _metadata(broker: FakeBroker, request: Any, _: RequestContext) -> Any:
    broker.know(request)
    return messages.UpdateMetadataResponse()


def _router() -> Router:
    served: list[tuple[ApiKey, Callable[..., Any]]] = [
        (ApiKey.OPEN_CONTROL_CHANNEL, _open),
        (ApiKey.UPDATE_CONFIGS, _configs),
        (ApiKey.LEADER_AND_ISR, _leader_and_isr),
        (ApiKey.STOP_REPLICA, _stop),
        (ApiKey.UPDATE_METADATA, _metadata),
    ]
    return Router(
        [
            api_versions.HANDLER,
            *(Handler(key, Scope.CONTROLLER, handle) for key, handle in served),
        ]
    )
