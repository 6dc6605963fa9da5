"""The coordinators that a client has found, of groups or of transactional ids, and their requests.

Owns which broker coordinates each, and when another one is looked for. Not retries: see
``coordinators``. A request to a coordinator that does not respond is given up when another broker
names a new one: the former is deposed, so what it still does with the request has no effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from tidelog.client.connecting.connection import ClientConnection, api_of_request
from tidelog.client.connecting.first_answer import SILENT_S
from tidelog.client.connecting.giving_up import FIRST_PAUSE_S, unless_taken_over
from tidelog.client.errors import ConnectionLost, Refused, TakenOver, VersionUnsupported
from tidelog.client.metadata import BrokerAddress
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import messages

GROUP_COORDINATOR, TRANSACTION_COORDINATOR = 0, 1
"""Key types of FindCoordinator."""

_NAMES = {GROUP_COORDINATOR: "group", TRANSACTION_COORDINATOR: "transactional id"}

LATE_MS = int(SILENT_S * 1000)
"""After so long the response to a request that waits for no other members is late."""


class Connections(Protocol):
    """The part of a cluster that this needs."""

    async def ask_any(self, ask: Callable[[ClientConnection], Awaitable[Any]]) -> Any:
        """Ask any broker, and another one when it is silent."""

    async def connection_at(self, broker: BrokerAddress, purpose: str) -> ClientConnection:
        """Return the connection to a broker at this address. Raises ConnectionLost."""

    def close_connection(self, node_id: int, purpose: str, why: str) -> None:
        """Close a connection that has a purpose; ``why`` is the error of what is in flight."""

    def note_silent(self, peer: str) -> None:
        """Ask other brokers first."""


class FoundCoordinators:
    """The coordinator of each group, as long as it responds and knows its group.

    ``key_type``: what the names are that are called groups here.
    """

    def __init__(self, connections: Connections, key_type: int = GROUP_COORDINATOR) -> None:
        self._connections = connections
        self._key_type = key_type
        self._found: dict[str, BrokerAddress] = {}

    def known(self, group: str) -> BrokerAddress | None:
        """Return the broker that was found last; None: it is looked for again."""
        return self._found.get(group)

    def forget(self, group: str, former: BrokerAddress | None = None) -> None:
        """Forget the coordinator of a group, unless it is another one than ``former`` by now."""
        if former is None or self._found.get(group) == former:
            self._found.pop(group, None)

    async def of(self, group: str, timeout_ms: int) -> BrokerAddress:
        """Return the coordinator of a group; one attempt, then remembered."""
        broker = self._found.get(group)
        if broker is None:
            broker = self._found[group] = await self._ask(group, timeout_ms)
        return broker

    async def send(
        self,
        group: str,
        request: Any,
        purpose: str,
        timeout_ms: int,
        find_ms: int,
        late_ms: int,
        versions: range | None = None,
    ) -> Any:
        """Send a request to the coordinator of a group; one attempt.

        ``late_ms``: after so long, and again and again, it is looked for at other brokers. Raises
        TakenOver when one of them names another broker: the request can be sent to that one.
        ``versions``: of the request, those that serve; VersionUnsupported without any of them.
        """
        broker = await self.of(group, find_ms)

        async def sent() -> Any:
            connection = await self._connections.connection_at(broker, purpose)
            version = None
            if versions is not None:
                version = connection.version_of(api_of_request(request).key, versions[-1])
                if version not in versions:
                    raise VersionUnsupported(
                        f"{broker.peer} serves no version of this request from {versions[0]} on"
                    )
            return await connection.send(request, version, timeout_ms)

        late_s = late_ms / 1000
        try:
            return await unless_taken_over(
                sent(),
                partial(self._moved, group, broker, find_ms),
                after_s=late_s,
                first_pause_s=FIRST_PAUSE_S if late_s <= SILENT_S else late_s,
            )
        except TakenOver as error:
            self._connections.close_connection(broker.node_id, purpose, str(error))
            raise
        except ConnectionLost:
            self.forget(group, broker)
            raise

    async def _moved(self, group: str, former: BrokerAddress, timeout_ms: int) -> str:
        """Look for another coordinator at other brokers than the one that is silent."""
        self._connections.note_silent(former.peer)
        coordinator = self._found.get(group)
        if coordinator is None or coordinator == former:
            coordinator = await self._ask(group, timeout_ms)
        if coordinator == former:
            return ""
        self._found[group] = coordinator
        silent = f"broker {former.node_id} did not respond for {_NAMES[self._key_type]} {group!r}"
        return f"{silent}: broker {coordinator.node_id} coordinates it now"

    async def _ask(self, group: str, timeout_ms: int) -> BrokerAddress:
        async def ask(connection: ClientConnection) -> Any:
            version = connection.version_of(ApiKey.FIND_COORDINATOR)
            answer = await connection.send(
                messages.FindCoordinatorRequest(
                    key=group, key_type=self._key_type, coordinator_keys=[group]
                ),
                version,
                timeout_ms,
            )
            return answer.coordinators[0] if version >= 4 else answer

        coordinator = await self._connections.ask_any(ask)
        if coordinator.error_code:
            subject = f"{_NAMES[self._key_type]} {group!r}"
            raise Refused(coordinator.error_code, subject, coordinator.error_message)
        return BrokerAddress(coordinator.node_id, coordinator.host, coordinator.port)
