"""A sender whose topic is resized when the test says so, and what its records wait for.

Owns the sender and the metadata that it sees. Not the leaders: see ``resizing_leaders``.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.resizing_leaders import NAME, ResizingCluster, ResizingLeaders
from tidelog.client.cluster import Cluster
from tidelog.client.metadata import Topic
from tidelog.client.producing.bulk_sender import BulkSender
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.errors import ErrorCode
from tidelog.partitioning.hashing import hash_of_key
from tidelog.protocol import messages
from tidelog.records.builder import Producer
from tidelog.records.reader import read_batch

LATER_MS = 60_000
ONE = Producer(1, 0)


class Turns:
    """A sender, and metadata that change when the test says so."""

    def __init__(self, chance: random.Random | None = None, **settings: Any) -> None:
        """``chance``: that of the client."""
        self.leaders = ResizingLeaders(random.Random(1))
        self.cluster = ResizingCluster(self.leaders, chance or random.Random(1))
        self.sender = RecordSender(cast("Cluster", self.cluster), SendSettings(**settings))
        self.bulk = BulkSender(self.sender)
        self.sent: list[asyncio.Future[Any]] = []

    async def send(self, value: bytes, key: bytes | None = None) -> None:
        """Send a record whose outcome does not matter."""
        self.sent.append(await self.sender.send(NAME, value, key))

    @property
    def topic(self) -> Topic:
        return self.leaders.described.topics[NAME]

    async def show(self, **changed: Any) -> None:
        """Let metadata show another topic, and the sender look at them."""
        shown = replace(self.topic, **changed)
        self.leaders.described = replace(self.leaders.described, topics={NAME: shown})
        self.cluster.view = self.leaders.described
        self.sender.delivery.drain()

    async def grow(self) -> None:
        """Double the partitions."""
        topic = self.topic
        count = 2 * topic.count
        grown = {
            index: replace(
                topic.partitions[0], index=index, partition_epoch=index, birth_epoch=index // 2
            )
            for index in range(count)
        }
        epoch = topic.resize_epoch + 1
        await self.show(
            partitions=grown,
            undeleted_partition_count=count,
            resize_epoch=epoch,
            max_partition_epoch=count - 1,
        )

    def waiting(self) -> dict[int, list[bytes | None]]:
        """The values that wait to be sent, by partition."""
        found: dict[int, list[bytes | None]] = {}
        for queue in self.sender.queues:
            for batch in queue.waiting:
                values = [record.value for record in read_batch(batch.builder.build())]
                found.setdefault(queue.partition.partition, []).extend(values)
        return found

    async def end(self) -> None:
        """Close it, whatever is not sent."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await self.sender.close()
        for each in self.sent:
            each.exception()


def key_of(place: int, count: int) -> bytes:
    """Return a key whose partition is ``place`` at a count."""
    return next(key for n in range(999) if hash_of_key(key := b"k%d" % n) % count == place)


def refusal_of(
    request: messages.ProduceRequest, code: ErrorCode = ErrorCode.INVALID_PARTITION_METADATA
) -> messages.ProduceResponse:
    response = messages.ProduceResponse
    (topic,) = request.topic_data
    parts = [
        response.PartitionProduceResponse(part.index, code, -1) for part in topic.partition_data
    ]
    return response(responses=[response.TopicProduceResponse(NAME, partition_responses=parts)])


def now() -> float:
    return asyncio.get_running_loop().time()
