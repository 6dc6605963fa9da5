"""N9: max.connections keeps ten places for connections that prove the secret within 2 s."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.proofs import prove, secret_in, write_secret
from tidelog.model.api_keys import ApiKey
from tidelog.network import api_versions, places
from tidelog.network.limits import Limits
from tidelog.network.places import KEPT_PLACES
from tidelog.network.router import Router
from tidelog.network.server import Server
from tidelog.protocol import messages
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@asynccontextmanager
async def serving(folder: Path, secret: bool = True, **limits: int) -> AsyncIterator[Server]:
    seams = Seams()
    path = write_secret(folder)
    found = ClusterSecret(seams.disk, str(path), seams.clock, seams.random) if secret else None
    server = Server(Router([api_versions.HANDLER]), None, Limits(**limits), found)
    server.port = await server.listen("PLAINTEXT", "127.0.0.1", 0)  # type: ignore[attr-defined]
    try:
        yield server
    finally:
        await server.stop(grace_s=0.1)


async def stranger(server: Server, host: str = "127.0.0.1") -> Peer:
    link = socket.socket()
    link.bind((host, 0))
    link.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(link, ("127.0.0.1", server.port))  # type: ignore[attr-defined]
    return Peer(*await asyncio.open_connection(sock=link))


async def is_served(peer: Peer) -> bool:
    try:
        keys = (await peer.ask(messages.ApiVersionsRequest("test", "1"), 3)).api_keys
    except ConnectionError:
        return False
    return ApiKey.SASL_HANDSHAKE in {key.api_key for key in keys}


def test_beyond_the_limit_there_are_places_for_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PROVE_S", 0.3)

    async def work() -> None:
        async with serving(tmp_path, max_connections=2) as server:
            secret = secret_in(tmp_path / "cluster.secret")
            first = [await stranger(server) for _ in range(2)]
            late = await stranger(server)
            assert await is_served(late), "it has time to prove the secret"
            peers = [await stranger(server) for _ in range(3 * KEPT_PLACES)]
            await until(lambda: len(server.connections) == 2 + KEPT_PLACES)
            # Those that were pushed out come again, and prove at once: as many as there are.
            for _ in range(3 * KEPT_PLACES):
                peer = await stranger(server)
                await prove(peer, secret)
                peers.append(peer)
            began = server.loop.time()
            await until(lambda: len(server.connections) == 2 + 3 * KEPT_PLACES)
            assert server.loop.time() - began < 5
            assert all([await is_served(peer) for peer in first])
            assert not await is_served(late)
            assert all([await is_served(peer) for peer in peers[-3 * KEPT_PLACES :]])
            # A proof frees the place of a client, too.
            await prove(first[0], secret)
            assert await is_served(await stranger(server))
            assert len(server.places._counted) == 2

    run(work())


def test_a_flood_of_one_address_does_not_take_the_places_of_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, max_connections=1) as server:
            secret = secret_in(tmp_path / "cluster.secret")
            flood = [await stranger(server, "127.0.0.2") for _ in range(KEPT_PLACES + 5)]
            peer = await stranger(server, "127.0.0.3")
            flood += [await stranger(server, "127.0.0.2") for _ in range(5 * KEPT_PLACES)]
            await prove(peer, secret)
            assert await is_served(peer)
            assert len(server.connections) <= 2 + KEPT_PLACES

    run(work())


def test_the_limit_of_an_address_is_not_about_processes(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, max_connections_per_ip=1) as server:
            secret = secret_in(tmp_path / "cluster.secret")
            await stranger(server)
            peers = [await stranger(server) for _ in range(5)]
            for peer in peers:
                await prove(peer, secret)
            assert all([await is_served(peer) for peer in peers])

    run(work())


def test_without_a_secret_no_place_is_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, secret=False, max_connections=1) as server:
            first = await stranger(server)
            second = await stranger(server)
            with pytest.raises(ConnectionError):
                await second.ask(messages.ApiVersionsRequest("test", "1"), 3)
            assert (await first.ask(messages.ApiVersionsRequest("test", "1"), 3)).error_code == 0
            first.writer.close()
            await until(lambda: not server.connections)
            third = await stranger(server)
            assert (await third.ask(messages.ApiVersionsRequest("test", "1"), 3)).error_code == 0
            assert not server.places._proving

    run(work())


def test_the_oldest_without_a_proof_gives_its_place(tmp_path: Path) -> None:
    """It had the most time to prove the secret; the youngest have just begun."""

    async def work() -> None:
        async with serving(tmp_path, max_connections=1) as server:
            first = await stranger(server)
            late = [await stranger(server) for _ in range(KEPT_PLACES)]
            assert all([await is_served(peer) for peer in late])
            newest = await stranger(server)
            assert not await is_served(late[0])
            assert all([await is_served(peer) for peer in (first, *late[1:], newest)])

    run(work())


def test_an_address_has_a_limit_of_places(tmp_path: Path) -> None:
    async def is_taken(server: Server, host: str) -> Peer | None:
        peer = await stranger(server, host)
        try:
            assert (await peer.ask(messages.ApiVersionsRequest("test", "1"), 3)).error_code == 0
        except ConnectionError:
            return None
        return peer

    async def work() -> None:
        async with serving(tmp_path, secret=False, max_connections_per_ip=2) as server:
            peers = [await is_taken(server, "127.0.0.2") for _ in range(2)]
            assert None not in peers
            assert await is_taken(server, "127.0.0.2") is None
            other = await is_taken(server, "127.0.0.3")
            assert other is not None
            for peer in peers:
                assert peer is not None
                peer.writer.close()
            await until(lambda: len(server.connections) == 1)
            again = [await is_taken(server, "127.0.0.2") for _ in range(3)]
            assert [peer is not None for peer in again] == [True, True, False]

    run(work())
