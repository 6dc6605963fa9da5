"""Attacks on the exchange that proves the cluster secret, over real sockets (N1, N3, N4).

A client that knows all bytes ever sent, and not the secret, proves nothing; a proof holds for one
connection and no other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.authorization import (
    REFUSED,
    ROUTERS,
    World,
    asking,
    codes_in,
    request_of,
    world_in,
)
from tests.support.lone_broker import Peer
from tests.support.proofs import begin, prove, proven, step
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.secret_exchange import MECHANISM, NONCE_BYTES, client_code

BETWEEN = {"broker": ApiKey.STOP_REPLICA, "controller": ApiKey.ALLOCATE_PRODUCER_IDS}
"""One API of each role that is not a client's."""


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


PARTS = (slice(NONCE_BYTES), slice(NONCE_BYTES, None))
"""Of what the server says first: its nonce, and its code."""


async def is_trusted(peer: Peer, role: str) -> bool:
    """Whether a connection may do what clients may not."""
    return REFUSED not in set(codes_in(await peer.ask(request_of(BETWEEN[role]), 0)))


async def is_closed_after(peer: Peer, said: bytes) -> bool:
    try:
        await peer.ask(step(said), 2)
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("role", list(ROUTERS))
def test_a_server_answers_no_challenge_that_it_did_not_begin(tmp_path: Path, role: str) -> None:
    """Reflection: the server itself is asked, on another connection, for the code that it wants."""

    async def work() -> None:
        async with world_in(tmp_path) as world:
            before = world.state()
            for other, shows_nonce, part in itertools.product(ROUTERS, (True, False), PARTS):
                attacked = await Peer.connect(world.port(role))
                nonce, said = await begin(attacked)
                helper = await Peer.connect(world.port(other))
                _, answer = await begin(helper, nonce if shows_nonce else said[:NONCE_BYTES])
                assert await is_closed_after(attacked, answer[part])
            assert world.state() == before

    run(work())


@pytest.mark.parametrize("role", list(ROUTERS))
def test_a_proof_is_of_its_own_connection_alone(tmp_path: Path, role: str) -> None:
    async def work() -> None:
        async with world_in(tmp_path) as world:
            before, port = world.state(), world.port(role)
            early = await Peer.connect(port)
            assert not await is_trusted(early, role)
            peer = await proven(port, world.proof)
            late = await Peer.connect(port)
            assert await is_trusted(peer, role)
            # A connection that got the code, or has begun itself, is not trusted either.
            begun = await Peer.connect(port)
            await begin(begun)
            for stranger in (early, late, begun):
                assert not await is_trusted(stranger, role)
                if role == "broker":
                    answer = await stranger.ask(asking(ApiKey.FETCH, 1), 12)
                    assert answer.error_code == REFUSED
            peer.writer.close()
            # The place and the address of a process that has gone are nothing to inherit.
            assert not await is_trusted(await Peer.connect(port), role)
            if role == "broker":
                assert world.state() == before

    run(work())


@pytest.mark.parametrize("role", list(ROUTERS))
def test_a_proof_stands_whatever_is_said_after_it(tmp_path: Path, role: str) -> None:
    """A second exchange is refused, right or wrong: it neither takes the proof nor gives one."""

    async def work() -> None:
        async with world_in(tmp_path) as world:
            peer = await Peer.connect(world.port(role))
            nonce, said = await begin(peer)
            code = client_code(world.proof, nonce, said[:NONCE_BYTES])
            assert (await peer.ask(step(code), 2)).error_code == 0
            for again in (code, b"", b"x" * NONCE_BYTES, b"x" * 100_000):
                answer = await peer.ask(step(again), 2)
                assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
                assert not answer.auth_bytes
            assert await is_trusted(peer, role)

    run(work())


WRONG = {
    "empty": lambda code: b"",
    "cut": lambda code: code[:-1],
    "its first byte": lambda code: code[:1],
    "after its first byte": lambda code: code[1:],
    "longer": lambda code: code + b"\0",
    "twice": lambda code: code * 2,
    "long": lambda code: code + bytes(100_000),
    "one bit": lambda code: code[:-1] + bytes([code[-1] ^ 1]),
    "another nonce": lambda code: bytes(NONCE_BYTES),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_proof_is_whole_or_none(tmp_path: Path, kind: str) -> None:
    async def work(world: World) -> None:
        for version in range(3):
            peer = await Peer.connect(world.port("broker"))
            nonce, said = await begin(peer)
            code = client_code(world.proof, nonce, said[:NONCE_BYTES])
            peer.send(step(WRONG[kind](code)), version)
            # The right one, sent after it, does not help either.
            peer.send(step(code), 2)
            with pytest.raises(ConnectionError):
                await peer.receive()

    async def all_of_it() -> None:
        async with world_in(tmp_path) as world:
            await work(world)
            refused = world.broker.server.audit.refused_by_api
            assert refused == {ApiKey.SASL_AUTHENTICATE: 3}

    run(all_of_it())


def test_every_exchange_has_a_challenge_of_its_own(tmp_path: Path) -> None:
    """Also with the same nonce of the client's, and on both servers of a process."""

    async def work() -> None:
        async with world_in(tmp_path) as world:
            challenges = set()
            for role in (*ROUTERS, *ROUTERS):
                peer = await Peer.connect(world.port(role))
                _, said = await begin(peer, bytes(NONCE_BYTES))
                challenges |= {said[:NONCE_BYTES], said[NONCE_BYTES:]}
            assert len(challenges) == 8

    run(work())


def test_what_follows_a_request_for_the_mechanism_is_no_proof(tmp_path: Path) -> None:
    """Nothing of the exchange may be left out: neither the challenge nor the answer to it."""

    async def work() -> None:
        async with world_in(tmp_path) as world:
            port = world.port("broker")
            for words in ((), (bytes(NONCE_BYTES),)):
                peer = await Peer.connect(port)
                await peer.ask(messages.SaslHandshakeRequest(mechanism=MECHANISM), 1)
                for each in words:
                    await peer.ask(step(each), 2)
                assert not await is_trusted(peer, "broker")
            # The whole of it, and one connection is trusted.
            peer = await Peer.connect(port)
            await prove(peer, world.proof)
            assert await is_trusted(peer, "broker")

    run(work())
