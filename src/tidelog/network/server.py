"""The listening side of a process: listeners, and their graceful end.

Owns accepting. Not the connections that are open: see `open_connections`; not what their bytes
mean: see `connection`. Runs on any asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.model.addresses import is_loopback, why_secret_first
from tidelog.network import ports
from tidelog.network.connection import Connection
from tidelog.network.limits import Limits
from tidelog.network.open_connections import OpenConnections
from tidelog.network.router import Router
from tidelog.runtime.clock import Clock
from tidelog.runtime.cluster_secret import ClusterSecret

if TYPE_CHECKING:
    from tidelog.network.handshakes import Handshakes
    from tidelog.runtime.tls_files import TlsFiles


class ListenError(Exception):
    """An address that cannot be listened on; the text says which and why."""


class Listeners:
    """The addresses that a process listens on."""

    def __init__(self, secret: ClusterSecret | None, server: OpenConnections) -> None:
        self._secret = secret
        self._server = server
        self._servers: list[asyncio.AbstractServer] = []
        self._handshakes: Handshakes | None = None

    async def listen(self, name: str, host: str, port: int, tls: TlsFiles | None) -> int:
        """See ``Server.listen``."""
        if self._secret is None and not is_loopback(host):
            raise ListenError(why_secret_first(name, host, port))
        accept: Callable[[], asyncio.BaseProtocol] = partial(Connection, self._server, name)
        if tls is not None:
            accept = partial(self._shaking().begin, tls, name)
        # With port 0 each address family would get a port of its own.
        address = host or (None if port else "0.0.0.0")
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                accept, address, port, backlog=self._server.limits.backlog
            )
        except OSError as error:
            raise ListenError(ports.sentence(name, host, port, error)) from error
        self._servers.append(server)
        if tls is not None:
            self._shaking().watch(tls)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    @property
    def handshakes(self) -> int:
        """The TLS handshakes in progress."""
        return 0 if self._handshakes is None else self._handshakes.count

    def _shaking(self) -> Handshakes:
        if self._handshakes is None:
            # Here: a process without TLS imports none of it.
            from tidelog.network.handshakes import Handshakes

            self._handshakes = Handshakes(self._server)
        return self._handshakes

    def close(self) -> None:
        """Accept no connection any more."""
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.stop()


class Server(OpenConnections):
    """Listeners, and the connections that they accepted."""

    def __init__(
        self,
        router: Router,
        context: Any,
        limits: Limits | None = None,
        secret: ClusterSecret | None = None,
        clock: Clock | None = None,
    ) -> None:
        """See ``OpenConnections``."""
        super().__init__(router, context, limits, secret, clock)
        self._listeners = Listeners(secret, self)

    async def listen(self, name: str, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Listen as ``name`` on an address; return the port (the bound one, if it is 0).

        ``host`` "" is every interface. ``tls``: the keys of a listener that encrypts. Raises
        ListenError; without a secret for all but loopback.
        """
        bound = await self._listeners.listen(name, host, port, tls)
        self.sweep.begin()
        return bound

    @property
    def handshakes(self) -> int:
        """The TLS handshakes in progress."""
        return self._listeners.handshakes

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop accepting, wait up to ``grace_s`` for pending responses, close the rest."""
        self.refuse_new()
        self._listeners.close()
        for connection in list(self.connections):
            connection.stop_taking()
        await self._wait_for_answers(grace_s)
        for connection in list(self.connections):
            connection.close(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.wait_until_empty()
        for connection in list(self.connections):
            connection.abort()
        self.answer_queue.stop()

    async def _wait_for_answers(self, grace_s: float) -> None:
        end = self.loop.time() + grace_s
        pause_s = 0.005
        while self.loop.time() < end and any(
            each.unanswered or each.is_sending for each in self.connections
        ):
            await asyncio.sleep(pause_s)
            pause_s = min(0.1, 2 * pause_s)
