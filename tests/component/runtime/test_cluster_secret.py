"""The file of the cluster secret, and what the process that opens a connection asks of its peer."""

from __future__ import annotations

import asyncio
import logging
import random
import tracemalloc
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.proofs import write_secret
from tidelog.broker.control_plane.session import ControllerSession, ControllerUnreachable
from tidelog.cli.cluster_secret import secret_for
from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ProofFailed
from tidelog.metadata import layout
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import Create
from tidelog.model.addresses import is_loopback
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.network import api_versions, proving
from tidelog.network.limits import Limits
from tidelog.network.router import Handler, RequestContext, Router, Scope
from tidelog.network.server import ListenError, Server
from tidelog.protocol import messages
from tidelog.protocol.secret_exchange import (
    NONCE_BYTES,
    Exchange,
    client_code,
    proves_client,
    proves_server,
    server_code,
)
from tidelog.runtime.clock import RealClock
from tidelog.runtime.cluster_secret import MAX_PEERS, READ_AGAIN_MS, ClusterSecret, SecretRefused
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.seams import Seams

OLD, NEW = "an old secret of the cluster", "a new secret of the cluster"


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def reading(path: Path, clock: Clock | None = None, optional: bool = False) -> ClusterSecret:
    chance = random.SystemRandom()
    return ClusterSecret(RealDisk(), str(path), clock or RealClock(), chance, optional)


def test_the_codes_of_both_sides_differ_and_bind_both_nonces() -> None:
    secret, ours, theirs = b"s" * 32, b"a" * 32, b"b" * 32
    codes = {
        server_code(secret, ours, theirs),
        client_code(secret, ours, theirs),
        server_code(secret, theirs, ours),
        client_code(secret, theirs, ours),
        server_code(b"t" * 32, ours, theirs),
        server_code(secret, ours, ours),
        client_code(secret, theirs, theirs),
    }
    assert len(codes) == 7
    assert proves_server(server_code(secret, ours, theirs), [b"t" * 32, secret], ours, theirs)
    assert not proves_server(client_code(secret, ours, theirs), [secret], ours, theirs)
    assert not proves_client(server_code(secret, ours, theirs), [secret], ours, theirs)
    assert not proves_client(b"", [secret], ours, theirs)
    assert not proves_client(client_code(secret, ours, theirs), [], ours, theirs)


class Uncompared(bytes):
    """Bytes whose comparison would say, by the time it takes, how far they are the same."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared byte by byte")

    __ne__ = __eq__


def test_how_long_a_comparison_takes_says_nothing() -> None:
    """As ``hmac.compare_digest`` does it, and with each of the secrets, whichever it is."""
    secret, other, ours, theirs = b"s" * 32, b"t" * 32, b"a" * 32, b"b" * 32
    for proves, code_of in ((proves_client, client_code), (proves_server, server_code)):
        code = Uncompared(code_of(secret, ours, theirs))
        asked = []

        def each() -> Iterator[bytes]:
            for number, one in enumerate((secret, other)):
                asked.append(number)  # noqa: B023
                yield one

        assert proves(code, each(), ours, theirs)
        assert asked == [0, 1]
        assert not proves(code, [other], ours, theirs)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"short\n", "fewer than 16"),
        (OLD.encode() + b"\nshort\n", "fewer than 16"),
        (b"\n".join([OLD.encode()] * 3), "has 3 lines"),
        (b"x" * 5000, "larger than 4096"),
        (None, "cannot be read"),
    ],
)
def test_an_unfit_file_is_one_line_without_what_is_in_it(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SecretRefused, match=words) as refused:
        reading(path)
    assert "\n" not in str(refused.value)
    assert OLD not in str(refused.value)


def test_the_file_is_read_again_and_an_unfit_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    path = write_secret(tmp_path, OLD)
    secret = reading(path, clock)
    old, new = OLD.encode(), NEW.encode()
    write_secret(tmp_path, NEW, OLD)
    assert secret.current() == (old,), "it is looked at once a second"
    clock.now_ms += READ_AGAIN_MS
    assert secret.current() == (new, old)
    with caplog.at_level(logging.INFO):
        for unfit in (("",), ("short",), (OLD, NEW, OLD + NEW)):
            write_secret(tmp_path, *unfit)
            for _ in range(3):
                clock.now_ms += READ_AGAIN_MS
                assert secret.current() == (new, old)
        path.unlink()
        clock.now_ms += READ_AGAIN_MS
        assert secret.current() == (new, old)
        write_secret(tmp_path, NEW)
        clock.now_ms += READ_AGAIN_MS
        assert secret.current() == (new,)
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 4, "one line for each reason"
    assert not any(OLD in r.getMessage() or NEW in r.getMessage() for r in caplog.records)


def test_a_file_that_others_can_read_is_not_taken_up_by_a_process_that_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a start looked at its mode: the next start would have been refused."""
    clock = Clock()
    path = write_secret(tmp_path, OLD)
    configs = from_mapping(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "log.dirs": str(tmp_path / "data"),
            "cluster.secret.file": str(path),
        }
    )
    assert isinstance(configs, ServerConfigs), configs
    secret = secret_for(configs, Seams(clock=clock))
    assert secret is not None
    write_secret(tmp_path, NEW).chmod(0o644)
    clock.now_ms += READ_AGAIN_MS
    assert secret.current() == (OLD.encode(),)
    assert f"chmod 600 {path}; the secret that was read before stays in use" in caplog.text
    path.chmod(0o600)
    clock.now_ms += READ_AGAIN_MS
    assert secret.current() == (NEW.encode(),)


class Peer:
    """A server, and what reached it beside the exchange."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def router(self, *more: Handler) -> Router:
        def beat(_: Any, request: Any, context: RequestContext) -> Any:
            self.asked.append(request.broker_id)
            return messages.BrokerHeartbeatResponse()

        handler = Handler(ApiKey.BROKER_HEARTBEAT, Scope.BROKER, beat)
        return Router([api_versions.HANDLER, handler, *more])


@asynccontextmanager
async def serving(router: Router, secret: ClusterSecret | None) -> AsyncIterator[int]:
    server = Server(router, None, Limits(), secret)
    port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.stop(grace_s=0.1)


@pytest.mark.parametrize("negotiate", [True, False])
def test_both_prove_and_then_speak(tmp_path: Path, negotiate: bool) -> None:
    async def work() -> None:
        secret = reading(write_secret(tmp_path, OLD))
        peer = Peer()
        async with serving(peer.router(), secret) as port:
            connection = await connect("127.0.0.1", port, negotiate=negotiate, secret=secret)
            answer = await connection.send(messages.BrokerHeartbeatRequest(broker_id=7), 0)
            assert (answer.error_code, peer.asked) == (0, [7])
            assert connection.speaks(ApiKey.BROKER_HEARTBEAT)
            connection.close()

    run(work())


def test_a_peer_with_another_secret_gets_no_information(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        ours = reading(write_secret(tmp_path / "ours", OLD))
        theirs = reading(write_secret(tmp_path / "theirs", NEW))
        async with serving(Peer().router(), theirs) as port:
            with pytest.raises(ProofFailed, match="another cluster secret"):
                await connect("127.0.0.1", port, secret=ours)

    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        run(work())
    (line,) = [r.getMessage() for r in caplog.records if r.name == "tidelog.audit"]
    assert "gave a wrong proof of the cluster secret" in line


def test_wrong_proofs_are_said_once_a_second_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()

    async def work() -> None:
        ours = reading(write_secret(tmp_path / "ours", OLD), clock)
        theirs = reading(write_secret(tmp_path / "theirs", NEW))
        async with serving(Peer().router(), theirs) as port:
            for at_ms in (0, 20, 40, 999, 1000, 1020):
                clock.now_ms = at_ms
                with pytest.raises(ProofFailed, match="another cluster secret") as refused:
                    await connect("127.0.0.1", port, secret=ours)
        assert str(tmp_path / "ours") in str(refused.value)

    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        run(work())
    lines = [r.getMessage() for r in caplog.records if r.name == "tidelog.audit"]
    assert len(lines) == 2, lines
    assert lines[1].endswith("(and 3 more since the last line)")


def test_wrong_proofs_are_counted_per_peer_up_to_a_limit(tmp_path: Path) -> None:
    secret = reading(write_secret(tmp_path, OLD), Clock())
    for number in range(3 * MAX_PEERS):
        assert secret.others_wrong_proof(f"10.0.0.1:{number}") == 0
        assert secret.others_wrong_proof(f"10.0.0.1:{number}") is None
        assert len(secret._wrong) <= MAX_PEERS


def test_a_broker_without_the_controllers_secret_says_so(tmp_path: Path) -> None:
    """It looked like a controller that is not there: "is one running?"."""

    async def work() -> None:
        ours = reading(write_secret(tmp_path / "ours", OLD))
        theirs = reading(write_secret(tmp_path / "theirs", NEW))
        async with serving(Peer().router(), theirs) as port:
            session = ControllerSession(
                *([("127.0.0.1", port)], 500, 6000, 1000),
                report=lambda: pytest.fail("it never registers"),
                when_registered=lambda _: pytest.fail("it never registers"),
                secret=ours,
            )
            with pytest.raises(ControllerUnreachable, match="another cluster secret") as refused:
                await session.discover_cluster_id(1)
            assert "is one running" not in str(refused.value)

    run(work())


def test_a_peer_that_sends_our_own_words_back_proves_nothing(tmp_path: Path) -> None:
    """A stranger at a controller's address that does not know the secret."""

    async def work() -> None:
        secret = reading(write_secret(tmp_path, OLD))
        received: list[bytes] = []

        def echo(_: Any, request: Any, context: RequestContext) -> Any:
            received.append(bytes(request.auth_bytes))
            return messages.SaslAuthenticateResponse(auth_bytes=bytes(request.auth_bytes) * 2)

        handshake, _ = proving.handlers(secret)
        liar = Handler(ApiKey.SASL_AUTHENTICATE, Scope.CLIENT, echo)
        async with serving(Peer().router(handshake, liar), None) as port:
            for _ in range(2):
                with pytest.raises(ProofFailed):
                    await connect("127.0.0.1", port, negotiate=False, secret=secret)
        assert len(received) == 2, "the code was never sent"
        assert received[0] != received[1]

    run(work())


def test_a_peer_that_offers_no_proof(tmp_path: Path) -> None:
    """02f3bcb, or a process without a secret: refused, or spoken to where that is optional."""

    async def work() -> None:
        path = write_secret(tmp_path, OLD)
        peer = Peer()
        async with serving(peer.router(), None) as port:
            with pytest.raises(ProofFailed, match=r"cluster\.secret\.optional=true"):
                await connect("127.0.0.1", port, negotiate=False, secret=reading(path))
            assert not peer.asked
            optional = reading(path, optional=True)
            for negotiate in (True, False):
                connection = await connect("127.0.0.1", port, negotiate=negotiate, secret=optional)
                await connection.send(messages.BrokerHeartbeatRequest(broker_id=7), 0)
                connection.close()
            assert peer.asked == [7, 7]

    run(work())


def test_where_both_have_an_optional_secret_a_wrong_one_ends_the_connection(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        ours = reading(write_secret(tmp_path / "ours", OLD), optional=True)
        theirs = reading(write_secret(tmp_path / "theirs", NEW), optional=True)
        async with serving(Peer().router(), theirs) as port:
            with pytest.raises(ProofFailed):
                await connect("127.0.0.1", port, secret=ours)
            connection = await connect("127.0.0.1", port)
            answer = await connection.send(messages.BrokerHeartbeatRequest(), 0)
            assert answer.error_code == 0, "it serves those without a proof, too"
            connection.close()

    run(work())


def test_two_secrets_meet_in_every_state_of_a_change(tmp_path: Path) -> None:
    states = ([OLD], [OLD, NEW], [NEW, OLD], [NEW])

    async def work() -> None:
        for number, first in enumerate(states):
            # A roll of the file: neighbours in the list stand side by side.
            for second in states[max(0, number - 1) : number + 2]:
                ours = reading(write_secret(tmp_path / "ours", *first))
                theirs = reading(write_secret(tmp_path / "theirs", *second))
                async with serving(Peer().router(), theirs) as port:
                    (await connect("127.0.0.1", port, secret=ours)).close()

    run(work())


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_server_without_a_secret_listens_on_loopback_only(tmp_path: Path) -> None:
    async def work() -> None:
        server = Server(Peer().router(), None)
        for host in ("", "0.0.0.0", "10.0.0.1", "somewhere"):
            with pytest.raises(ListenError, match=r"set cluster\.secret\.file"):
                await server.listen("PLAINTEXT", host, 0)
        await server.stop(grace_s=0)
        secret = reading(write_secret(tmp_path, OLD))
        server = Server(Peer().router(), None, None, secret)
        await server.listen("PLAINTEXT", "0.0.0.0", 0)
        await server.stop(grace_s=0)

    run(work())


def configs_of(folder: Path, **changes: str) -> ServerConfigs:
    texts = {
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "log.dirs": str(folder / "logs"),
        "metadata.store": f"sqlite:{folder / 'metadata.sqlite'}",
    } | {name.replace("_", "."): value for name, value in changes.items()}
    configs = from_mapping(texts)
    assert isinstance(configs, ServerConfigs), configs
    return configs


def test_a_process_whose_store_names_other_brokers_makes_no_secret_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster of an older version is rolled: its brokers know no secret."""

    async def register(*brokers: int) -> None:
        store = SqliteStore(str(tmp_path / "metadata.sqlite"), RealDisk())
        await store.open()
        found = await store.load()
        paths = ["/brokers", layout.BROKERS, *map(layout.broker, brokers)]
        await store.multi([Create(path, b"{}") for path in paths if path not in found])
        await store.close()

    configs = configs_of(tmp_path)
    run(register(1, 2, 3))
    assert secret_for(configs, Seams()) is None
    assert "brokers 2, 3 are registered" in caplog.text
    with pytest.raises(SecretRefused, match=r"set cluster\.secret\.file"):
        secret_for(configs_of(tmp_path, listeners="PLAINTEXT://:0,CONTROLLER://:0"), Seams())
    file = str(write_secret(tmp_path, OLD))
    shared = secret_for(configs_of(tmp_path, cluster_secret_file=file), Seams())
    assert shared is not None and shared.current() == (OLD.encode(),)

    alone = tmp_path / "alone"
    alone.mkdir()
    own = secret_for(configs_of(alone), Seams())
    assert own is not None and len(own.current()[0]) == 64
    again = secret_for(configs_of(alone), Seams())
    assert again is not None and again.current() == own.current()


def test_a_log_directory_that_cannot_be_used_does_not_keep_the_secret_from_being_made(
    tmp_path: Path,
) -> None:
    """The broker starts with its other log directories (fault S15); so does what it proves."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.write_text("a file, where a directory should be")
    configs = configs_of(tmp_path, log_dirs=f"{bad},{good}")
    own = secret_for(configs, Seams())
    assert own is not None and own.path == str(good / "cluster.secret")
    bad.unlink()
    again = secret_for(configs, Seams())
    assert again is not None and again.current() == own.current()
    good.rename(tmp_path / "away")
    good.write_text("this one, too")
    bad.write_text("none is left")
    with pytest.raises(SecretRefused, match=r"^log directory .*bad cannot be used: File exists"):
        secret_for(configs, Seams())


def test_a_store_that_cannot_be_read_makes_no_secret(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"this is no database" * 100)
    assert secret_for(configs_of(tmp_path), Seams()) is None
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("chosen", [False, True])
def test_a_proof_of_another_length_is_not_copied(tmp_path: Path, chosen: bool) -> None:
    """It may be as long as a request: a copy was as much again, outside of the account."""
    said = memoryview(bytes(20_000_000))
    closed: list[object] = []
    connection = SimpleNamespace(
        exchange=Exchange(),
        refused=lambda *_: None,
        close=closed.append,
    )
    connection.exchange.client_nonce = b"n" * NONCE_BYTES if chosen else b""
    context: Any = SimpleNamespace(connection=connection)
    secret: Any = SimpleNamespace(current=lambda: [b"s"])
    _, authenticate = proving.handlers(secret)
    tracemalloc.start()
    try:
        authenticate.handle(None, messages.SaslAuthenticateRequest(auth_bytes=said), context)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert closed == [None] and peak < 100_000
