"""The listening side of a process: listeners, the set of connections, and the graceful end.

Owns accepting, counting, idle and stalled connections. What the bytes mean is ``connection``'s.
Runs on any asyncio loop: it asks only for ``create_server`` and ``call_later``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import Counter
from functools import partial
from typing import Any

from tidelog.network.connection import Connection
from tidelog.network.limits import Account, Limits
from tidelog.network.router import Router

logger = logging.getLogger(__name__)

SWEEP_S = 5.0
"""How often idle and stalled connections are looked for; the work grows with the connections."""

RECLAIM_S = 0.05
"""How often empty buffers are taken back while memory is short."""

LINES_PER_SWEEP = 20
"""Log lines that clients cause, per sweep; more are counted, so that no client fills a disk."""


class ListenError(Exception):
    """An address that cannot be listened on; the text says which and why."""


class Server:
    """Listeners that share one router, one context for the handlers and one set of limits."""

    def __init__(self, router: Router, context: Any, limits: Limits | None = None) -> None:
        self.router = router
        self.context = context
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.requests = Account(self.limits.queued_request_bytes)
        self.unsent = Account(self.limits.unsent_answer_bytes)
        # A dict: everything that goes through it does so in the same order every time.
        self.connections: dict[Connection, None] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.accepted = 0
        self._per_ip: Counter[str] = Counter()
        self._servers: list[asyncio.AbstractServer] = []
        self._stopping = False
        self._lines = 0
        self._reclaim_again_at = 0.0
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event = asyncio.Event()

    async def listen(self, name: str, host: str, port: int) -> int:
        """Listen as ``name`` on an address; return the port (the one bound, if 0 was asked for).

        ``host`` "" is every interface. Raises ListenError.
        """
        # With port 0 each address family would get a port of its own.
        address = host or (None if port else "0.0.0.0")
        try:
            server = await self.loop.create_server(
                partial(Connection, self, name), address, port, backlog=self.limits.backlog
            )
        except OSError as error:
            raise ListenError(_why_not(name, host, port, error)) from error
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_s: float = 5.0) -> None:
        """Accept nothing more, let pending requests be answered for ``grace_s``, close the rest."""
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.stop_taking()
        await self._wait_for_answers(grace_s)
        for connection in list(self.connections):
            connection.close(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.connections:
                    self._empty.clear()
                    await self._empty.wait()
        for connection in list(self.connections):
            connection.abort()

    async def _wait_for_answers(self, grace_s: float) -> None:
        end = self.loop.time() + grace_s
        pause_s = 0.005
        while self.loop.time() < end and any(
            each.unanswered or each.is_sending for each in self.connections
        ):
            await asyncio.sleep(pause_s)
            pause_s = min(0.1, 2 * pause_s)

    def statistics(self) -> dict[str, int]:
        """Return counts for metrics: connections, bytes, memory held, requests that wait."""
        return {
            "connections": len(self.connections),
            "connections_accepted": self.accepted,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "request_bytes_held": self.requests.used,
            "answer_bytes_unsent": self.unsent.used,
            "requests_parked": sum(tally.parked for tally in self.router.tallies.values()),
        }

    # -- called by connections

    def opened(self, connection: Connection) -> str | None:
        """Count a connection; return why it is refused, or None."""
        self.connections[connection] = None
        self.accepted += 1
        self._per_ip[connection.client_host] += 1
        if self._stopping:
            return "the server is stopping"
        if len(self.connections) > self.limits.max_connections:
            return f"there are max.connections={self.limits.max_connections} already"
        if self._per_ip[connection.client_host] > self.limits.max_connections_per_ip:
            limit = self.limits.max_connections_per_ip
            return f"its address has max.connections.per.ip={limit} already"
        return None

    def closed(self, connection: Connection) -> None:
        """Uncount a connection."""
        self.connections.pop(connection, None)
        host = connection.client_host
        self._per_ip[host] -= 1
        if self._per_ip[host] <= 0:
            del self._per_ip[host]
        if not self.connections:
            self._empty.set()

    def reclaim(self) -> None:
        """Take back the empty buffers of connections, once in a while: someone waits for memory."""
        now = self.loop.time()
        if now < self._reclaim_again_at:
            return
        self._reclaim_again_at = now + RECLAIM_S
        self.loop.call_soon(self._reclaim)

    def _reclaim(self) -> None:
        for connection in list(self.connections):
            connection.release_idle_buffer()

    def say_closed(self, connection: Connection, reason: str) -> None:
        """Log why the server closes a connection, in a bounded number of lines."""
        if self.may_say():
            logger.warning("closing %s: %s", connection, reason)

    def may_say(self) -> bool:
        """Whether a line that any client can cause may be logged; it is counted in any case."""
        self._lines += 1
        return self._lines <= LINES_PER_SWEEP

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        if self._lines > LINES_PER_SWEEP:
            more = self._lines - LINES_PER_SWEEP
            logger.warning("%d more lines about clients were left out", more)
        self._lines = 0
        now = self.loop.time()
        contended = self.requests.contended or not self.unsent.left
        for connection in list(self.connections):
            idle_s = now - connection.last_active
            if contended and connection.is_holding and idle_s > self.limits.max_stall_s:
                connection.close(f"it holds memory that others wait for, idle for {idle_s:.0f} s")
                connection.abort()
            elif 0 <= self.limits.max_idle_s < idle_s and not connection.unanswered:
                connection.close(None)
                connection.abort()
            elif idle_s > SWEEP_S:
                connection.release_idle_buffer()


def _why_not(name: str, host: str, port: int, error: OSError) -> str:
    where = f"{name}://{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is in use by another process"
    return f"cannot listen on {where}: {error.strerror or error}"
