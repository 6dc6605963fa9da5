"""A fetcher, and the requests that wait for the test to answer them.

Owns both. Not the responses: see ``fetch_answers``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.fetch_answers import Fetches, Waiting
from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, listed_offsets, topic, view_of
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.backoff import steady

A, B, C = (TopicPartition("t", index) for index in range(3))
FIRST_MS, MOST_MS = 10_000, 40_000


class Fetching:
    """A fetcher, and the requests that wait for the test to answer them."""

    def __init__(self, leaders: list[int], *, leader_epoch: int = 3, **options: Any) -> None:
        self.fetches = Fetches()
        self.lists: dict[TopicPartition, int | ErrorCode] = {}
        self.ends: list[tuple[messages.OffsetForLeaderEpochRequest, asyncio.Future[Any]]] = []
        self.cluster = ScriptedCluster(
            view_of(topic("t", leaders, leader_epoch=leader_epoch)),
            {
                messages.FetchRequest: self.fetches,
                messages.ListOffsetsRequest: lambda _, asked: listed_offsets(asked, self.lists),
                messages.OffsetForLeaderEpochRequest: self._end,
            },
            backoff=steady(FIRST_MS, MOST_MS),
            default_api_timeout_ms=options.pop("default_api_timeout_ms", 60_000),
        )
        self.fetcher = Fetcher(self.cluster, **options)

    def _end(self, _: int, request: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.ends.append((request, future))
        return future

    def end_is(self, where: TopicPartition, epoch: int, offset: int, code: int = 0) -> None:
        """Answer the question where an epoch ends."""
        _, future = self.ends.pop(0)
        response = messages.OffsetForLeaderEpochResponse
        part = response.EpochEndOffset(
            partition=where.partition, error_code=code, leader_epoch=epoch, end_offset=offset
        )
        of_topic = response.OffsetForLeaderTopicResult(topic=where.topic, partitions=[part])
        future.set_result(response(topics=[of_topic]))

    async def asked(self) -> Waiting:
        """Return the next Fetch that waits."""
        await until(lambda: self.fetches.waiting)
        return self.fetches.waiting.pop(0)

    async def quiet(self) -> bool:
        """Whether nothing is requested now."""
        for _ in range(20):
            await asyncio.sleep(0)
        return not self.fetches.waiting

    def state(self, where: TopicPartition = A) -> Any:
        return self.fetcher._assigned[where]

    def values(self, found: list[Any]) -> dict[TopicPartition, list[bytes]]:
        got: dict[TopicPartition, list[bytes]] = {}
        for piece in found:
            got.setdefault(piece.partition, []).extend(row.value for row in piece.rows())
        return got

    async def poll(self, most: int | None = None) -> dict[TopicPartition, list[bytes]]:
        return self.values(await self.fetcher.poll(0, most))
