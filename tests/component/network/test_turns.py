"""A turn of the loop ends by time, however many connections ask: addresses are served in turn."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.lone_broker import Peer
from tests.support.network_server import heartbeat, until
from tests.support.proofs import prove, secret_in, write_secret
from tests.support.set_clock import SetClock, burn
from tidelog.model.api_keys import ApiKey
from tidelog.network import api_versions
from tidelog.network.connection_state import TURN
from tidelog.network.router import Handler, Router, Scope
from tidelog.network.server import Server
from tidelog.network.turns import CHECK_EVERY, RequestTurns
from tidelog.protocol import codec, messages
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.pace import REQUESTS_MS
from tidelog.runtime.seams import Seams

FLOOD = "127.0.0.2"
CONNECTIONS, REQUESTS = 40, 32
REQUEST_S = 0.001
IN_A_TURN = int(REQUESTS_MS / 1000 / REQUEST_S) + 1
"""Requests that are served until a turn is over, the one included that it waits for."""


@pytest.fixture
def run() -> Iterator[Any]:
    """Run a coroutine on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner.run


class Slow:
    """Requests that take a millisecond each, at once or in steps, and which address they are of."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.served: list[str] = []
        self.most_in_a_turn = 0
        self.is_held = False
        """Whether requests in steps go on without end."""

    async def watch(self) -> None:
        """Count what is served between two turns of a task of another kind."""
        while True:
            before = len(self.served)
            await asyncio.sleep(0)
            self.most_in_a_turn = max(self.most_in_a_turn, len(self.served) - before)

    def router(self) -> Router:
        handlers = [
            Handler(ApiKey.HEARTBEAT, Scope.CLIENT, self.heartbeat),
            Handler(ApiKey.LIST_GROUPS, Scope.CLIENT, self.in_steps),
            Handler(ApiKey.DESCRIBE_GROUPS, Scope.CLIENT, self.later_in_steps),
        ]
        return Router([api_versions.HANDLER, *handlers])

    def heartbeat(self, _: Any, _request: Any, context: Any) -> Any:
        burn(REQUEST_S)
        self.served.append(context.client_host)
        return messages.HeartbeatResponse(error_code=0)

    def in_steps(self, _: Any, _request: Any, context: Any) -> Any:
        while self.is_held:
            burn(REQUEST_S)
            yield 0
        for _step in range(REQUESTS):
            burn(REQUEST_S)
            self.served.append(context.client_host)
            yield 0
        return messages.ListGroupsResponse(error_code=0)

    async def later_in_steps(self, server: Any, request: Any, context: Any) -> Any:
        """Wait, and do the same then: so does Metadata where leaders are followed."""
        return self.in_steps(server, request, context)


@asynccontextmanager
async def serving(slow: Slow, secret: ClusterSecret | None = None) -> AsyncIterator[int]:
    found = slow.server = Server(slow.router(), None, None, secret)
    try:
        yield await found.listen("PLAINTEXT", "127.0.0.1", 0)
    finally:
        await found.stop(grace_s=0.1)


def many_requests() -> bytes:
    frames = [
        b"".join(codec.encode_request(ApiKey.HEARTBEAT, 4, number, "c", heartbeat("g")))
        for number in range(REQUESTS)
    ]
    return b"".join(frames)


def one_long_request() -> bytes:
    chunks = codec.encode_request(ApiKey.LIST_GROUPS, 4, 0, "c", messages.ListGroupsRequest())
    return b"".join(chunks)


def one_that_waits_first() -> bytes:
    request = messages.DescribeGroupsRequest()
    return b"".join(codec.encode_request(ApiKey.DESCRIBE_GROUPS, 5, 0, "c", request))


FLOODS = pytest.mark.parametrize(
    "sent",
    [many_requests(), one_long_request(), one_that_waits_first()],
    ids=["many", "steps", "waits first"],
)


@asynccontextmanager
async def flood(port: int, sent: bytes) -> AsyncIterator[list[socket.socket]]:
    """Connections of one address that have all asked for much and wait for nothing."""
    links = []
    try:
        for _ in range(CONNECTIONS):
            link = socket.socket()
            links.append(link)
            link.bind((FLOOD, 0))
            link.connect(("127.0.0.1", port))
            link.sendall(sent)
        yield links
    finally:
        for link in links:
            link.close()


@FLOODS
def test_many_connections_that_ask_for_much_share_one_turn(run: Any, sent: bytes) -> None:
    async def main() -> None:
        slow = Slow()
        async with serving(slow) as port, flood(port, sent):
            watching = asyncio.create_task(slow.watch())
            # All of it: no request is forgotten.
            await until(lambda: len(slow.served) == CONNECTIONS * REQUESTS)
            watching.cancel()
            # The sockets are read between two turns: a new client may then still be in the first.
            assert slow.most_in_a_turn <= IN_A_TURN + CHECK_EVERY

    run(main())


@FLOODS
def test_an_address_waits_for_one_turn_of_another(run: Any, sent: bytes) -> None:
    async def main() -> None:
        slow = Slow()
        async with serving(slow) as port:
            other = await Peer.connect(port)
            async with flood(port, sent):
                await until(lambda: len(slow.served) > CONNECTIONS)
                longest = 0
                for _ in range(5):
                    before = len(slow.served)
                    await other.ask(heartbeat("g"), 4)
                    longest = max(longest, len(slow.served) - before)
                assert len(slow.served) < CONNECTIONS * REQUESTS, "the flood is over too early"
            # What is under way when it comes, and one turn of the other address.
            assert longest <= 4 * IN_A_TURN

    run(main())


def test_a_process_that_proves_the_secret_and_one_that_has_do_not_wait(
    run: Any, tmp_path: Path
) -> None:
    seams = Seams()
    file = write_secret(tmp_path)
    secret = ClusterSecret(seams.disk, str(file), seams.clock, seams.random)

    async def main() -> None:
        slow = Slow()
        async with serving(slow, secret) as port, flood(port, many_requests()):
            await until(lambda: len(slow.served) > CONNECTIONS)
            before = len(slow.served)
            with closing(socket.socket()) as link:
                # Of the same address as the flood.
                link.bind((FLOOD, 0))
                link.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(link, ("127.0.0.1", port))
                process = Peer(*await asyncio.open_connection(sock=link))
                await prove(process, secret_in(file))
                await process.ask(heartbeat("g"), 4)
            # Four requests; one that waits follows a turn of each connection of the flood.
            assert len(slow.served) - before < CONNECTIONS * IN_A_TURN
            assert len(slow.served) < CONNECTIONS * REQUESTS, "the flood is over too early"

    run(main())


class Waits:
    """One that waits for a turn."""

    def __init__(self, turns: RequestTurns, client_host: str, log: list[str], times: int) -> None:
        self.client_host = client_host
        self._turns, self._log, self._times = turns, log, times

    def take_turn(self) -> None:
        self._log.append(self.client_host)
        self._times -= 1
        if self._times:
            self._turns.wait(self)
        else:
            raise ZeroDivisionError("planted")


def test_addresses_are_served_in_turn_and_a_bug_in_one_holds_up_no_other(run: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, __: None)
        turns, log = RequestTurns(loop, Seams().clock), list[str]()
        for host, times in [("a", 3), ("a", 3), ("a", 3), ("b", 3), ("c", 1)]:
            turns.wait(Waits(turns, host, log, times))
        await until(lambda: len(log) == 13)
        assert "".join(log[:9]) == "abcababaa"
        assert not turns._waiting

    run(main())


def test_a_lone_request_waits_only_while_the_loop_has_not_been_elsewhere(run: Any) -> None:
    """A request after a silence, or in the next turn of a busy loop, is served when it comes."""

    async def main() -> None:
        clock = SetClock()
        turns = RequestTurns(asyncio.get_running_loop(), clock)
        assert not turns.is_over
        clock.now_ms += REQUESTS_MS
        assert turns.is_over, "five milliseconds of requests, and no turn for anything else"
        await asyncio.sleep(0)
        assert not turns.is_over
        assert turns.end_ms() == clock.now_ms + REQUESTS_MS

    run(main())


def test_a_request_that_comes_after_waiting_ones_is_in_their_turn(run: Any) -> None:
    async def main() -> None:
        clock, seen = SetClock(), list[bool]()
        loop = asyncio.get_running_loop()
        turns = RequestTurns(loop, clock)

        class Takes:
            client_host = "a"

            def take_turn(self) -> None:
                clock.now_ms += REQUESTS_MS
                # What it looks at itself begins no turn of its own, either.
                seen.append(turns.is_over)

        turns.wait(Takes())
        loop.call_soon(lambda: seen.append(turns.is_over))
        await until(lambda: len(seen) == 2)
        assert seen == [True, True]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not turns.is_over

    run(main())


def test_a_request_that_waits_for_the_loop_is_not_late(run: Any) -> None:
    """The deadline of a first request is about the client, not about the server's other clients."""

    async def main() -> None:
        slow = Slow()
        # Until all are seen: on a busy machine the first had its answer before the last came.
        slow.is_held = True
        async with serving(slow) as port, flood(port, one_long_request()) as links:
            found = slow.server
            assert found is not None
            await until(
                lambda: (
                    len(found.connections) == CONNECTIONS
                    and all(each.state.blocked for each in found.connections)
                )
            )
            late = [each for each in found.frame_times.awaited if each.state.blocked & TURN]
            assert late, "no connection waits for a turn"
            found.frame_times.awaited.update(dict.fromkeys(late, 0.0))
            found.frame_times.check()
            slow.is_held = False
            await until(lambda: len(slow.served) == CONNECTIONS * REQUESTS)
            for link in links:
                link.setblocking(False)
                await until(lambda link=link: can_read(link))
                assert len(link.recv(100)) > 4, "closed without an answer"

    run(main())


def can_read(link: socket.socket) -> bool:
    # Not `select`: it takes no descriptor above 1,023, which this process may have reached.
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(0))
