"""Commits that reach the end of a retired partition's data, because nothing is left to read."""

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
from tidelog.controller.decisions.removal import UNKNOWN, Commits, Held
from tidelog.controller.retired_commits import MOST_COMMITS, LeftToRead, short_commits, with_read

DATA = held(log_start=20)


def test_each_offset_below_the_end_is_asked_for_once() -> None:
    commits = {"a": {4: 30, 5: 90}, "b": {4: 30, 5: 40}, "c": {4: 91}, "reads": {}}
    answers = {4: DATA, 5: DATA, 6: held(data_end=UNKNOWN)}
    asked = list(short_commits(answers, commits))
    assert asked == [(4, DATA, 30), (5, DATA, UNKNOWN), (5, DATA, 40)]
    many = {str(x): {4: x} for x in range(3 * MOST_COMMITS)}
    offsets = [offset for _, _, offset in short_commits({4: DATA}, many)]
    assert offsets == list(range(MOST_COMMITS))
    # All of it was deleted: also then a group that has not committed past it holds it.
    assert list(short_commits({4: EMPTY}, {"a": {4: 30}})) == [(4, EMPTY, 30)]


def test_only_the_commits_that_were_asked_for_count_as_more() -> None:
    commits = {"a": {4: 30, 5: 90}, "b": {4: 29}, "c": {5: 90}, "reads": {}}
    counted = with_read(commits, {4: DATA, 5: DATA}, {(4, 30)})
    assert counted == {**commits, "a": {4: 90, 5: 90}}
    counted = with_read(commits, {4: DATA, 5: DATA}, {(4, UNKNOWN)})
    assert counted == {**commits, "c": {4: 90, 5: 90}}, "a member that reads has committed nothing"
    assert commits["a"] == {4: 30, 5: 90}


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
