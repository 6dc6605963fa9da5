"""A consumer that assigns itself, and the coordinator that stores what its group has committed.

Owns the responses of that coordinator: at once, or when the test says so. Not the leaders: see
``fetch_answers``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.fetch_answers import Fetches
from tests.support.scripted_cluster import ScriptedCluster, listed_offsets, topic, view_of
from tidelog.aio import Consumer
from tidelog.client.groups.committed_offsets import Position
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Committing:
    """A consumer that assigns itself, with a group whose offsets are here."""

    def __init__(self, **settings: Any) -> None:
        self.fetches = Fetches()
        self.code = ErrorCode.NONE
        self.sent: list[int] = []
        self.held: asyncio.Future[None] | None = None
        """What the coordinator waits for before it answers a commit."""
        self.stored: dict[TopicPartition, Position] = {}
        self.cluster = ScriptedCluster(
            view_of(topic("t", [1, 2], ordered=False)),
            {
                messages.FetchRequest: self.fetches,
                messages.OffsetCommitRequest: self._commit,
                messages.OffsetFetchRequest: self._fetch,
                messages.ListOffsetsRequest: lambda _, asked: listed_offsets(asked, {A: 0, B: 0}),
            },
        )
        settings = {"group_id": "g", "enable_auto_commit": False, **settings}
        self.consumer = Consumer(cluster=self.cluster, auto_offset_reset="earliest", **settings)

    def _commit(self, _: int, request: Any) -> Any:
        self.sent.append(request.topics[0].partitions[0].committed_offset)
        if self.held is None:
            return self._committed(request)
        return asyncio.ensure_future(self._committed_later(self.held, request))

    async def _committed_later(self, held: asyncio.Future[None], request: Any) -> Any:
        await held
        return self._committed(request)

    def _committed(self, request: Any) -> Any:
        response = messages.OffsetCommitResponse
        topics = []
        for each in request.topics:
            parts = []
            for part in each.partitions:
                where = TopicPartition(each.name, part.partition_index)
                if not self.code:
                    self.stored[where] = Position(
                        part.committed_offset, part.committed_leader_epoch, part.committed_metadata
                    )
                parts.append(
                    response.OffsetCommitResponsePartition(
                        partition_index=part.partition_index, error_code=int(self.code)
                    )
                )
            topics.append(response.OffsetCommitResponseTopic(name=each.name, partitions=parts))
        return response(topics=topics)

    def _fetch(self, _: int, request: Any) -> Any:
        response = messages.OffsetFetchResponse
        parts = [
            response.OffsetFetchResponsePartitions(
                partition_index=where.partition,
                committed_offset=each.offset,
                committed_leader_epoch=each.leader_epoch,
                metadata=each.metadata,
            )
            for where, each in self.stored.items()
        ]
        topics = [response.OffsetFetchResponseTopics(name="t", partitions=parts)]
        group = response.OffsetFetchResponseGroup(group_id="g", topics=topics)
        return response(groups=[group])

    async def read(self, count: int) -> None:
        self.consumer.assign([A])
        self.fetches.write(A, *(b"%d" % n for n in range(count)))
        while not await self.consumer.poll(10**8):
            pass
