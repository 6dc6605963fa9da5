"""Frames, order of answers, back-pressure and limits of the server, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from tests.support.network_server import (
    Harness,
    Peer,
    heartbeat,
    port_of,
    produce,
    serving,
    turn,
    until,
)
from tests.support.processes import DEADLINE_S, free_ports
from tidelog.model.api_keys import ApiKey
from tidelog.model.principals import ANONYMOUS
from tidelog.network.limits import Limits
from tidelog.network.router import Handler, RequestContext, Scope
from tidelog.network.server import ListenError, Server
from tidelog.protocol import codec, messages


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner.run


def test_answers_come_in_the_order_of_requests(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (_, connect):
            peer = await connect()
            for number in range(3):
                peer.send(ApiKey.PRODUCE, 9, number, produce(b"x", acks=-1))
            peer.send(ApiKey.HEARTBEAT, 4, 3, heartbeat("g"))
            await until(lambda: len(harness.pending) == 3 and harness.seen)
            for future in reversed(harness.pending):
                future.set_result(messages.ProduceResponse())
            assert [await peer.receive_correlation() for _ in range(4)] == [0, 1, 2, 3]

    run(main())


def test_a_pending_handler_that_is_not_pipelined_mutes_its_connection(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (_, connect):
            peer, other = await connect(), await connect()
            peer.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("park"))
            peer.send(ApiKey.HEARTBEAT, 4, 2, heartbeat("later"))
            await until(lambda: harness.pending)
            other.send(ApiKey.HEARTBEAT, 4, 9, heartbeat("other"))
            assert await other.receive_correlation() == 9
            assert harness.seen == ["park", "other"]
            harness.pending[0].set_result(messages.HeartbeatResponse())
            assert [await peer.receive_correlation() for _ in range(2)] == [1, 2]
            assert harness.seen == ["park", "other", "later"]

    run(main())


def test_an_answer_to_a_pipelined_request_lets_no_other_pass_one_that_is_not(run: Any) -> None:
    """A pipelined handler that is a coroutine took the other's mark away with its own answer."""

    async def main() -> None:
        harness = Harness()
        go_on = asyncio.Event()

        async def pipelined(_: Any, _request: Any, _context: Any) -> Any:
            await go_on.wait()
            return messages.ListGroupsResponse(error_code=0)

        router = harness.router()
        router.add([Handler(ApiKey.LIST_GROUPS, Scope.CLIENT, pipelined, pipelined=True)])
        server = Server(router, None)
        port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        peer.send(ApiKey.LIST_GROUPS, 4, 1, messages.ListGroupsRequest())
        peer.send(ApiKey.HEARTBEAT, 4, 2, heartbeat("park"))
        peer.send(ApiKey.HEARTBEAT, 4, 3, heartbeat("after it"))
        await until(lambda: harness.pending)
        go_on.set()
        assert await peer.receive_correlation() == 1
        assert harness.seen == ["park"]
        harness.pending[0].set_result(messages.HeartbeatResponse(error_code=0))
        assert [await peer.receive_correlation() for _ in range(2)] == [2, 3]
        await server.stop(grace_s=0.2)

    run(main())


def test_requests_of_all_sizes_arrive_whole_and_buffers_shrink_again(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, connect):
            peer = await connect()
            sizes = [1, 100, 70_000, 3_000_000, 16_000, 65_536, 5, 1_048_576]
            bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
            for number, body in enumerate(bodies):
                peer.send(ApiKey.PRODUCE, 9, number, produce(body))
            assert [await peer.receive_correlation() for _ in sizes] == list(range(len(sizes)))
            assert harness.record_bytes == bodies
            assert server.memory.used > 0
            for number in range(600):
                peer.send(ApiKey.HEARTBEAT, 4, number, heartbeat("g"))
                assert await peer.receive_correlation() == number
            assert server.memory.used == 0

    run(main())


def test_one_byte_at_a_time(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (_, connect):
            peer = await connect()
            frame = b"".join(codec.encode_request(ApiKey.HEARTBEAT, 4, 7, "c", heartbeat("g")))
            for byte in frame:
                peer.writer.write(bytes([byte]))
                await peer.writer.drain()
                await turn()
            assert await peer.receive_correlation() == 7

    run(main())


def test_acks_0_has_no_answer_and_can_only_be_refused_by_closing(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (_, connect):
            peer = await connect()
            peer.send(ApiKey.PRODUCE, 9, 1, produce(b"x", acks=0))
            peer.send(ApiKey.HEARTBEAT, 4, 2, heartbeat("g"))
            assert await peer.receive_correlation() == 2
            peer.send(ApiKey.PRODUCE, 9, 3, produce(b"x", acks=0, timeout_ms=1))
            assert await peer.ended()

    run(main())


def test_a_failing_handler_is_answered_and_logged(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, connect):
            peer = await connect()
            peer.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("bug"))
            _, answer = codec.decode_response(12, 4, memoryview(await peer.receive()))
            assert answer.error_code == -1
            assert server.router.tallies[ApiKey.HEARTBEAT].failures == 1

    run(main())
    assert "ZeroDivisionError: planted" in caplog.text


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", -1) + b"x" * 40,
        struct.pack(">i", 3),
        struct.pack(">i", 2**30),
        struct.pack(">ihhih", 50, 12, 4, 1, 30_000) + b"x" * 40,
        struct.pack(">ihhih", 14, 12, 4, 1, 4) + b"\xff\xfe\xff\xfe" + b"\0" * 2,
        struct.pack(">ihhih", 10, 12, 99, 1, -1),
        struct.pack(">ihhih", 10, 9_999, 0, 1, -1),
        struct.pack(">ihhih", 16, 12, 4, 1, -1) + b"\0\xff\xff\xff\xff\x0f",
    ],
)
def test_hostile_bytes_close_the_connection_with_one_line(
    run: Any, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, connect):
            peer = await connect()
            peer.writer.write(sent)
            assert await peer.ended()
            assert server.memory.used == 0
            good = await connect()
            good.send(ApiKey.HEARTBEAT, 4, 2, heartbeat("g"))
            assert await good.receive_correlation() == 2

    caplog.set_level(logging.WARNING)
    run(main())
    assert len([r for r in caplog.records if r.name.startswith("tidelog")]) == 1


@pytest.mark.parametrize("more", [0, 1])
def test_a_request_has_so_many_bytes_at_most(run: Any, more: int) -> None:
    async def main() -> None:
        request = heartbeat("g" * 900)
        frame = b"".join(codec.encode_request(ApiKey.HEARTBEAT, 0, 1, "test", request))
        limits = Limits(max_request_bytes=len(frame) - 4 - more)
        async with serving(Harness(), limits) as (_, connect):
            peer = await connect()
            peer.writer.write(frame)
            if more:
                assert await peer.ended()
            else:
                assert await peer.receive_correlation() == 1

    run(main())


def test_a_client_that_announces_much_and_sends_nothing_gets_no_memory(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, connect):
            peers = [await connect() for _ in range(50)]
            for peer in peers:
                peer.writer.write(struct.pack(">i", 100_000_000) + b"\0" * 100)
            await until(lambda: server.counts.bytes_in == 50 * 104)
            assert server.memory.used <= 50 * 65_536

    run(main())


def test_an_api_versions_above_ours_is_answered_in_version_0(run: Any) -> None:
    async def main() -> None:
        async with serving(Harness()) as (_, connect):
            peer = await connect()
            peer.writer.write(struct.pack(">ihhih", 13, 18, 5, 77, 1) + b"c\0\0")
            frame = memoryview(await peer.receive())
            correlation, error, count = struct.unpack_from(">ihi", frame)
            assert (correlation, error, count) == (77, 35, 4)
            keys = [struct.unpack_from(">hhh", frame, 10 + 6 * n) for n in range(count)]
            assert keys == [(0, 0, 11), (1, 4, 12), (12, 0, 4), (18, 0, 4)]
            peer.send(ApiKey.API_VERSIONS, 3, 78, messages.ApiVersionsRequest("test", "1"))
            _, answer = codec.decode_response(18, 3, memoryview(await peer.receive()))
            assert (answer.error_code, len(answer.api_keys)) == (0, 4)

    run(main())


def test_a_client_that_does_not_read_is_not_served_further(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        limits = Limits(unsent_answer_bytes=20_000_000)
        async with serving(harness, limits) as (server, connect):
            lazy = socket.socket()
            lazy.connect(("127.0.0.1", port_of(server)))
            request = messages.FetchRequest(max_bytes=8_000_000, topics=[])
            frame = b"".join(codec.encode_request(1, 12, 1, "lazy", request))
            lazy.sendall(frame * 50)
            await until(lambda: server.memory.answers > 0)
            other = await connect()
            other.send(ApiKey.HEARTBEAT, 4, 2, heartbeat("g"))
            assert await other.receive_correlation() == 2
            assert server.router.tallies[ApiKey.FETCH].requests == 1
            assert server.counts.bytes_out < 9_000_000
            lazy.close()
            await until(lambda: server.memory.answers == 0 and len(server.connections) == 1)

    run(main())


def test_many_large_requests_share_a_small_memory(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        limits = Limits(queued_request_bytes=3_000_000)
        async with serving(harness, limits) as (server, connect):
            peers = [await connect() for _ in range(40)]
            most = 0
            for number, peer in enumerate(peers):
                peer.send(ApiKey.PRODUCE, 9, number, produce(bytes(1_000_000)))
                peer.send(ApiKey.PRODUCE, 9, number, produce(bytes(1_000_000)))

            async def one(peer: Peer, number: int) -> None:
                nonlocal most
                for _ in range(2):
                    assert await peer.receive_correlation() == number
                    most = max(most, server.memory.used)

            await asyncio.gather(*(one(peer, n) for n, peer in enumerate(peers)))
            assert len(harness.record_bytes) == 80
            assert most <= 5_100_000

    run(main())


def test_pipelined_requests_are_bounded(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness, Limits(max_pipelined=10)) as (_, connect):
            peer = await connect()
            for number in range(25):
                peer.send(ApiKey.PRODUCE, 9, number, produce(b"x", acks=-1))
            await until(lambda: len(harness.pending) == 10)
            await turn()
            assert len(harness.pending) == 10
            for released in range(25):
                await until(lambda: len(harness.pending) > released)  # noqa: B023
                harness.pending[released].set_result(messages.ProduceResponse())
            assert [await peer.receive_correlation() for _ in range(25)] == list(range(25))

    run(main())


def test_futures_are_cancelled_when_the_client_goes(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, connect):
            peer = await connect()
            peer.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("watch"))
            await peer.receive()
            peer.send(ApiKey.HEARTBEAT, 4, 1, heartbeat("park"))
            await until(lambda: harness.pending)
            peer.writer.close()
            await until(lambda: harness.pending[0].cancelled())
            assert (len(server.connections), harness.closed) == (0, 1)

    run(main())


def test_limits_of_connections(run: Any) -> None:
    async def main() -> None:
        async with serving(Harness(), Limits(max_connections_per_ip=2)) as (server, connect):
            first, second, third = await connect(), await connect(), await connect()
            assert await third.ended()
            first.writer.close()
            await until(lambda: len(server.connections) == 1)
            fourth = await connect()
            for peer in (second, fourth):
                peer.send(ApiKey.HEARTBEAT, 4, 2, heartbeat("g"))
                assert await peer.receive_correlation() == 2

    run(main())


def test_a_stop_answers_what_is_pending(run: Any) -> None:
    async def main() -> None:
        harness = Harness()
        async with serving(harness) as (server, connect):
            peer = await connect()
            peer.send(ApiKey.PRODUCE, 9, 5, produce(b"x", acks=-1))
            await until(lambda: harness.pending)
            stopping = asyncio.ensure_future(server.stop(grace_s=DEADLINE_S))
            await turn()
            harness.pending[0].set_result(messages.ProduceResponse())
            assert await peer.receive_correlation() == 5
            assert await peer.ended()
            await stopping

    run(main())


def test_a_port_in_use_is_one_clear_line(run: Any) -> None:
    async def main() -> None:
        async with serving(Harness()):
            (port,) = free_ports(1)
            with socket.socket() as holder:
                holder.bind(("127.0.0.1", port))
                holder.listen()
                server = Server(Harness().router(), None)
                with pytest.raises(ListenError, match=f"PLAINTEXT://127.0.0.1:{port}: the port"):
                    await server.listen("PLAINTEXT", "127.0.0.1", port)

    run(main())


def test_a_delayed_request_does_not_keep_its_connection_for_ever() -> None:
    class Connection:
        pending: Any = None

    connection: Any = Connection()
    connection.pending = RequestContext(connection, 0, 1, "", ANONYMOUS)
    kept = weakref.ref(connection)
    del connection
    gc.collect()
    assert kept() is None
