"""TLS over real sockets: what is served, what is refused and with which line, and attacks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.certificates import Authority, files_of, name_of
from tests.support.network_server import Harness, Peer, heartbeat, produce, until
from tests.support.processes import DEADLINE_S
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import ConnectionLost
from tidelog.model.api_keys import ApiKey
from tidelog.network import handshakes
from tidelog.network.connection import Connection
from tidelog.network.limits import Limits
from tidelog.network.server import Server
from tidelog.protocol import messages
from tidelog.runtime.clock import RealClock
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.tls_files import TlsFiles

MOST_WAIT_S = 0.1
"""How long another connection may wait for the work of handshakes."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def keys(authority: Authority) -> TlsFiles:
    return authority.files(authority.issue("server.pem"))


@asynccontextmanager
async def serving(
    files: TlsFiles, harness: Harness | None = None, secret: ClusterSecret | None = None
) -> AsyncIterator[tuple[Server, int]]:
    server = Server((harness or Harness()).router(), None, Limits(), secret)
    port = await server.listen("SSL", "127.0.0.1", 0, files)
    try:
        yield server, port
    finally:
        await server.stop(grace_s=0.2)


async def opened(port: int, files: TlsFiles | None, host: str = "127.0.0.1") -> ClientConnection:
    return await connect(host, port, tls=files, connect_timeout_ms=int(DEADLINE_S * 1000))


async def peer(port: int, context: ssl.SSLContext) -> Peer:
    """A client with Python's own TLS."""
    return Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=2**26))


def client_context(authority: Authority, **options: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.trusted))
    for name, value in options.items():
        setattr(context, name, value)
    return context


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


MOST_HALF_BYTES = 100 * 1024
"""What both ends of a half handshake cost: 53 KiB were measured, most of it OpenSSL's."""

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_large_requests_and_responses_arrive_whole(
    authority: Authority, keys: TlsFiles, version: ssl.TLSVersion, loop: Any
) -> None:
    """Both ways at once, far beyond every buffer, in both versions and on both loops."""

    async def run() -> None:
        harness = Harness()
        async with serving(keys, harness) as (_, port), asyncio.timeout(DEADLINE_S):
            context = client_context(authority, minimum_version=version, maximum_version=version)
            client = await peer(port, context)
            content = random.Random(5).randbytes(3_000_000)
            for number in range(4):
                client.send(ApiKey.PRODUCE, 9, number, produce(content))
            for wanted in (0, 1, 2, 3):
                assert await client.receive_correlation() == wanted
            assert harness.record_bytes == [content] * 4
            fetch = messages.FetchRequest(max_bytes=20_000_000)
            client.send(ApiKey.FETCH, 4, 9, fetch)
            assert len(await client.receive()) > 20_000_000
            client.writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


def test_our_client_and_our_server_speak(authority: Authority, keys: TlsFiles) -> None:
    async def run() -> None:
        async with serving(keys) as (server, port):
            for host in ("127.0.0.1", "localhost"):
                connection = await opened(port, authority.files(None), host)
                answer = await connection.send(heartbeat("g"), 4)
                assert answer.error_code == 0
                connection.close()
            await until(lambda: not server.connections)

    asyncio.run(run())


def test_no_part_of_a_file_goes_out_beside_the_encryption(
    authority: Authority, keys: TlsFiles
) -> None:
    """The transport has a plain socket of the system, too: sendfile would use it."""

    async def run() -> None:
        async with serving(keys) as (server, port):
            plain_port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
            for files, where, sends_files in (
                (authority.files(None), port, False),
                (None, plain_port, True),
            ):
                client = await opened(where, files)
                (served,) = server.connections
                assert isinstance(served, Connection)
                assert served.can_send_files() is sends_files
                client.close()
                await until(lambda: not server.connections)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("rules", "subject", "principal"),
    [
        ("", {"O": "Example", "CN": "alice"}, "User:CN=alice,O=Example"),
        ("RULE:^CN=([^,]+).*$/$1/U", {"O": "Example", "CN": "alice"}, "User:ALICE"),
        ("RULE:^CN=([^,]+)$/$1/", {"O": "Example", "CN": "alice"}, None),
        ("", {"CN": "two\nlines"}, None),
        ("", {"CN": "x" * 64, "OU": "y" * 64}, f"User:OU={'y' * 64},CN={'x' * 64}"),
    ],
)
def test_the_certificate_of_a_client_names_its_principal(
    authority: Authority,
    tmp_path: Path,
    rules: str,
    subject: dict[str, str],
    principal: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef0123")
    secret = ClusterSecret(RealDisk(), str(tmp_path / "secret"), RealClock(), random.Random(1))
    more = {"ssl_client_auth": "required", "ssl_principal_mapping_rules": rules}
    files = authority.files(authority.issue("server.pem"), **more)
    client_keys = authority.issue("client.pem", name_of(**subject))

    async def run() -> None:
        async with serving(files, secret=secret) as (server, port):
            if principal is None:
                with pytest.raises(ConnectionLost):
                    await opened(port, authority.files(client_keys))
                return
            client = await opened(port, authority.files(client_keys))
            (served,) = server.connections
            assert isinstance(served, Connection)
            assert str(served.principal) == principal and not served.is_trusted
            client.close()

    asyncio.run(run())
    assert len(lines(caplog)) == (principal is None)


@pytest.mark.parametrize(
    ("case", "said", "logged"),
    [
        ("plain text", "closed the connection", "it sent no TLS"),
        ("no certificate", "requires a certificate", "it showed no certificate"),
        ("expired", "certificate", "certificate has expired"),
        ("another authority", "trust", "the certificate is refused"),
        ("the server's authority", "self-signed certificate", "does not trust"),
        ("the server has another name", "Hostname mismatch", ""),
        ("the server has no SAN", "IP address mismatch", ""),
        ("the server has expired", "certificate has expired", "found the certificate expired"),
        ("versions", "version of TLS", "version of TLS"),
    ],
)
def test_each_refusal_is_one_line_on_either_side(
    authority: Authority,
    tmp_path: Path,
    case: str,
    said: str,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = Authority(tmp_path, "other")
    hosts = {"the server has another name": ("elsewhere",), "the server has no SAN": ()}
    days = -1.0 if case == "the server has expired" else 10.0
    server_keys = authority.issue("one.pem", hosts=hosts.get(case, ("127.0.0.1",)), days=days)
    good = authority.issue("client.pem")
    client: TlsFiles | None = authority.files(good)
    more = {"ssl_client_auth": "required"}
    if case == "plain text":
        client = None
    elif case == "no certificate":
        client = authority.files(None)
    elif case == "expired":
        client = authority.files(authority.issue("old.pem", days=-1.0))
    elif case == "another authority":
        client = authority.files(other.issue("strange.pem"))
    elif case == "the server's authority":
        client = other.files(other.issue("strange.pem"))
    elif case == "versions":
        more["ssl_enabled_protocols"] = "TLSv1.3"
        client = authority.files(good, ssl_enabled_protocols="TLSv1.2")

    async def run() -> str:
        async with serving(authority.files(server_keys, **more)) as (server, port):
            host = "localhost" if case == "the server has another name" else "127.0.0.1"
            with pytest.raises(ConnectionLost) as caught:
                await opened(port, client, host)
            if logged:
                await until(lambda: lines(caplog))
            assert not server.connections
            return str(caught.value)

    text = asyncio.run(run())
    assert said in text and "\n" not in text
    found = lines(caplog)
    assert [logged in line for line in found] == [True] * bool(logged) or not logged


def test_a_client_with_tls_on_a_port_without_gets_one_line(
    authority: Authority, keys: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> str:
        async with serving(keys) as (server, _):
            port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
            with pytest.raises(ConnectionLost) as caught:
                await opened(port, authority.files(None))
            return str(caught.value)

    assert "check that this is a listener with TLS" in asyncio.run(run())
    (line,) = lines(caplog)
    assert "it began with TLS, which this listener does not speak" in line


def half_hello() -> bytes:
    """The first flight of a client, which then says nothing more."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    half = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    return outgoing.read()


def test_two_thousand_half_handshakes_hold_no_client_up(
    authority: Authority, keys: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """They cost a bounded memory, and an open connection never waits 100 ms."""
    hello = half_hello()

    async def run() -> float:
        async with serving(keys) as (server, port), asyncio.timeout(DEADLINE_S):
            served = await opened(port, authority.files(None))
            slowest, halves = 0.0, []
            for number in range(2_000):
                half = socket.socket()
                half.setblocking(False)
                await asyncio.get_running_loop().sock_connect(half, ("127.0.0.1", port))
                half.send(hello)
                halves.append(half)
                if number % 20 == 0:
                    began = time.perf_counter()
                    await served.send(heartbeat("g"), 4)
                    slowest = max(slowest, time.perf_counter() - began)
            assert 0 < server.handshakes <= handshakes.MOST_HANDSHAKES
            assert len(server.connections) == 1
            # And a new client gets in, from the same address.
            other = await opened(port, authority.files(None))
            await other.send(heartbeat("g"), 4)
            for half in halves:
                half.close()
            return slowest

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) < MOST_WAIT_S
    assert all("too many TLS handshakes" in line for line in lines(caplog))


def test_a_handshake_has_a_time_limit(
    keys: TlsFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.05)

    async def run() -> None:
        async with serving(keys) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(half_hello())
            client = Peer(reader, writer)
            async with asyncio.timeout(DEADLINE_S):
                await reader.read(-1)
            assert await client.ended()

    asyncio.run(run())
    (line,) = lines(caplog)
    assert "its TLS handshake was not complete" in line


def test_a_flood_of_tiny_records_leaves_others_their_turn(
    authority: Authority, keys: TlsFiles
) -> None:
    """A record for each byte: thousands in one read. Others are served meanwhile."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    async def run() -> float:
        loop = asyncio.get_running_loop()
        async with serving(keys) as (server, port), asyncio.timeout(DEADLINE_S):
            served = await opened(port, authority.files(None))
            flood = socket.create_connection(("127.0.0.1", port))
            flood.setblocking(False)
            wrapped = client_context(authority).wrap_bio(
                incoming, outgoing, server_hostname="127.0.0.1"
            )
            while True:
                try:
                    wrapped.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await loop.sock_sendall(flood, outgoing.read())
                    incoming.write(await loop.sock_recv(flood, 65_536))
            # A frame of 1 MB, byte by byte; its rest never comes.
            for byte in (1_000_000).to_bytes(4) + bytes(60_000):
                wrapped.write(bytes([byte]))
            sending = loop.create_task(loop.sock_sendall(flood, outgoing.read()))
            slowest = 0.0
            while not sending.done() or slowest == 0.0:
                began = time.perf_counter()
                await served.send(heartbeat("g"), 4)
                slowest = max(slowest, time.perf_counter() - began)
            await sending
            assert len(server.connections) == 2
            flood.close()
            return slowest

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) < MOST_WAIT_S


def test_a_handshake_that_does_not_end_is_cut(
    keys: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """A record says that 131,072 bytes follow in the first message; the peer sends them all."""

    async def run() -> None:
        async with serving(keys) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = b"\x01\x01\xff\xfc" + bytes(16_000)
            for _ in range(20):
                writer.write(b"\x16\x03\x01" + len(body).to_bytes(2) + body)
            async with asyncio.timeout(DEADLINE_S):
                with contextlib.suppress(ConnectionError):
                    await reader.read(-1)  # to its end

    asyncio.run(run())
    assert len(lines(caplog)) == 1


def test_a_client_that_does_not_read_holds_one_copy(authority: Authority, keys: TlsFiles) -> None:
    """What is unsent stays as it is: it is encrypted when there is room."""

    async def run() -> None:
        async with serving(keys) as (server, port), asyncio.timeout(DEADLINE_S):
            context = client_context(authority)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, limit=1_000
            )
            client = Peer(reader, writer)
            client.send(ApiKey.FETCH, 4, 1, messages.FetchRequest(max_bytes=30_000_000))
            await until(lambda: server.memory.answers > 20_000_000)
            (served,) = server.connections
            assert isinstance(served, Connection)
            transport = served.state.transport
            size = transport.get_write_buffer_size()
            assert 20_000_000 < size <= 30_000_200
            assert size - transport.unencrypted < 1_000_000
            assert len(await client.receive()) > 30_000_000
            await until(lambda: not server.memory.answers)
            writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_files_are_read_again_when_they_change(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another certificate, an authority that is trusted no longer; nonsense changes nothing."""
    other = Authority(tmp_path, "other")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.trusted.read_bytes() + other.trusted.read_bytes())
    keys = authority.issue("turned.pem", name_of(CN="before"))
    texts = authority.texts(keys, ssl_client_auth="required")
    files = files_of(texts | {"ssl.truststore.location": str(trusted)})
    good = authority.files(authority.issue("client.pem"))
    strange = other.texts(other.issue("strange.pem"))
    removed = files_of(strange | {"ssl.truststore.location": str(authority.trusted)})

    async def run() -> None:
        async with serving(files) as (_, port):
            for client in (good, removed):
                (await opened(port, client)).close()
            trusted.write_bytes(authority.trusted.read_bytes())
            files.refresh()
            with pytest.raises(ConnectionLost):
                await opened(port, removed)
            authority.issue("turned.pem", name_of(CN="after"))
            files.refresh()
            assert not files.have_changed()
            (await opened(port, good)).close()
            keys.write_text("nothing")
            files.refresh()
            assert files.have_changed()
            (await opened(port, good)).close()

    asyncio.run(run())
    said = [line for line in lines(caplog) if "what was read before stays in use" in line]
    assert len(said) == 1 and "turned.pem" in said[0]


def test_a_server_compares_its_files_by_itself(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "COMPARE_EVERY_S", 0.01)
    path = authority.issue("compared.pem")
    files = authority.files(path)
    before = files.server

    async def run() -> None:
        async with serving(files):
            authority.issue("compared.pem")
            await until(lambda: files.server is not before)

    asyncio.run(run())


def test_what_a_half_handshake_costs(keys: TlsFiles) -> None:
    """The measured number of promise 30: until its handshake is complete."""
    hello = half_hello()

    async def run() -> float:
        async with serving(keys) as (_, port):

            def resident() -> int:
                with open("/proc/self/statm") as file:
                    return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

            async def halves(count: int) -> list[asyncio.StreamWriter]:
                made = []
                for _ in range(count):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(hello)
                    await reader.readexactly(100)
                    made.append(writer)
                return made

            kept = await halves(50)
            before = resident()
            kept += await halves(200)
            each = (resident() - before) / 200
            for writer in kept:
                writer.close()
            return each

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        each = runner.run(run())
    assert each < MOST_HALF_BYTES
