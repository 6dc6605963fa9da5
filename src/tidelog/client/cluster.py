"""A client's view of one cluster: addresses, connections by broker, metadata, coordinators.

Owns the connections and the metadata cache. Not fetching and producing: see those packages.
Everything here belongs to one event loop; `blocking` is the interface for threads.

Metadata is requested when a topic is unknown, after ``forget`` (a response said that the leader
moved), or when it is older than ``metadata_max_age_ms``. Concurrent callers share one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tidelog.client import metadata
from tidelog.client.connecting.connection import (
    CONNECT_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    ClientConnection,
    connect,
)
from tidelog.client.connecting.first_answer import PeerAddress, first_answer, in_turn
from tidelog.client.errors import ClientError, ClusterUnreachable, ConnectionLost, Refused
from tidelog.client.metadata import BrokerAddress, ClusterMetadata, Partition, Topic
from tidelog.client.retries import is_worth_retrying, retrying
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, why_invalid
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff
from tidelog.runtime.cluster_secret import ClusterSecret

Result = TypeVar("Result")

GROUP_COORDINATOR = 0
"""Key type of FindCoordinator for groups."""

COORDINATOR_PURPOSE = "coordinator"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Times in milliseconds; Kafka's names and defaults where it has them."""

    client_id: str = "tidelog"
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    default_api_timeout_ms: int = 60_000
    metadata_max_age_ms: int = 300_000
    max_in_flight: int = 5
    backoff: Backoff = field(default_factory=Backoff)
    secret: ClusterSecret | None = None
    """The cluster secret to prove on each connection; only operators' commands set it."""


class Cluster:
    """Connections to one cluster. ``async with Cluster("host:port") as cluster`` opens and closes.

    ``bootstrap`` is ``host:port,…``. Methods raise ClientError and nothing else.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], settings: ClusterSettings | None = None
    ) -> None:
        self.settings = settings or ClusterSettings()
        self._bootstrap = metadata.parse_bootstrap(bootstrap)
        self._view = ClusterMetadata()
        self._view_time: float | None = None
        self._stale = True
        self._asked_last = ""
        self._doubted: set[str] = set()
        self._silent: set[str] = set()
        """Addresses that were asked and passed over; each until it answers again."""
        self._wanted: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._connections: dict[tuple[Any, str], asyncio.Task[ClientConnection]] = {}
        self._coordinators: dict[str, BrokerAddress] = {}

    async def __aenter__(self) -> Cluster:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def view(self) -> ClusterMetadata:
        """The cached metadata."""
        return self._view

    async def open(self, timeout_ms: int | None = None) -> None:
        """Reach the cluster through any bootstrap address.

        Raises ClusterUnreachable when none responds within ``timeout_ms`` (default: the default API
        timeout).
        """
        await self.retry(self.refresh, timeout_ms)

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        tasks = list(self._connections.values())
        self._connections.clear()
        for task in tasks:
            if _connected(task):
                task.result().close()
            else:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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

    # Connections

    async def connection(self, node_id: int, purpose: str = "") -> ClientConnection:
        """Return the open connection to a broker, or open one.

        Each ``purpose`` has its own connection, so that a long wait (a fetch, a group's join) does
        not delay other requests. Raises ConnectionLost.
        """
        broker = self._view.brokers.get(node_id)
        if broker is None:
            self._stale = True
            raise ConnectionLost(f"broker {node_id} is not among the live brokers")
        return await self._connection_to((node_id, purpose), broker.host, broker.port)

    def close_purpose(self, purpose: str) -> None:
        """Close the connections of a purpose that is no longer used."""
        for key in [key for key in self._connections if key[1] == purpose]:
            task = self._connections.pop(key)
            if _connected(task):
                task.result().close()
            else:
                task.cancel()

    async def send(
        self,
        node_id: int,
        request: Any,
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
        purpose: str = "",
    ) -> Any:
        """Send one request to one broker and return the response. Never retries."""
        connection = await self.connection(node_id, purpose)
        return await connection.send(
            request, version, timeout_ms or self.settings.request_timeout_ms
        )

    async def any_connection(self, last: Collection[str] = ()) -> ClientConnection:
        """Return a connection to any reachable broker: open ones first.

        ``last``: addresses to try only after all others. Raises ClusterUnreachable with the reasons
        of the addresses tried.
        """
        reasons: list[str] = []
        for key, host, port in self._addresses(last):
            try:
                return await self._connection_to((key, ""), host, port)
            except ConnectionLost as error:
                reasons.append(str(error))
        raise _unreachable(reasons)

    def _addresses(self, last: Collection[str]) -> list[PeerAddress]:
        """Return all known brokers in the order in which they are asked, ``last`` at the end."""
        brokers = [
            PeerAddress(each.node_id, each.host, each.port) for each in self.view.brokers.values()
        ]
        # In random order: a broker that accepts and never responds must not be tried every time.
        self.settings.backoff.random.shuffle(brokers)
        brokers += [PeerAddress(f"bootstrap {each}", *each) for each in self._bootstrap]
        opened = {
            task.result().peer: key
            for (key, purpose), task in self._connections.items()
            # A connection with a purpose may have a long request in flight and delay this one.
            if not purpose and _connected(task) and not task.result().closed
        }
        return in_turn(brokers, opened, {*last, *self._silent})

    async def ask_any(
        self,
        ask: Callable[[ClientConnection], Awaitable[Result]],
        *,
        first: int | None = None,
        last: Collection[str] = (),
    ) -> Result:
        """Ask any broker a question, which changes nothing; another one too when it is silent.

        ``first``: the broker (id) to begin with; ``last``: addresses to try only after all others,
        beside those that were silent before. Raises what ``ask`` raises, and ClusterUnreachable.
        """
        addresses = self._addresses(last)
        if first is not None and (begins := self._view.brokers.get(first)) is not None:
            peer = f"{begins.host}:{begins.port}"
            addresses.sort(key=lambda each: each.peer != peer)
        reasons: list[str] = []

        async def attempt(address: PeerAddress) -> Result:
            try:
                connection = await self._connection_to((address.key, ""), *address[1:])
            except ConnectionLost as error:
                reasons.append(str(error))
                raise
            answer = await ask(connection)
            self._silent.discard(connection.peer)
            return answer

        try:
            return await first_answer(
                [partial(attempt, each) for each in addresses],
                passed_over=lambda place: self._silent.add(addresses[place].peer),
            )
        except ConnectionLost:
            if len(reasons) == len(addresses):
                raise _unreachable(reasons) from None
            raise

    async def send_to_any(self, request: Any, *, timeout_ms: int | None = None) -> Any:
        """Send a request that every broker can serve or forward."""
        connection = await self.any_connection()
        return await connection.send(request, None, timeout_ms or self.settings.request_timeout_ms)

    async def send_to_controller(self, request: Any, *, timeout_ms: int | None = None) -> Any:
        """Send an administrative request to the broker named as controller."""
        if self._stale or self._view.controller_id not in self._view.brokers:
            await self.refresh()
        if self._view.controller_id not in self._view.brokers:
            return await self.send_to_any(request, timeout_ms=timeout_ms)
        return await self.send(self._view.controller_id, request, timeout_ms=timeout_ms)

    async def _connection_to(self, key: tuple[Any, str], host: str, port: int) -> ClientConnection:
        task = self._connections.get(key)
        if task is not None and task.done():
            if not _connected(task) or task.result().closed:
                task = None
            elif task.result().peer != f"{host}:{port}":
                task.result().close("the broker has another address now")
                task = None
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(host, port))
            task.add_done_callback(_look_at_error)
            self._connections[key] = task
        # Shielded: several callers may wait for the same connection.
        return await asyncio.shield(task)

    async def _connect(self, host: str, port: int) -> ClientConnection:
        try:
            return await connect(
                host,
                port,
                client_id=self.settings.client_id,
                max_in_flight=self.settings.max_in_flight,
                connect_timeout_ms=self.settings.connect_timeout_ms,
                secret=self.settings.secret,
            )
        except ConnectionLost:
            # The cluster may have changed: refresh the metadata before the next attempt.
            self._stale = True
            raise

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
        timeout_ms: int | None = None,
    ) -> ClusterMetadata:
        """Request the metadata of these topics (None: all) and return it, errors included.

        ``node_id``: request it from this broker, once, and not from any.
        """
        request = _request_for(names, create=False)

        async def attempt() -> ClusterMetadata:
            if node_id is None:
                found = metadata.read_answer(await self.send_to_any(request))
            else:
                answer = await self.send(node_id, request, timeout_ms=timeout_ms)
                found = metadata.read_answer(answer)
            self._take(found, whole=names is None)
            return found

        return await (attempt() if node_id is not None else self.retry(attempt, timeout_ms))

    async def leader(self, partition: TopicPartition, least_epoch: int = -1) -> Partition:
        """Return a partition that has a leader, from metadata that is not known to be stale.

        ``least_epoch``: an epoch that is known to have begun. A leader of an earlier one was
        deposed, so a broker that names it is stale. One attempt: raises Refused
        (LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_LEADER_EPOCH).
        """
        self._wanted.add(partition.topic)
        if self.expired or self._view.partition(partition) is None:
            await self.refresh()
        found = self._view.partition(partition)
        if found is None:
            # A partitioned broker does not know new partitions: try another one next time.
            self._doubted.add(self._asked_last)
            topic = self._view.topics.get(partition.topic)
            code = topic.error if topic is not None else 0
            raise Refused(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(partition))
        if found.leader == metadata.NO_LEADER or found.leader not in self._view.brokers:
            self._stale = True
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        if 0 <= found.leader_epoch < least_epoch:
            # Try others first next time: a partitioned broker stays stale for long.
            self._stale = True
            self._doubted.add(self._asked_last)
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, str(partition))
        if least_epoch >= 0:
            self._doubted.clear()
        return found

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
            task.add_done_callback(_look_at_error)
            self._refreshing = task
        await asyncio.shield(self._refreshing)

    async def _ask(self, create: bool) -> None:
        names = sorted(self._wanted)
        request = _request_for(names, create=create)
        # Cleared first: a ``forget`` while the request is in flight must not be lost.
        self._stale = False
        try:
            peer, answer = await self.ask_any(self._asking(request), last=self._doubted)
            self._asked_last = peer
            found = metadata.read_answer(answer)
        except BaseException:
            self._stale = True
            raise
        self._take(found, whole=False)

    def _asking(self, request: Any) -> Callable[[ClientConnection], Awaitable[tuple[str, Any]]]:
        """Return what sends a request and returns the address of the broker with its response."""

        async def ask(connection: ClientConnection) -> tuple[str, Any]:
            timeout_ms = self.settings.request_timeout_ms
            return connection.peer, await connection.send(request, None, timeout_ms)

        return ask

    def _take(self, found: ClusterMetadata, *, whole: bool) -> None:
        self._view = self._view.merged(found, whole=whole)
        self._view_time = asyncio.get_running_loop().time()

    # Coordinators

    async def coordinator(self, group: str) -> int:
        """Return the id of the broker that coordinates a group; one attempt, then remembered."""
        known = self._coordinators.get(group)
        if known is None:
            known = self._coordinators[group] = await self._find_coordinator(group)
        return known.node_id

    def known_coordinator(self, group: str) -> int | None:
        """Return the broker that was found to coordinate a group; None: it is looked for again."""
        known = self._coordinators.get(group)
        return None if known is None else known.node_id

    def forget_coordinator(self, group: str) -> None:
        """Forget the coordinator of a group, after a response that says it moved."""
        self._coordinators.pop(group, None)

    async def send_to_coordinator(
        self,
        group: str,
        request: Any,
        *,
        timeout_ms: int | None = None,
        purpose: str = COORDINATOR_PURPOSE,
    ) -> Any:
        """Send a request to a group's coordinator; one attempt.

        Each member has its own ``purpose``: a join waits for all members, and must not delay other
        requests.
        """
        node_id = await self.coordinator(group)
        broker = self._coordinators[group]
        try:
            key = (node_id, purpose)
            connection = await self._connection_to(key, broker.host, broker.port)
            return await connection.send(
                request, None, timeout_ms or self.settings.request_timeout_ms
            )
        except ConnectionLost:
            self.forget_coordinator(group)
            raise

    async def _find_coordinator(self, group: str) -> BrokerAddress:
        connection = await self.any_connection()
        version = connection.version_of(ApiKey.FIND_COORDINATOR)
        request = messages.FindCoordinatorRequest(
            key=group, key_type=GROUP_COORDINATOR, coordinator_keys=[group]
        )
        answer = await connection.send(request, version, self.settings.request_timeout_ms)
        found = answer.coordinators[0] if version >= 4 else answer
        if found.error_code:
            raise Refused(found.error_code, f"group {group!r}", found.error_message)
        return BrokerAddress(found.node_id, found.host, found.port)


def _request_for(names: Sequence[str] | None, *, create: bool) -> messages.MetadataRequest:
    request = messages.MetadataRequest
    topics = None if names is None else [request.MetadataRequestTopic(name=name) for name in names]
    return request(topics=topics, allow_auto_topic_creation=create, include_counts=True)


def _unreachable(reasons: Iterable[str]) -> ClusterUnreachable:
    return ClusterUnreachable(f"no broker can be reached: {'; '.join(dict.fromkeys(reasons))}")


def _connected(task: asyncio.Task[ClientConnection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _look_at_error(task: asyncio.Task[Any]) -> None:
    # Callers get the error; retrieve it here, so that the loop does not warn without a caller.
    if not task.cancelled():
        task.exception()
