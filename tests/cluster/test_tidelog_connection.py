"""One connection against peers that misbehave: old, slow, silent, wrong.

Needs no broker: each peer is a few scripted lines.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.support.processes import DEADLINE_S, free_ports
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import (
    ConnectionLost,
    InvalidAnswer,
    RequestTimedOut,
    VersionUnsupported,
)
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import codec, messages
from tidelog.runtime.loop import new_event_loop

Reply = Callable[[codec.RequestHeader, asyncio.StreamWriter], Awaitable[None] | None]

VERSIONS = [(ApiKey.API_VERSIONS, 0, 4), (ApiKey.METADATA, 0, 8), (ApiKey.FETCH, 20, 22)]


def versions(error: int = 0) -> messages.ApiVersionsResponse:
    return messages.ApiVersionsResponse(
        error_code=error,
        api_keys=[
            messages.ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=least, max_version=most
            )
            for key, least, most in VERSIONS
        ],
    )


def send(writer: asyncio.StreamWriter, header: codec.RequestHeader, answer: Any) -> None:
    writer.writelines(
        codec.encode_response(header.api_key, header.api_version, header.correlation_id, answer)
    )


async def against(
    reply: Reply, work: Callable[[ClientConnection], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Connect to a peer that answers ApiVersions well and everything else by ``reply``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                header = codec.decode_request_header(memoryview(frame))
                if header.api_key == ApiKey.API_VERSIONS and options.get("negotiate", True):
                    send(writer, header, versions())
                else:
                    done = reply(header, writer)
                    if done is not None:
                        await done
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with asyncio.timeout(DEADLINE_S):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        connection = await connect("127.0.0.1", server.sockets[0].getsockname()[1], **options)
        try:
            await work(connection)
        finally:
            connection.close()
            server.close()


def metadata(cluster_id: str) -> messages.MetadataResponse:
    return messages.MetadataResponse(cluster_id=cluster_id)


def test_answers_go_to_their_requests() -> None:
    asked: list[codec.RequestHeader] = []

    def reply(header: codec.RequestHeader, writer: asyncio.StreamWriter) -> None:
        asked.append(header)
        if len(asked) == 3:
            for each in asked:
                send(writer, each, metadata(str(each.correlation_id)))

    async def work(connection: ClientConnection) -> None:
        answers = await asyncio.gather(
            *(connection.send(messages.MetadataRequest()) for _ in range(3))
        )
        ids = [answer.cluster_id for answer in answers]
        assert ids == [str(header.correlation_id) for header in asked]
        assert all(header.client_id == "me" and header.api_version == 8 for header in asked)
        assert connection.in_flight == 0

    asyncio.run(against(reply, work, client_id="me"))


def test_at_most_as_many_are_under_way_as_allowed_and_none_overtakes() -> None:
    waiting: list[tuple[codec.RequestHeader, asyncio.StreamWriter]] = []

    def reply(header: codec.RequestHeader, writer: asyncio.StreamWriter) -> None:
        waiting.append((header, writer))

    async def work(connection: ClientConnection) -> None:
        order: list[int] = []

        async def ask(number: int) -> None:
            await connection.send(messages.MetadataRequest())
            order.append(number)

        asking = [asyncio.create_task(ask(number)) for number in range(7)]
        for number in range(7):
            async with asyncio.timeout(DEADLINE_S):
                while not waiting:
                    await asyncio.wait(asking, timeout=0.01)
            assert connection.in_flight <= 2
            header, writer = waiting.pop(0)
            send(writer, header, metadata("c"))
            await asking[number]
        assert order == list(range(7))

    asyncio.run(against(reply, work, max_in_flight=2))


Arrived = asyncio.Queue[tuple[codec.RequestHeader, asyncio.StreamWriter]]


async def respond_to_next(arrived: Arrived) -> None:
    """Wait until a request has arrived, and respond to it."""
    header, writer = await arrived.get()
    send(writer, header, metadata("c"))


def test_a_request_of_the_turn_in_which_a_place_is_granted_does_not_overtake() -> None:
    arrived: Arrived = asyncio.Queue()

    async def work(connection: ClientConnection) -> None:
        order: list[str] = []

        async def ask(*names: str) -> None:
            for name in names:
                await connection.send(messages.MetadataRequest())
                order.append(name)

        # The task of "first" runs in the turn of its response, before that of "second", which has
        # been granted the place.
        asking = asyncio.gather(ask("first", "third"), ask("second"))
        for _ in range(3):
            await respond_to_next(arrived)
        await asking
        assert order == ["first", "second", "third"]

    asyncio.run(against(lambda *request: arrived.put_nowait(request), work, max_in_flight=1))


def test_a_request_that_cannot_be_written_keeps_no_place() -> None:
    arrived: Arrived = asyncio.Queue()

    async def work(connection: ClientConnection) -> None:
        first = asyncio.create_task(connection.send(messages.MetadataRequest()))
        unknown = asyncio.create_task(connection.send(messages.ProduceRequest()))
        last = asyncio.create_task(connection.send(messages.MetadataRequest()))
        await respond_to_next(arrived)
        await first
        with pytest.raises(VersionUnsupported, match="does not serve Produce"):
            await unknown
        await respond_to_next(arrived)
        await last

    asyncio.run(against(lambda *request: arrived.put_nowait(request), work, max_in_flight=1))


@pytest.mark.parametrize("granted", [False, True])
def test_a_request_whose_caller_gives_up_keeps_no_place(granted: bool) -> None:
    arrived: Arrived = asyncio.Queue()

    async def work(connection: ClientConnection) -> None:
        async def ask_and_cancel() -> None:
            await connection.send(messages.MetadataRequest())
            given_up.cancel()

        # In the turn of its response the first caller runs before the one that waits, which has
        # been granted the place.
        if granted:
            first = asyncio.create_task(ask_and_cancel())
        else:
            first = asyncio.create_task(connection.send(messages.MetadataRequest()))
        given_up = asyncio.create_task(connection.send(messages.MetadataRequest()))
        last = asyncio.create_task(connection.send(messages.MetadataRequest()))
        arrived.put_nowait(await arrived.get())
        if not granted:
            given_up.cancel()
        for request in (first, last):
            await respond_to_next(arrived)
            await request
        assert given_up.cancelled()
        assert connection.in_flight == 0

    asyncio.run(against(lambda *request: arrived.put_nowait(request), work, max_in_flight=1))


def test_versions_are_the_highest_that_both_know() -> None:
    async def work(connection: ClientConnection) -> None:
        assert connection.version_of(ApiKey.METADATA) == 8
        assert connection.version_of(ApiKey.METADATA, limit=3) == 3
        assert not connection.speaks(ApiKey.FETCH)
        assert not connection.speaks(ApiKey.PRODUCE)
        with pytest.raises(VersionUnsupported, match="serves Fetch 20-22"):
            await connection.send(messages.FetchRequest())
        with pytest.raises(VersionUnsupported, match="does not serve Produce"):
            await connection.send(messages.ProduceRequest())

    asyncio.run(against(lambda _header, _writer: None, work))


def test_a_peer_that_does_not_know_our_api_versions() -> None:
    async def work() -> None:
        asked: list[int] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for error in (35, 0):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header = codec.decode_request_header(memoryview(await reader.readexactly(size)))
                asked.append(header.api_version)
                answer = versions(error)
                answer.api_keys[0].max_version = 2
                version = 0 if error else header.api_version
                writer.writelines(
                    codec.encode_response(header.api_key, version, header.correlation_id, answer)
                )

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        connection = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
        assert asked == [4, 2]
        assert connection.version_of(ApiKey.METADATA) == 8
        connection.close()
        server.close()

    asyncio.run(work())


def test_without_negotiation_nothing_is_sent_first() -> None:
    seen: list[int] = []

    def reply(header: codec.RequestHeader, writer: asyncio.StreamWriter) -> None:
        seen.append(header.api_key)
        send(writer, header, metadata("c"))

    async def work(connection: ClientConnection) -> None:
        await connection.send(messages.MetadataRequest(), 5)
        assert seen == [ApiKey.METADATA]

    asyncio.run(against(reply, work, negotiate=False))


def test_a_late_answer_ends_the_connection() -> None:
    async def work(connection: ClientConnection) -> None:
        patient = asyncio.create_task(connection.send(messages.MetadataRequest()))
        with pytest.raises(RequestTimedOut, match="Metadata within 50 ms"):
            await connection.send(messages.MetadataRequest(), timeout_ms=50)
        with pytest.raises(RequestTimedOut):
            await patient
        assert connection.closed

    asyncio.run(against(lambda _header, _writer: None, work))


def test_a_greeting_has_one_time_for_all_of_it_and_the_error_names_that_time() -> None:
    """It named what was left of it for the last request: "within 1 ms"."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Older than this client: it is asked again, and mute then.
        try:
            for answered in (True, False, False):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header = codec.decode_request_header(memoryview(await reader.readexactly(size)))
                if answered:
                    answer = versions(ErrorCode.UNSUPPORTED_VERSION)
                    api, number = header.api_key, header.correlation_id
                    writer.writelines(codec.encode_response(api, 0, number, answer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        said = f"127.0.0.1:{port} did not complete the handshake within 400 ms: "
        said += "no response to ApiVersions"
        try:
            with pytest.raises(RequestTimedOut, match=f"^{said}$"):
                await connect("127.0.0.1", port, greeting_timeout_ms=400)
        finally:
            server.close()

    asyncio.run(work())


def test_a_peer_that_closes_is_said_once_and_to_all() -> None:
    reasons: list[ConnectionLost] = []

    def reply(_header: codec.RequestHeader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def work(connection: ClientConnection) -> None:
        found = await asyncio.gather(
            *(connection.send(messages.MetadataRequest()) for _ in range(9)),
            return_exceptions=True,
        )
        assert len(found) == 9 and all(isinstance(each, ConnectionLost) for each in found)
        assert len(reasons) == 1

    asyncio.run(against(reply, work, on_closed=reasons.append))


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">ii", 4, 999),
        struct.pack(">ii", 4, 2) + b"",
        struct.pack(">iiii", 12, 2, -5, -5),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -1),
        struct.pack(">iii", 8, 2, 0) * 2,
    ],
    ids=["another id", "cut", "negative lengths", "huge", "negative size", "too many"],
)
def test_wrong_bytes_end_the_connection(answer: bytes) -> None:
    def reply(_header: codec.RequestHeader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async def work(connection: ClientConnection) -> None:
        with pytest.raises(InvalidAnswer):
            await connection.send(messages.MetadataRequest())
        assert connection.closed

    asyncio.run(against(reply, work))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop])
def test_a_cancellation_that_meets_a_refusal_is_not_forgotten(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A broker that is asked to stop while it looks for its controller would go on looking."""
    (unused,) = free_ports(1)

    async def work() -> None:
        turns, ended = 0, False
        while not ended:
            connecting = asyncio.create_task(connect("127.0.0.1", unused))
            for _ in range(turns):
                await asyncio.sleep(0)
            ended = not connecting.cancel()
            await asyncio.wait([connecting])
            assert connecting.cancelled() != ended, f"cancelled after {turns} turns of the loop"
            turns += 1
        with pytest.raises(ConnectionLost, match="cannot be reached"):
            connecting.result()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(work(), DEADLINE_S))


def test_a_request_that_cannot_be_written_leaves_the_connection_whole() -> None:
    def reply(header: codec.RequestHeader, writer: asyncio.StreamWriter) -> None:
        send(writer, header, metadata("c"))

    async def work(connection: ClientConnection) -> None:
        with pytest.raises(codec.EncodeError):
            await connection.send(messages.MetadataRequest(topics="x"))  # type: ignore[arg-type]
        assert (await connection.send(messages.MetadataRequest())).cluster_id == "c"

    asyncio.run(against(reply, work))
