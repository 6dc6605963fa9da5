"""Answers with parts of files: the same bytes, in order, whatever the client does."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.lone_broker import Peer, until
from tidelog.model.api_keys import ApiKey
from tidelog.network import api_versions, outgoing
from tidelog.network.router import Handler, Router, Scope
from tidelog.network.sending import FileSender, sender_for
from tidelog.network.server import Server
from tidelog.protocol import messages

CONTENT = random.Random(7).randbytes(3_000_000)


class Part:
    """A part of the test's file that notes when it is freed."""

    alive = 0

    def __init__(self, fileno: int, position: int, size: int) -> None:
        self.fileno, self.position, self.size = fileno, position, size
        Part.alive += 1

    def __len__(self) -> int:
        return self.size

    def __del__(self) -> None:
        Part.alive -= 1


class Files:
    """A Fetch handler that answers a part of one file: from the asked offset, of the asked size."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(CONTENT)
        self.file = path.open("rb")
        self.pending: list[asyncio.Future[Any]] = []

    def fetch(self, _: Any, request: Any, context: Any) -> Any:
        asked = request.topics[0].partitions[0]
        records: Any = CONTENT[asked.fetch_offset :][: request.max_bytes]
        if context.connection.can_send_files() and request.isolation_level == 0:
            records = [Part(self.file.fileno(), asked.fetch_offset, request.max_bytes)]
        response = messages.FetchResponse
        part = response.PartitionData(records=records)
        return response(responses=[response.FetchableTopicResponse("t", partitions=[part])])

    def router(self) -> Router:
        return Router(
            [
                api_versions.HANDLER,
                Handler(
                    ApiKey.FETCH, Scope.CLIENT, self.fetch, large_answer=True, versions=range(4, 13)
                ),
            ]
        )


def fetch(offset: int, size: int, *, from_file: bool = True) -> Any:
    request = messages.FetchRequest
    asked = request.FetchPartition(partition=0, fetch_offset=offset)
    topic = request.FetchTopic(topic="t", partitions=[asked])
    return request(max_bytes=size, topics=[topic], isolation_level=0 if from_file else 1)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner.run


def test_parts_and_copies_alternate_in_order(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(Files(tmp_path / "f").router(), None)
        peer = await Peer.connect(await server.listen("PLAINTEXT", "127.0.0.1", 0))
        rng = random.Random(3)
        asked = [
            (rng.randrange(1_000_000), rng.randrange(1, 1_500_000), rng.random() < 0.7)
            for _ in range(60)
        ]
        for offset, size, from_file in asked:
            peer.send(fetch(offset, max(size, 5000), from_file=from_file), 12)
        for offset, size, _ in asked:
            found = (await peer.receive()).responses[0].partitions[0].records
            assert found == CONTENT[offset:][: max(size, 5000)]
        assert Part.alive == 0
        await server.stop(grace_s=0.5)

    run(main())


def test_a_client_that_does_not_read_holds_no_memory_and_then_gets_all(
    run: Any, tmp_path: Path
) -> None:
    async def main() -> None:
        server = Server(Files(tmp_path / "f").router(), None)
        port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        lazy.connect(("127.0.0.1", port))
        lazy.setblocking(False)
        peer = Peer(*await asyncio.open_connection(sock=lazy, limit=1000))
        for number in range(8):
            peer.send(fetch(number * 1000, 2_900_000), 12)
        (connection,) = await _only(server)
        await until(lambda: connection.is_sending)
        assert server.memory.answers == 0
        for number in range(8):
            found = (await peer.receive()).responses[0].partitions[0].records
            assert found == CONTENT[number * 1000 :][:2_900_000]
        await server.stop(grace_s=0.5)

    run(main())


async def _only(server: Server) -> list[Any]:
    await until(lambda: server.connections)
    return list(server.connections)


def test_a_client_that_goes_in_the_middle_leaves_nothing_open(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(Files(tmp_path / "f").router(), None)
        port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        for _ in range(5):
            lazy = socket.socket()
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
            lazy.connect(("127.0.0.1", port))
            lazy.setblocking(False)
            peer = Peer(*await asyncio.open_connection(sock=lazy, limit=1000))
            for _ in range(6):
                peer.send(fetch(0, 2_900_000), 12)
            await until(lambda: any(each.is_sending for each in server.connections))
            peer.writer.transport.abort()
            await until(lambda: not server.connections)
        assert Part.alive == 0
        await server.stop(grace_s=0.5)

    run(main())


def test_a_file_that_was_cut_ends_the_connection(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(Files(tmp_path / "f").router(), None)
        peer = await Peer.connect(await server.listen("PLAINTEXT", "127.0.0.1", 0))
        peer.send(fetch(2_990_000, 100_000), 12)
        with pytest.raises(ConnectionError):
            await peer.receive()
        await until(lambda: not server.connections)
        await server.stop(grace_s=0.5)

    run(main())


def test_what_sends_parts_of_files_is_kept_for_the_next_answer(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes four system calls to make; a descriptor each, for a bounded number of clients."""
    made: list[Any] = []

    def counted(*arguments: Any) -> Any:
        made.append(sender_for(*arguments))
        return made[-1]

    monkeypatch.setattr(outgoing, "sender_for", counted)
    monkeypatch.setattr(outgoing, "MOST_KEPT_SENDERS", 1)

    async def main() -> None:
        server = Server(Files(tmp_path / "f").router(), None)
        port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        first, second = await Peer.connect(port), await Peer.connect(port)

        async def ask(peer: Peer) -> None:
            answer = await peer.ask(fetch(5, 200_000), 12)
            assert bytes(answer.responses[0].partitions[0].records) == CONTENT[5:200_005]

        for _ in range(3):
            await ask(first)
        assert len(made) == 1 and server.counts.kept_senders == 1
        await ask(second)
        await ask(second)
        assert len(made) == 3, "beyond the bound each answer has its own"
        # The sweep, after some idle seconds.
        for connection in server.connections:
            connection.release_idle_buffer()
        assert server.counts.kept_senders == 0 and all(each._socket is None for each in made)
        await ask(first)
        assert server.counts.kept_senders == 1
        for peer in (first, second):
            peer.writer.close()
        await until(lambda: not server.connections)
        assert server.counts.kept_senders == 0 and all(each._socket is None for each in made)
        await server.stop(grace_s=0.5)

    run(main())


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_response_that_ends_with_a_part_of_a_file_ends_there(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """An empty buffer after the records was a system call for each response."""
    sent: list[list[int]] = []
    send = FileSender.send

    def noted(sender: FileSender, chunks: Any) -> bool:
        sent.append([len(chunk) for chunk in chunks])
        return send(sender, chunks)

    monkeypatch.setattr(FileSender, "send", noted)

    async def main() -> None:
        server = Server(Files(tmp_path / "f").router(), None)
        peer = await Peer.connect(await server.listen("PLAINTEXT", "127.0.0.1", 0))
        answer = await peer.ask(fetch(5, 200_000), version)
        assert bytes(answer.responses[0].partitions[0].records) == CONTENT[5:200_005]
        (sizes,) = sent
        # Version 12 ends with tagged fields.
        assert len(sizes) == (3 if version >= 12 else 2) and all(sizes)
        peer.writer.close()
        await server.stop(grace_s=0.5)

    run(main())
