"""How often a check of retired partitions asks their leaders what is left to read."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support.retired_topic import EMPTY, held
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import ConnectionLost
from tidelog.controller import retired_commits
from tidelog.controller.decisions.removal import Commits, Held
from tidelog.controller.retired_commits import LeftToRead

DATA = held(log_start=20)


class FrozenBroker:
    """It takes connections, reads requests, and answers none."""

    def __init__(self) -> None:
        self.asked = 0
        self.opened: list[int] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                self.asked += 1
                await reader.readexactly(size)
        writer.close()

    @contextlib.asynccontextmanager
    async def connected(self, leader: int) -> AsyncIterator[ClientConnection]:
        """A connection to it; broker 2 has none."""
        self.opened.append(leader)
        if leader == 2:
            raise ConnectionLost("broker 2 is not registered")
        connection = await connect("127.0.0.1", self.port, negotiate=False)
        try:
            yield connection
        finally:
            connection.close("the test is over")


async def as_read(
    broker: FrozenBroker, answers: dict[int, Held], commits: Commits, topics: str
) -> list[Commits]:
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    async with server, LeftToRead(broker.connected) as questions:
        return [await questions.as_read(name, answers, commits) for name in topics]


def test_a_leader_that_does_not_answer_is_asked_once_in_a_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of its partitions and offsets waited for it, on a connection of its own."""
    monkeypatch.setattr(retired_commits, "ANSWER_MS", 50)
    broker = FrozenBroker()
    commits = {str(x): {4: x, 5: x} for x in range(20, 30)}
    counted = asyncio.run(as_read(broker, {4: DATA, 5: DATA}, commits, "tu"))
    assert counted == [commits, commits]
    assert (broker.opened, broker.asked) == ([1], 1)


def test_one_connection_serves_all_questions_to_a_leader() -> None:
    """What was deleted needs no question. Another leader that fails holds up no one."""
    broker = FrozenBroker()
    commits = {"a": {4: 30, 5: 31, 6: 32}, "b": {4: 33, 6: 34}}
    other = replace(EMPTY, leader=2)
    (counted,) = asyncio.run(as_read(broker, {6: other, 4: EMPTY, 5: EMPTY}, commits, "t"))
    assert broker.opened == [2, 1]
    end = EMPTY.data_end
    assert counted == {"a": {4: end, 5: end, 6: 32}, "b": {4: end, 5: end, 6: 34}}
