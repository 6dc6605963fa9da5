"""A server of frames with handlers of the test, and a peer that writes to it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from tests.support.processes import DEADLINE_S
from tidelog.model.api_keys import ApiKey
from tidelog.network import api_versions
from tidelog.network.limits import Limits
from tidelog.network.router import CloseConnection, Handler, Router, Scope
from tidelog.network.server import Server
from tidelog.protocol import codec, messages


class Harness:
    """Handlers whose answers the test releases, and what they saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.record_bytes: list[bytes] = []
        self.pending: list[asyncio.Future[Any]] = []
        self.closed = 0

    def heartbeat(self, _: Any, request: Any, context: Any) -> Any:
        self.seen.append(request.group_id)
        if request.group_id == "park":
            future = asyncio.get_running_loop().create_future()
            self.pending.append(future)
            return future
        if request.group_id == "bug":
            raise ZeroDivisionError("planted")
        if request.group_id == "watch":
            context.connection.on_close(self._count_close)
        return messages.HeartbeatResponse(error_code=0)

    def _count_close(self) -> None:
        self.closed += 1

    def produce(self, _: Any, request: Any, context: Any) -> Any:
        for topic in request.topic_data:
            for partition in topic.partition_data:
                self.record_bytes.append(bytes(partition.records))
        if request.acks == 0:
            if request.timeout_ms == 1:
                raise CloseConnection("acks=0 was refused")
            return None
        if request.acks == 1:
            return messages.ProduceResponse(throttle_time_ms=request.timeout_ms)
        future = asyncio.get_running_loop().create_future()
        self.pending.append(future)
        return future

    async def fetch(self, _: Any, request: Any, context: Any) -> Any:
        await turn()
        part = messages.FetchResponse.PartitionData(records=bytes(request.max_bytes))
        topic = messages.FetchResponse.FetchableTopicResponse("t", partitions=[part])
        return messages.FetchResponse(responses=[topic])

    def router(self) -> Router:
        return Router(
            [
                api_versions.HANDLER,
                Handler(ApiKey.HEARTBEAT, Scope.CLIENT, self.heartbeat),
                Handler(
                    ApiKey.PRODUCE, Scope.CLIENT, self.produce, pipelined=True, versions=range(12)
                ),
                Handler(
                    ApiKey.FETCH, Scope.CLIENT, self.fetch, large_answer=True, versions=range(4, 13)
                ),
            ]
        )


class Peer:
    """A client that sends bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, key: ApiKey, version: int, correlation: int, request: Any) -> None:
        chunks = codec.encode_request(key, version, correlation, "test", request)
        self.writer.write(b"".join(chunks))

    async def receive(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def receive_correlation(self) -> int:
        return int(struct.unpack_from(">i", await self.receive())[0])

    async def ended(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


_PORTS: WeakKeyDictionary[Server, int] = WeakKeyDictionary()


def port_of(server: Server) -> int:
    """The port of a server of ``serving``."""
    return _PORTS[server]


@asynccontextmanager
async def serving(
    harness: Harness, limits: Limits | None = None
) -> AsyncIterator[tuple[Server, Callable[[], Any]]]:
    server = Server(harness.router(), None, limits)
    port = _PORTS[server] = await server.listen("PLAINTEXT", "127.0.0.1", 0)

    async def connect() -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    try:
        yield server, connect
    finally:
        await server.stop(grace_s=0.2)


async def turn() -> None:
    """Let the loop go round once."""
    loop = asyncio.get_running_loop()
    gone_round = loop.create_future()
    loop.call_soon(gone_round.set_result, None)
    await gone_round


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - any condition, not an event of ours
            await asyncio.sleep(0.002)


def heartbeat(group: str) -> Any:
    return messages.HeartbeatRequest(group_id=group, generation_id=0, member_id="")


def produce(records: bytes, acks: int = 1, timeout_ms: int = 0) -> Any:
    part = messages.ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = messages.ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    return messages.ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])
