"""A controller process with a store and recorded brokers, over its real wire."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.processes import DEADLINE_S
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.metadata.memory import MemoryStore, MemoryTree
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs import server
from tidelog.model.errors import ErrorCode
from tidelog.network import api_versions
from tidelog.network.router import Handler, Router, Scope
from tidelog.network.server import Server
from tidelog.protocol import codec, messages
from tidelog.runtime.seams import Seams


def configs(**texts: str) -> server.ServerConfigs:
    # Recorded brokers send heartbeats when a test says so: their silence means nothing.
    silence = {} if "broker_session_timeout_ms" in texts else {"broker.silence.suspect.ms": "59000"}
    made = server.from_mapping(
        {
            **silence,
            "node.id": "101",
            "process.roles": "controller",
            "listeners": "CONTROLLER://127.0.0.1:0",
            "metadata.store": "memory:",
            "broker.session.grace.ms": "50",
            "broker.session.timeout.ms": "60000",
            **{name.replace("_", "."): text for name, text in texts.items()},
        }
    )
    assert isinstance(made, server.ServerConfigs), made
    return made


def served(key: ApiKey, scope: Scope, handle: Any) -> Handler:
    """A handler for all versions of an API."""
    return Handler(key, scope, handle)


class RecordedBroker:
    """A broker's listener that records control requests and answers them without an error."""

    def __init__(self, node_id: int, rack: str | None = None) -> None:
        self.node_id = node_id
        self.rack = rack
        self.requests: list[Any] = []
        self.directory = uuid.uuid4()
        self.incarnation = uuid.uuid4()
        self.epoch = -1
        self.stop_errors: list[int] = []
        self.leaves_unreadable = False
        """Whether it is of a version that knows lists of unreadable topics."""
        self.session: ClientConnection | None = None
        self.server: Server | None = None
        self.port = -1
        self.inventory: list[Any] = []
        self.more = asyncio.Event()
        self.holds: asyncio.Event | None = None
        """Responses wait for this event, where there is one."""

    def handlers(self) -> list[Handler]:
        """What it serves beside ApiVersions."""
        keys = (
            ApiKey.OPEN_CONTROL_CHANNEL,
            ApiKey.UPDATE_CONFIGS,
            ApiKey.LEADER_AND_ISR,
            ApiKey.UPDATE_METADATA,
            ApiKey.STOP_REPLICA,
        )
        return [served(key, Scope.CONTROLLER, self._handle) for key in keys]

    async def listen(self) -> None:
        self.server = Server(Router([api_versions.HANDLER, *self.handlers()]), self)
        self.port = await self.server.listen("PLAINTEXT", "127.0.0.1", 0)

    async def _handle(self, _context: Any, request: Any, _more: Any) -> Any:
        self.requests.append(request)
        self.more.set()
        if self.holds is not None:
            await self.holds.wait()
        if isinstance(request, messages.StopReplicaRequest):
            response = messages.StopReplicaResponse
            error = self.stop_errors.pop(0) if self.stop_errors else 0
            return response(
                partition_errors=[
                    response.StopReplicaPartitionError(
                        topic_id=topic.topic_id,
                        partition_index=partition.partition_index,
                        error_code=error,
                    )
                    for topic in request.topic_states
                    for partition in topic.partition_states
                ]
            )
        if isinstance(request, messages.OpenControlChannelRequest):
            return messages.OpenControlChannelResponse(leaves_unreadable=self.leaves_unreadable)
        name = type(request).__name__.removesuffix("Request")
        return getattr(messages, name + "Response")()

    async def register(self, controller_port: int, **changes: Any) -> Any:
        self.session = await connect("127.0.0.1", controller_port)
        request = messages.BrokerRegistrationRequest
        wanted: dict[str, Any] = {
            "broker_id": self.node_id,
            "incarnation_id": self.incarnation,
            "directory_id": self.directory,
            "listeners": [request.Listener("PLAINTEXT", "127.0.0.1", self.port, 0)],
            "rack": self.rack,
            "last_life_ended": 2,
            "inventory": self.inventory,
            **changes,
        }
        answer = await self.session.send(request(**wanted), 0)
        self.epoch = answer.broker_epoch
        return answer

    async def heartbeat(self, **changes: Any) -> Any:
        assert self.session is not None
        request = messages.BrokerHeartbeatRequest(
            broker_id=self.node_id, broker_epoch=self.epoch, **changes
        )
        return await self.session.send(request, 0)

    async def forward(self, request: Any, version: int) -> Any:
        key, answer = await self.send_on(request, version)
        assert answer.error_code == 0
        correlation_id, response = codec.decode_response(
            key, version, memoryview(answer.response_data)
        )
        assert correlation_id == 7
        return response

    async def refused(self, request: Any, version: int) -> ErrorCode:
        """Forward what the envelope is refused for."""
        return ErrorCode((await self.send_on(request, version))[1].error_code)

    async def send_on(self, request: Any, version: int) -> tuple[int, messages.EnvelopeResponse]:
        """Send in an Envelope, as a broker does; return the inner API and the answer."""
        assert self.session is not None
        key = codec.api_of(ApiKey[_screaming(type(request).__name__.removesuffix("Request"))]).key
        inner = b"".join(codec.encode_request(key, version, 7, "client", request))[4:]
        return key, await self.session.send(messages.EnvelopeRequest(inner, b"", b"127.0.0.1"), 0)

    async def told(self, holds: Callable[[list[Any]], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds(self.requests):
                self.more.clear()
                await self.more.wait()

    def names(self) -> list[str]:
        return [type(request).__name__.removesuffix("Request") for request in self.requests]

    async def close(self) -> None:
        if self.session is not None:
            self.session.close()
        if self.server is not None:
            await self.server.stop(0.1)


def _screaming(name: str) -> str:
    return "".join("_" + c if c.isupper() else c.upper() for c in name).lstrip("_")


class World:
    """One controller and some recorded brokers."""

    def __init__(self) -> None:
        self.brokers: list[RecordedBroker] = []
        self.controllers: list[LoneController] = []

    async def controller(
        self, tree: MemoryTree | None = None, *, seams: Seams | None = None, **texts: str
    ) -> LoneController:
        store = MemoryStore(tree if tree is not None else MemoryTree())
        controller = LoneController(configs(**texts), seams or Seams(), store)
        self.controllers.append(controller)
        await controller.start()
        return controller

    async def broker(self, controller: LoneController, node_id: int) -> RecordedBroker:
        broker = RecordedBroker(node_id)
        self.brokers.append(broker)
        await broker.listen()
        answer = await broker.register(controller.listener_port)
        assert answer.error_code == 0
        return broker

    async def registered(
        self, controller: LoneController, broker: RecordedBroker, **changes: Any
    ) -> Any:
        """Register, and once more after NOT_CONTROLLER, as brokers do; the last response."""
        for _ in range(2):
            await until(lambda: controller.active)
            answer = await broker.register(controller.listener_port, **changes)
            if answer.error_code != ErrorCode.NOT_CONTROLLER:
                return answer
        raise AssertionError("NOT_CONTROLLER twice")

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()
        for controller in self.controllers:
            if isinstance(controller.store, HeldStore):
                # A test that failed meanwhile must end, too.
                controller.store.free.set()
            await controller.stop()


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await scenario(world)
        finally:
            await world.close()

    asyncio.run(main())


def topic(name: str, partitions: int = -1, factor: int = -1, **configs: str) -> Any:
    request = messages.CreateTopicsRequest
    return request(
        topics=[
            request.CreatableTopic(
                name,
                partitions,
                factor,
                configs=[
                    request.CreatableTopicConfig(key.replace("_", "."), value)
                    for key, value in configs.items()
                ],
            )
        ],
        timeout_ms=25_000,
    )


class HeldStore(MemoryStore):
    """A store whose writes wait while a test holds them."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.free = asyncio.Event()
        self.free.set()
        self.reached = asyncio.Event()

    async def multi(self, operations: Any) -> Any:
        self.reached.set()
        await self.free.wait()
        return await super().multi(operations)
