"""Every API that a process serves × what the connection has proved (promises 29 and 31).

A real broker and a real controller, over real sockets. A cell says what is answered; what is
refused changes nothing on disk, in the store, or of the channel.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.authorization import REFUSED, ROUTERS, asking, codes_in, request_of, world_in
from tests.support.lone_broker import Peer, until
from tests.support.proofs import begin, prove, proven, step
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Scope
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.protocol.secret_exchange import client_code

STALE_CONTROLLER = int(ErrorCode.STALE_CONTROLLER_EPOCH)
HUGE = 2**31 - 1

CELLS = [
    (role, key)
    for role, router in ROUTERS.items()
    for key in ApiKey
    if router.handler(key) is not None and key not in (ApiKey.SASL_HANDSHAKE,)
]
CONTROL = [key for role, key in CELLS if ROUTERS[role].handler(key).scope is Scope.CONTROLLER]  # type: ignore[union-attr]
REPLICA_APIS = {
    ApiKey.FETCH: range(4, 18),
    ApiKey.LIST_OFFSETS: range(1, 12),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: range(2, 5),
}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def newest(role: str, key: ApiKey, scope: Scope | None = None) -> int:
    """The newest version of an API, of a scope if it has several."""
    handler = ROUTERS[role].handler(key)
    assert handler is not None
    return max(x for x in handler.versions if scope is None or handler.scope_of(x) is scope)


def scopes(role: str, key: ApiKey) -> set[Scope]:
    handler = ROUTERS[role].handler(key)
    assert handler is not None
    return {handler.scope_of(version) for version in handler.versions}


async def cell(peer: Peer, role: str, key: ApiKey, scope: Scope) -> set[int]:
    return set(codes_in(await peer.ask(request_of(key), newest(role, key, scope))))


def test_no_proof_proof_only_and_a_stale_key(tmp_path: Path) -> None:
    """Without a proof only client scope is served; with it all but what needs the channel."""

    async def work() -> None:
        async with world_in(tmp_path) as world:
            before = world.state()
            for role in ROUTERS:
                nobody = await Peer.connect(world.port(role))
                for _, key in (each for each in CELLS if each[0] == role):
                    for scope in scopes(role, key) - {Scope.CLIENT}:
                        assert await cell(nobody, role, key, scope) == {REFUSED}, (role, key)
            assert world.state() == before
            for stale in (NO_UUID, UUID(int=world.key.int ^ 1), UUID(int=5)):
                peer = await proven(world.port("broker"), world.proof)
                answer = await peer.ask(world.opening(stale), 0)
                assert answer.error_code == REFUSED
                for key in CONTROL:
                    if key is not ApiKey.OPEN_CONTROL_CHANNEL:
                        found = await cell(peer, "broker", key, Scope.CONTROLLER)
                        assert found == {STALE_CONTROLLER}, key
            assert world.state() == before

    run(work())


@pytest.mark.parametrize("role", list(ROUTERS))
def test_client_scope_is_served_with_and_without_a_proof(tmp_path: Path, role: str) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            for prover in (None, world.proof):
                for _, key in (each for each in CELLS if each[0] == role):
                    for scope in scopes(role, key) - {Scope.CONTROLLER}:
                        if prover is None and scope is Scope.BROKER:
                            continue
                        # A connection each: some answers close one, none for want of a proof.
                        peer = await Peer.connect(world.port(role))
                        if prover is not None:
                            await prove(peer, prover)
                        found = await cell(peer, role, key, scope)
                        assert REFUSED not in found, (role, key, prover)
                        peer.writer.close()

    run(work())


def test_a_wrong_proof_closes_after_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            before = world.state()
            for role in ROUTERS:
                for _, key in (each for each in CELLS if each[0] == role):
                    peer = await Peer.connect(world.port(role))
                    await begin(peer)
                    # What follows the wrong proof at once is not served either.
                    peer.send(step(b"the wrong proof of some stranger"), 2)
                    peer.send(request_of(key), newest(role, key))
                    with pytest.raises(ConnectionError):
                        await peer.receive()
            assert world.state() == before
            refused = sum(
                server.audit.refused_by_api[ApiKey.SASL_AUTHENTICATE]
                for server in (world.broker.server, world.controller.server)
                if server is not None
            )
            assert refused == len(CELLS)

    with caplog.at_level(logging.WARNING, "tidelog.audit"):
        run(work())
    lines = [r.getMessage() for r in caplog.records if r.name == "tidelog.audit"]
    assert lines
    assert all("a wrong proof of the cluster secret" in line for line in lines)
    secret = (tmp_path / "secrets" / "cluster.secret").read_text().strip()
    assert not any(secret in r.getMessage() for r in caplog.records)


def test_a_proof_and_the_present_key_command_the_broker(tmp_path: Path) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            peer = await proven(world.port("broker"), world.proof)
            # As long as the key is right, epochs are judged as ever.
            before = world.state()
            for changes in (
                {"controller_epoch": HUGE},
                {"controller_epoch": HUGE - 10_000_000},
                {"store_revision": 2**63 - 1},
            ):
                answer = await peer.ask(world.opening(world.key, **changes), 0)
                assert answer.error_code == ErrorCode.INVALID_REQUEST
            answer = await peer.ask(world.opening(world.key, broker_epoch=99), 0)
            assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
            answer = await peer.ask(world.opening(world.key, channel_number=0), 0)
            assert answer.error_code == STALE_CONTROLLER
            assert world.state() == before
            assert (await peer.ask(world.opening(world.key), 0)).error_code == 0
            epoch = world.controller.cluster.controller_epoch
            for key in CONTROL:
                if key is ApiKey.OPEN_CONTROL_CHANNEL:
                    continue
                request = request_of(key)
                request.controller_epoch = epoch
                if hasattr(request, "broker_epoch"):
                    request.broker_epoch = -1
                answer = await peer.ask(request, newest("broker", key))
                assert answer.error_code == 0, key

    run(work())


def test_the_same_process_gets_the_same_key_and_the_next_life_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            session = world.broker.broker.session
            key, registrations = session.channel_key, session.registrations
            assert key != NO_UUID
            assert session._connection is not None
            session._connection.close("planted")
            await until(lambda: session.registrations > registrations)
            assert session.channel_key == key
            keys = world.controller.channels.keys
            epoch = world.controller.cluster.controller_epoch
            assert keys.of(1, epoch, session.broker_epoch) == key
            life = session.broker_epoch
            others = [keys.of(1, *x) for x in ((epoch, life + 1), (epoch + 1, life + 1))]
            assert len({key, *others, keys.of(1, epoch + 2, life)}) == 4

    run(work())


REPLICA_CELLS = [
    (key, version, replica_id)
    for key, versions in REPLICA_APIS.items()
    for version in versions
    for replica_id in (0, 1, 77, -1, -2, None)
    # The only version without the field.
    if (replica_id is None) == (key is ApiKey.OFFSET_FOR_LEADER_EPOCH and version == 2)
]


def test_only_a_proven_connection_names_a_replica(tmp_path: Path) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            before = world.state()
            refused: Counter[ApiKey] = Counter()
            nobody = await Peer.connect(world.port("broker"))
            peer = await proven(world.port("broker"), world.proof)
            topic_id = world.broker.broker.metadata.id_of("t")
            for key, versions in REPLICA_APIS.items():
                assert versions == ROUTERS["broker"].handler(key).versions  # type: ignore[union-attr]
            for key, version, replica_id in REPLICA_CELLS:
                names_one = replica_id is not None and replica_id >= 0
                refused[key] += names_one
                request = asking(key, replica_id, topic_id)
                found = set(codes_in(await nobody.ask(request, version)))
                assert (REFUSED in found) == names_one, (key, version, replica_id, found)
                if not names_one:
                    assert found <= {0}, (key, version, replica_id, found)
                found = set(codes_in(await peer.ask(request, version)))
                assert REFUSED not in found, (key, version, replica_id, found)
            assert world.state() == before
            assert world.broker.server.audit.refused_by_api == refused

    run(work())


def test_the_exchange_in_another_order_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            for role in ROUTERS:
                peer = await Peer.connect(world.port(role))
                for version in range(3):
                    answer = await peer.ask(step(b"x" * 32), version)
                    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
                plain = messages.SaslHandshakeRequest(mechanism="PLAIN")
                answer = await peer.ask(plain, 1)
                assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert answer.mechanisms == ["TIDELOG-SECRET"]
                await prove(peer, world.proof)
                assert (
                    await peer.ask(step(b"x" * 32), 2)
                ).error_code == ErrorCode.ILLEGAL_SASL_STATE
                again = messages.SaslHandshakeRequest(mechanism="TIDELOG-SECRET")
                assert (await peer.ask(again, 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE

    run(work())


@pytest.mark.parametrize("size", [0, 1, 31, 33, 100_000])
def test_a_nonce_of_another_size_closes(tmp_path: Path, size: int) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            peer = await Peer.connect(world.port("broker"))
            await peer.ask(messages.SaslHandshakeRequest(mechanism="TIDELOG-SECRET"), 1)
            with pytest.raises(ConnectionError):
                await peer.ask(step(os.urandom(size)), 2)

    run(work())


def test_a_recorded_proof_proves_nothing_later(tmp_path: Path) -> None:
    """A proof that is sent again, and the server's own code sent back, are wrong ones."""

    async def work() -> None:
        async with world_in(tmp_path) as world:
            port = world.port("broker")
            first = await Peer.connect(port)
            nonce, said = await begin(first)
            code = client_code(world.proof, nonce, said[:32])
            assert (await first.ask(step(code), 2)).error_code == 0
            replays: list[Callable[[bytes], bytes]] = [
                lambda _: code,
                lambda fresh: fresh[32:],
                lambda _: said[32:],
            ]
            for replay in replays:
                peer = await Peer.connect(port)
                _, fresh = await begin(peer, nonce)
                with pytest.raises(ConnectionError):
                    await peer.ask(step(replay(fresh)), 2)

    run(work())
