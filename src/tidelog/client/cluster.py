"""A client's view of one cluster: connections by broker, metadata, coordinators.

Owns the metadata cache. Not connections: see ``connections``. Not fetching and producing: see those
packages. Everything here belongs to one event loop; `blocking` is the interface for threads.

Metadata is requested when a topic is unknown, after ``forget`` (a response said that the leader
moved), or when it is older than ``metadata_max_age_ms``. Concurrent callers share one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from tidelog.client import metadata
from tidelog.client.connecting.connection import (
    ClientConnection,
)
from tidelog.client.connections import BrokerConnections
from tidelog.client.connections import ClusterSettings as ClusterSettings
from tidelog.client.errors import ClientError, Refused, WrongState
from tidelog.client.found_coordinators import LATE_MS, FoundCoordinators
from tidelog.client.metadata import ClusterMetadata, Partition, Topic
from tidelog.client.retries import is_worth_retrying, retrying
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, why_invalid
from tidelog.protocol import messages
from tidelog.runtime.tasks import retrieve_error, shared

Result = TypeVar("Result")

COORDINATOR_PURPOSE = "coordinator"


class Cluster(BrokerConnections):
    """Connections to one cluster. ``async with Cluster("host:port") as cluster`` opens and closes.

    ``bootstrap`` is ``host:port,…``. Methods raise ClientError and nothing else.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], settings: ClusterSettings | None = None
    ) -> None:
        super().__init__(bootstrap, settings or ClusterSettings())
        self._view_time: float | None = None
        self._asked_last = ""
        self._doubted: set[str] = set()
        self._wanted: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._coordinators = FoundCoordinators(self)

    async def __aenter__(self) -> Cluster:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, timeout_ms: int | None = None) -> None:
        """Reach the cluster through any bootstrap address.

        Raises ClusterUnreachable after ``timeout_ms`` (default: the default API timeout).
        """
        await self.retry(self.refresh, timeout_ms)

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        await self.close_connections()

    async def retry(
        self,
        attempt: Callable[[], Awaitable[Result]],
        timeout_ms: int | None = None,
        failed: Callable[[ClientError], None] | None = None,
        retry_on: Callable[[ClientError], bool] = is_worth_retrying,
    ) -> Result:
        """Run ``attempt`` with this cluster's backoff and deadline; see ``retries.retrying``."""
        if timeout_ms is None:
            timeout_ms = self.settings.default_api_timeout_ms
        return await retrying(
            attempt,
            timeout_ms=timeout_ms,
            backoff=self.settings.backoff,
            failed=failed,
            retry_on=retry_on,
        )

    # The controller

    async def send_to_controller(
        self, request: Any, *, timeout_ms: int | None = None, changes: bool = True
    ) -> Any:
        """Send an administrative request as ``send_to_any``, to the broker named as controller
        first."""
        await self._controller_known()
        return await self._send_to_any(request, self._view.controller_id, timeout_ms, changes)

    async def controller_connection(self) -> ClientConnection:
        """Return a connection to the broker named as controller, or to any other that greets."""
        await self._controller_known()
        return await self.any_connection(self._view.controller_id)

    async def _controller_known(self) -> None:
        if self._stale or self._view.controller_id not in self._view.brokers:
            await self.refresh()

    # Metadata

    def forget(self) -> None:
        """Mark the metadata as stale, after a response that says so."""
        self._stale = True

    async def topics(
        self, names: Iterable[str], *, timeout_ms: int | None = None, create: bool = False
    ) -> dict[str, Topic]:
        """Return these topics with their partitions, once all are known without error.

        ``create`` lets the broker create missing topics (auto.create.topics.enable). Raises Refused
        for a topic that still has an error at the deadline; for an unknown or invalid topic at once
        unless ``create``.
        """
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            # Otherwise no later request for metadata could be written, or none would succeed.
            if (why := why_invalid(name)) is not None:
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name[:300]!r}", why)
        self._wanted.update(wanted)

        async def attempt() -> dict[str, Topic]:
            fresh = not self.expired
            if not fresh or any(self._view.topics.get(name) is None for name in wanted):
                await self.refresh(create=create)
            for name in wanted:
                topic = self._view.topics.get(name)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
                if code:
                    self._stale = True
                    raise Refused(code, f"topic {name!r}")
            return {name: self._view.topics[name] for name in wanted}

        def worth(error: ClientError) -> bool:
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if isinstance(error, Refused) and error.code == missing and not create:
                return False
            return is_worth_retrying(error)

        return await self.retry(attempt, timeout_ms, retry_on=worth)

    async def all_topics(self) -> ClusterMetadata:
        """Request the metadata of every topic and return the view."""
        return await self.describe(None)

    async def describe(
        self,
        names: Sequence[str] | None,
        *,
        node_id: int | None = None,
        first: int | None = None,
        timeout_ms: int | None = None,
    ) -> ClusterMetadata:
        """Request the metadata of these topics (None: all) and return it, errors included.

        ``node_id``: request it from this broker, once, and not from any. ``first``: once, from this
        broker, or from another one if it is silent.
        """
        request = _request_for(names, create=False)

        async def attempt() -> ClusterMetadata:
            if node_id is not None:
                answer = await self.send(node_id, request, timeout_ms=timeout_ms)
            else:
                _, answer = await self.ask_any(self._asking(request), first=first)
            view = metadata.read_answer(answer)
            self._take(view, whole=names is None)
            return view

        is_once = node_id is not None or first is not None
        return await (attempt() if is_once else self.retry(attempt, timeout_ms))

    async def leader(self, partition: TopicPartition, least_epoch: int = -1) -> Partition:
        """Return a partition that has a leader, from metadata that is not known to be stale.

        ``least_epoch``: an epoch that is known to have begun. A leader of an earlier one was
        deposed, so a broker that names it is stale. One attempt: raises Refused
        (LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_LEADER_EPOCH).
        """
        self._wanted.add(partition.topic)
        if self.expired or self._view.partition(partition) is None:
            await self.refresh()
        state = self._view.partition(partition)
        if state is None:
            # A partitioned broker does not know new partitions: try another one next time.
            self._doubted.add(self._asked_last)
            topic = self._view.topics.get(partition.topic)
            code = topic.error if topic is not None else 0
            raise Refused(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(partition))
        if state.leader == metadata.NO_LEADER or state.leader not in self._view.brokers:
            self._stale = True
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        if 0 <= state.leader_epoch < least_epoch:
            # Try others first next time: a partitioned broker stays stale for long.
            self._stale = True
            self._doubted.add(self._asked_last)
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, str(partition))
        if least_epoch >= 0:
            self._doubted.clear()
        return state

    @property
    def expired(self) -> bool:
        """Whether the metadata is stale: never requested, too old, or forgotten."""
        if self._stale or self._view_time is None:
            return True
        age_s = asyncio.get_running_loop().time() - self._view_time
        return age_s * 1000 > self.settings.metadata_max_age_ms

    async def refresh(self, create: bool = False) -> None:
        """Request the metadata of the topics in use; one attempt, shared by concurrent callers."""
        if create or self._refreshing is None or self._refreshing.done():
            task = asyncio.get_running_loop().create_task(self._ask(create))
            task.add_done_callback(retrieve_error)
            self._refreshing = task
        await shared(self._refreshing, WrongState("this client is closed: open another one"))

    async def _ask(self, create: bool) -> None:
        names = sorted(self._wanted)
        request = _request_for(names, create=create)
        # Cleared first: a ``forget`` while the request is in flight must not be lost.
        self._stale = False
        try:
            peer, answer = await self.ask_any(self._asking(request), last=self._doubted)
            self._asked_last = peer
            view = metadata.read_answer(answer)
        except BaseException:
            self._stale = True
            raise
        self._take(view, whole=False)

    def _asking(self, request: Any) -> Callable[[ClientConnection], Awaitable[tuple[str, Any]]]:
        """Return what sends a request and returns the address of the broker with its response."""

        async def ask(connection: ClientConnection) -> tuple[str, Any]:
            timeout_ms = self.settings.request_timeout_ms
            return connection.peer, await connection.send(request, None, timeout_ms)

        return ask

    def _take(self, newer: ClusterMetadata, *, whole: bool) -> None:
        self._view = self._view.merged(newer, whole=whole)
        self._view_time = asyncio.get_running_loop().time()

    # Coordinators

    async def coordinator(self, group: str) -> int:
        """Return the id of the broker that coordinates a group; one attempt, then remembered."""
        return (await self._coordinators.of(group, self.settings.request_timeout_ms)).node_id

    def known_coordinator(self, group: str) -> int | None:
        """Return the broker that was found to coordinate a group; None: it is looked for again."""
        broker = self._coordinators.known(group)
        return None if broker is None else broker.node_id

    def forget_coordinator(self, group: str) -> None:
        """Forget the coordinator of a group, after a response that says it moved."""
        self._coordinators.forget(group)

    async def send_to_coordinator(
        self,
        group: str,
        request: Any,
        *,
        timeout_ms: int | None = None,
        purpose: str = COORDINATOR_PURPOSE,
        late_ms: int = LATE_MS,
    ) -> Any:
        """Send a request to a group's coordinator; one attempt, see ``FoundCoordinators.send``.

        Each member has its own ``purpose``: a join waits for all members, and must not delay other
        requests; its response is late only when they have had time to join.
        """
        find_ms = self.settings.request_timeout_ms
        times_ms = (timeout_ms or find_ms, find_ms, late_ms)
        return await self._coordinators.send(group, request, purpose, *times_ms)


def _request_for(names: Sequence[str] | None, *, create: bool) -> messages.MetadataRequest:
    request = messages.MetadataRequest
    topics = None if names is None else [request.MetadataRequestTopic(name=name) for name in names]
    return request(topics=topics, allow_auto_topic_creation=create, include_counts=True)
