"""A cluster whose brokers answer each request as the test says, without a connection.

Owns what stands in for connections and for Metadata. The rest is the real ``client.cluster``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ClientError
from tidelog.client.metadata import BrokerAddress, ClusterMetadata, Partition, Topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff

NEWEST = 99
"""The version of every request: newer than all rules that depend on one."""

Answer = Callable[[int, Any], Any]
"""The response of a broker (id) to a request, an exception to raise, or a future of either."""


def topic(
    name: str, leaders: Sequence[int], *, ordered: bool = True, leader_epoch: int = 3, **other: Any
) -> Topic:
    """Return a topic whose partitions have these leaders."""
    partitions = {
        index: Partition(
            index, leader, leader_epoch, (leader,), (leader,), (), partition_epoch=10 + index
        )
        for index, leader in enumerate(leaders)
    }
    counts = {"initial_partition_count": 1, "undeleted_partition_count": len(leaders)}
    of_order: dict[str, Any] = {**counts, "resize_epoch": 1} if ordered else {}
    return Topic(name, UUID(int=1), False, partitions, **(of_order | other))


def view_of(*topics: Topic, brokers: Iterable[int] = range(3)) -> ClusterMetadata:
    """Return the metadata of a cluster with these topics."""
    addresses = {each: BrokerAddress(each, "h", each) for each in brokers}
    return ClusterMetadata("c", 0, addresses, {each.name: each for each in topics})


class ScriptedCluster(Cluster):
    """``answers``: by the class of a request. ``asked`` has all requests, with their brokers."""

    def __init__(
        self,
        view: ClusterMetadata,
        answers: dict[type[Any], Answer] | None = None,
        **settings: Any,
    ) -> None:
        backoff = Backoff(1, 1, random.Random(0), jitter=0)
        super().__init__("h:1", ClusterSettings(**{"backoff": backoff, **settings}))
        self.described = view
        """What brokers answer to the next request for metadata."""
        self.answers = dict(answers or {})
        self.asked: list[tuple[int, Any]] = []
        self.timeouts_ms: list[int | None] = []
        """The time-out of each request to the connection of a broker."""
        self.refreshes = 0
        self.described_by: list[int | None] = []
        self._view = view
        self._stale = False

    def asked_for(self, kind: type[Any]) -> list[tuple[int, Any]]:
        """Return the requests of one kind."""
        return [(node_id, each) for node_id, each in self.asked if isinstance(each, kind)]

    def show(self, *topics: Topic) -> None:
        """Let these topics be known to the client at once."""
        self.described = replace(self.described, topics={each.name: each for each in topics})
        self._view = self.described

    @property
    def expired(self) -> bool:
        """Whether a response said that metadata are stale."""
        return self._stale

    async def open(self, timeout_ms: int | None = None) -> None:
        """Nothing has to be reached."""

    async def connection(self, node_id: int, purpose: str = "") -> ClientConnection:
        """Return what stands in for a connection to a broker."""
        return cast("ClientConnection", _Connection(self, node_id))

    async def refresh(self, create: bool = False) -> None:
        """Take up what is described."""
        self.refreshes += 1
        self._stale = False
        self._view = self._view.merged(self.described, whole=False)

    async def describe(
        self,
        names: Sequence[str] | None,
        *,
        node_id: int | None = None,
        first: int | None = None,
        timeout_ms: int | None = None,
    ) -> ClusterMetadata:
        """Take up what is described, and return it."""
        self.described_by.append(first if node_id is None else node_id)
        self._view = self._view.merged(self.described, whole=names is None)
        return self.described

    async def send_to_any(self, request: Any, **_: Any) -> Any:
        """Send it to broker 0."""
        return await self.answered(0, request)

    async def ask_any(self, ask: Callable[[ClientConnection], Awaitable[Any]], **_: Any) -> Any:
        """Ask broker 0."""
        return await ask(await self.connection(0))

    async def send_to_coordinator(
        self, group: str, request: Any, *, timeout_ms: int | None = None, **_: Any
    ) -> Any:
        """Send it to broker 0, which coordinates all groups."""
        return await self.answered(0, request)

    async def answered(self, node_id: int, request: Any) -> Any:
        """Return what a broker answers."""
        self.asked.append((node_id, request))
        found = self.answers[type(request)](node_id, request)
        if isinstance(found, asyncio.Future):
            found = await found
        if isinstance(found, ClientError):
            raise found
        return found


@dataclass
class _Connection:
    cluster: ScriptedCluster
    node_id: int
    peer: str = "h:1"
    closed: bool = False
    is_receiving: bool = False

    def version_of(self, _: Any, newest: int = NEWEST) -> int:
        return newest

    def speaks(self, _: Any) -> bool:
        return True

    async def send(self, request: Any, _: Any = None, timeout_ms: int | None = None) -> Any:
        self.cluster.timeouts_ms.append(timeout_ms)
        return await self.cluster.answered(self.node_id, request)

    def submit(self, request: Any, *_: Any, answered: bool) -> asyncio.Future[Any]:
        assert answered
        self.cluster.asked.append((self.node_id, request))
        found = self.cluster.answers[type(request)](self.node_id, request)
        assert isinstance(found, asyncio.Future)
        return found


def listed_offsets(
    request: messages.ListOffsetsRequest, offsets: dict[TopicPartition, int | ErrorCode]
) -> messages.ListOffsetsResponse:
    """Return the response to a ListOffsets request; an error where there is no offset."""
    response = messages.ListOffsetsResponse
    topics = []
    for asked in request.topics:
        parts = []
        for part in asked.partitions:
            found = offsets[TopicPartition(asked.name, part.partition_index)]
            is_error = isinstance(found, ErrorCode)
            parts.append(
                response.ListOffsetsPartitionResponse(
                    partition_index=part.partition_index,
                    error_code=int(found) if is_error else 0,
                    offset=-1 if is_error else found,
                )
            )
        topics.append(response.ListOffsetsTopicResponse(name=asked.name, partitions=parts))
    return response(topics=topics)
