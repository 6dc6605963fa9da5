"""Commits of groups that reach the end of a retired partition's data by what is left to read.

Owns the questions for them, to the leader, and which commits count as more than they say. Not what
a question proves: see ``client.fetching.left_to_read``. Not which groups are waited for: see
``decisions.removal``.

A program that commits its last record commits nothing past what was aborted (decision 0140): with
``retired.purge=drained`` its group would hold such a partition until its offsets expire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType

from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ClientError
from tidelog.client.fetching.left_to_read import (
    FIRST_BYTES,
    MOST_QUESTIONS,
    PARTITION_BYTES,
    question_of,
    reached_in,
)
from tidelog.controller.decisions.removal import UNKNOWN, Commits, Held
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

logger = logging.getLogger(__name__)

MOST_COMMITS = 20
"""Offsets of one partition that are asked for in one check: most groups have the same one."""

ANSWER_MS = 5_000

Connected = Callable[[int], AbstractAsyncContextManager[ClientConnection]]


class LeftToRead:
    """The questions of one check: one connection to each leader, and none to a leader that has
    failed once. A frozen leader would otherwise hold up each of its partitions and offsets."""

    def __init__(self, connected: Connected) -> None:
        self._connected = connected
        self._stack = AsyncExitStack()
        self._connections: dict[int, ClientConnection] = {}
        self._failed: set[int] = set()

    async def __aenter__(self) -> LeftToRead:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def as_read(self, name: str, held: Mapping[int, Held], commits: Commits) -> Commits:
        """Return commits that count as more than they say, because nothing is left to read."""
        read: set[tuple[int, int]] = set()
        for index, one, offset in short_commits(held, commits):
            if one.leader in self._failed:
                continue
            try:
                connection = await self._connection(one.leader)
                if await is_read(connection, TopicPartition(name, index), one, offset):
                    read.add((index, offset))
            except ClientError as failure:
                self._failed.add(one.leader)
                logger.info(
                    "broker %(broker)s was not asked what is left to read: %(error)s",
                    {"broker": one.leader, "error": failure},
                )
        return with_read(commits, held, read)

    async def _connection(self, leader: int) -> ClientConnection:
        if leader not in self._connections:
            connection = await self._stack.enter_async_context(self._connected(leader))
            self._connections[leader] = connection
        return self._connections[leader]


def short_commits(answers: Mapping[int, Held], commits: Commits) -> Iterator[tuple[int, Held, int]]:
    """Yield each partition, and each offset below the end of its data that a group has committed,
    or UNKNOWN for a group that committed elsewhere in the topic."""
    for index, held in answers.items():
        if held.data_end < 0:
            continue
        offsets = {own.get(index, UNKNOWN) for own in commits.values() if own}
        for offset in sorted(x for x in offsets if x < held.data_end)[:MOST_COMMITS]:
            yield index, held, offset


async def is_read(
    connection: ClientConnection, tp: TopicPartition, held: Held, offset: int
) -> bool:
    """Ask a leader whether no committed record is left to read from an offset up to the end of the
    data. Raises ClientError."""
    position = max(offset, held.log_start)
    if position >= held.data_end:
        return True
    size = FIRST_BYTES
    for _ in range(MOST_QUESTIONS):
        answer = await connection.send(question_of({tp: position}, size), None, ANSWER_MS)
        reached = reached_in({tp: position}, answer).get(tp, position)
        if isinstance(reached, ErrorCode) or reached <= position:
            return False
        position, size = reached, PARTITION_BYTES
        if position >= held.data_end:
            return True
    return False


def with_read(commits: Commits, answers: Mapping[int, Held], read: set[tuple[int, int]]) -> Commits:
    """Return the commits, those of ``read`` (partition, offset) as the end of its data."""
    return {
        group: offsets
        | {
            index: answers[index].data_end
            for index, offset in read
            if offsets and offsets.get(index, UNKNOWN) == offset
        }
        for group, offsets in ((name, dict(own)) for name, own in commits.items())
    }
