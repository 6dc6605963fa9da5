"""A public consumer without a group, and the logs that it reads, without a connection.

Owns both, and a clock of the consumer that each poll moves on. Not the responses: see
``fetch_answers``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from tests.support.fetch_answers import Fetches
from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, listed_offsets, topic, view_of
from tidelog.aio import Consumer
from tidelog.client.fetching.consumer_record import ConsumerRecord
from tidelog.client.metadata import ClusterMetadata
from tidelog.client.offsets import EARLIEST
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
CHECK_MS = 20
"""How old the topics of a pattern may be."""


class Reading:
    """A consumer without a group, and the logs that it reads."""

    def __init__(self, *topics: str, names: tuple[str, ...] = ("t",), **settings: Any) -> None:
        self.fetches = Fetches()
        self.begins: dict[TopicPartition, Any] = defaultdict(int)
        self.cluster = ScriptedCluster(
            view_of_all(*names),
            {messages.FetchRequest: self.fetches, messages.ListOffsetsRequest: self._listed},
        )
        self.time = 100.0
        settings = {"auto_offset_reset": "earliest", "metadata_max_age_ms": CHECK_MS, **settings}
        self.consumer = Consumer(*topics, cluster=self.cluster, now=lambda: self.time, **settings)

    def _listed(self, _: int, request: Any) -> Any:
        is_begin = request.topics[0].partitions[0].timestamp == EARLIEST
        ends = {where: log[-1][0] for where, log in self.fetches.logs.items()}
        return listed_offsets(request, self.begins if is_begin else defaultdict(int, ends))

    async def poll(self, most: int | None = None) -> dict[TopicPartition, list[Any]]:
        """The values that a poll returns which looks at the group first."""
        self.time += 1
        # The time that leaders wait for more is over.
        waiting, self.fetches.waiting = self.fetches.waiting, []
        for each in waiting:
            each.answer()
        found = await self.consumer.poll(0, most)
        return {where: [each.value for each in records] for where, records in found.items()}

    async def read(self, count: int) -> dict[TopicPartition, list[Any]]:
        """Poll until so many values have come."""
        got: dict[TopicPartition, list[Any]] = {}
        while sum(map(len, got.values())) < count:
            for where, values in (await self.poll()).items():
                got.setdefault(where, []).extend(values)
        return got

    async def polling(self) -> asyncio.Task[dict[TopicPartition, list[ConsumerRecord]]]:
        """Begin a poll that waits until something comes."""
        found = asyncio.ensure_future(self.consumer.poll(10**8))
        await until(lambda: self.consumer._is_polling)
        return found

    async def assigned(self, *wanted: tuple[str, int]) -> None:
        """Poll until these partitions are assigned; no record is returned meanwhile."""
        while self.consumer.assignment() != set(wanted):
            assert await self.poll() == {}
            await asyncio.sleep(0)


def view_of_all(*names: str) -> ClusterMetadata:
    return view_of(*(topic(name, [1, 2], ordered=False) for name in names))


def both(name: str) -> list[tuple[str, int]]:
    return [(name, 0), (name, 1)]
