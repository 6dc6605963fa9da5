"""A client's connections to the brokers of one cluster, and which brokers a question goes to.

Owns the connections by broker and purpose, the addresses, and which of them are silent. Not what
metadata say: see ``cluster``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.client.connecting.connection import (
    CONNECT_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    ClientConnection,
    connect,
)
from tidelog.client.connecting.first_answer import (
    PeerAddress,
    first_answer,
    in_turn,
    several_answers,
)
from tidelog.client.errors import ClusterUnreachable, ConnectionLost
from tidelog.client.metadata import BrokerAddress, ClusterMetadata, parse_bootstrap
from tidelog.runtime.backoff import Backoff
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.tasks import retrieve_error

if TYPE_CHECKING:
    from tidelog.runtime.tls_files import TlsFiles

Result = TypeVar("Result")


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
    tls: TlsFiles | None = None
    """The keys of each connection; None for PLAINTEXT."""


class BrokerConnections:
    """The connections of one client. Methods raise ClientError and nothing else."""

    def __init__(self, bootstrap: str | Sequence[str], settings: ClusterSettings) -> None:
        self.settings = settings
        self._bootstrap = parse_bootstrap(bootstrap)
        self._view = ClusterMetadata()
        self._stale = True
        """Whether metadata must be requested before they are used."""
        self._silent: set[str] = set()
        """Addresses that were asked and passed over; each until it answers again."""
        self._connections: dict[tuple[Any, str], asyncio.Task[ClientConnection]] = {}

    @property
    def view(self) -> ClusterMetadata:
        """The cached metadata."""
        return self._view

    async def close_connections(self) -> None:
        """Close all connections. Requests in flight fail."""
        tasks = list(self._connections.values())
        self._connections.clear()
        for task in tasks:
            if _connected(task):
                task.result().close("this client is closed")
            else:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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

    def close_purpose(self, purpose: str, why: str) -> None:
        """Close the connections of a purpose that is no longer used; see ``close_connection``."""
        for node_id, _ in [key for key in self._connections if key[1] == purpose]:
            self.close_connection(node_id, purpose, why)

    def close_connection(self, node_id: Any, purpose: str, why: str) -> None:
        """Close the connection to one broker, if there is one.

        Requests in flight fail: ``why`` is what their errors say.
        """
        task = self._connections.pop((node_id, purpose), None)
        if task is None:
            return
        if _connected(task):
            task.result().close(why)
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

    async def any_connection(self, first: int | None = None) -> ClientConnection:
        """Return a connection to any reachable broker: open ones first; ``first`` as ``ask_any``.

        Raises ClusterUnreachable with the reasons of the addresses tried.
        """

        async def itself(connection: ClientConnection) -> ClientConnection:
            return connection

        return await self.ask_any(itself, first=first)

    def _addresses(self, last: Collection[str]) -> list[PeerAddress]:
        """Return all known brokers in the order in which they are asked, ``last`` at the end."""
        brokers = [
            PeerAddress(node.node_id, node.host, node.port) for node in self.view.brokers.values()
        ]
        # In random order: a broker that accepts and never responds must not be tried every time.
        self.settings.backoff.random.shuffle(brokers)
        brokers += [PeerAddress(f"bootstrap {address}", *address) for address in self._bootstrap]
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
        purpose: str = "",
    ) -> Result:
        """Ask any broker a question, which changes nothing; another one too when it is silent.

        ``first``: the broker (id) to begin with; ``last``: addresses to try only after all others,
        beside those that were silent before. Raises what ``ask`` raises, and ClusterUnreachable.
        """
        addresses = self._addresses(last)
        if first is not None and (begins := self._view.brokers.get(first)) is not None:
            peer = begins.peer
            addresses.sort(key=lambda address: address.peer != peer or peer in self._silent)
        reasons: list[str] = []

        async def attempt(address: PeerAddress) -> Result:
            try:
                connection = await self._connection_to((address.key, purpose), *address[1:])
            except ConnectionLost as error:
                reasons.append(str(error))
                raise
            answer = await ask(connection)
            if answer is not connection:
                # An open connection alone is no response.
                self._silent.discard(connection.peer)
            return answer

        try:
            return await first_answer(
                [partial(attempt, address) for address in addresses],
                passed_over=lambda place: self._silent.add(addresses[place].peer),
            )
        except ConnectionLost:
            if len(reasons) == len(addresses):
                raise _unreachable(reasons) from None
            raise

    async def ask_several(
        self,
        ask: Callable[[int], Awaitable[Result]],
        is_enough: Callable[[Sequence[Result]], bool],
        *,
        fewest: int,
        most: int | None = None,
    ) -> list[Result]:
        """Ask brokers (ids), by name, a question that changes nothing, until they said enough.

        The next one is asked, too, when one is silent; those that were silent before come last. At
        most ``most`` are asked, and no silent one is waited for when ``fewest`` have answered: see
        ``several_answers``.
        """
        brokers = sorted(self._view.brokers.values(), key=lambda node: node.peer in self._silent)
        asked = brokers[:most]

        async def attempt(broker: BrokerAddress) -> Result:
            answer = await ask(broker.node_id)
            self._silent.discard(broker.peer)
            return answer

        return await several_answers(
            [partial(attempt, broker) for broker in asked],
            is_enough,
            fewest=fewest,
            passed_over=lambda place: self._silent.add(asked[place].peer),
        )

    async def send_to_any(
        self, request: Any, *, timeout_ms: int | None = None, changes: bool = False
    ) -> Any:
        """Send a request that every broker can serve or forward.

        When the broker is silent another one gets it too, unless it ``changes`` something: then
        only a broker that greets gets it, and only that one.
        """
        return await self._send_to_any(request, None, timeout_ms, changes)

    async def _send_to_any(
        self, request: Any, first: int | None, timeout_ms: int | None, changes: bool
    ) -> Any:
        limit_ms = timeout_ms or self.settings.request_timeout_ms
        if changes:
            return await (await self.any_connection(first)).send(request, None, limit_ms)
        return await self.ask_any(lambda peer: peer.send(request, None, limit_ms), first=first)

    def is_receiving(self, node_id: int, purpose: str) -> bool:
        """Whether a part of a response has arrived from a broker, but not all of it."""
        task = self._connections.get((node_id, purpose))
        return task is not None and _connected(task) and task.result().is_receiving

    async def connection_at(self, broker: BrokerAddress, purpose: str) -> ClientConnection:
        """Return the open connection to a broker at this address, or open one."""
        return await self._connection_to((broker.node_id, purpose), broker.host, broker.port)

    def note_silent(self, peer: str) -> None:
        """Ask other brokers first, until this one has answered again."""
        self._silent.add(peer)

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
            task.add_done_callback(retrieve_error)
            self._connections[key] = task
        # Shielded: several callers may wait for the same connection.
        return await asyncio.shield(task)

    async def new_connection(self, peer: str) -> ClientConnection:
        """Open another connection to an address; the caller closes it. Raises ConnectionLost."""
        host, _, port = peer.rpartition(":")
        return await self._connect(host, int(port))

    async def _connect(self, host: str, port: int) -> ClientConnection:
        try:
            return await connect(
                host,
                port,
                client_id=self.settings.client_id,
                max_in_flight=self.settings.max_in_flight,
                connect_timeout_ms=self.settings.connect_timeout_ms,
                secret=self.settings.secret,
                tls=self.settings.tls,
            )
        except ConnectionLost:
            # The cluster may have changed: refresh the metadata before the next attempt.
            self._stale = True
            raise


def bootstrap_of(connections: BrokerConnections) -> str:
    """Return the addresses that the user named: ``host:port,…``."""
    return ",".join(f"{host}:{port}" for host, port in connections._bootstrap)


def _unreachable(reasons: Iterable[str]) -> ClusterUnreachable:
    return ClusterUnreachable(f"no broker can be reached: {'; '.join(dict.fromkeys(reasons))}")


def _connected(task: asyncio.Task[ClientConnection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
