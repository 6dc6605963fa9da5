"""The open connections of one server, and what they share: limits, memory, turns, counts.

Owns their list and their counts. Not listening, and not the end of a server: see `server`; not the
ends of idle and late ones: see `sweeping` and `frame_times`. Runs on any asyncio loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tidelog.network import proving
from tidelog.network.answer_queue import AnswerQueue
from tidelog.network.audit import Audit
from tidelog.network.frame_times import FrameTimes
from tidelog.network.limits import Account, Limits
from tidelog.network.open_connection import OpenConnection
from tidelog.network.places import Places
from tidelog.network.router import Router
from tidelog.network.sweeping import Sweep
from tidelog.network.turns import RequestTurns
from tidelog.runtime.clock import Clock, RealClock
from tidelog.runtime.cluster_secret import ClusterSecret


@dataclass(slots=True)
class ConnectionCounts:
    """What connections count for their server."""

    accepted: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    kept_senders: int = 0
    """Connections that keep what sends parts of files to them (``outgoing``)."""


class OpenConnections:
    """The connections of one server, with one router, one context and one set of limits."""

    def __init__(
        self,
        router: Router,
        context: Any,
        limits: Limits | None = None,
        secret: ClusterSecret | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``secret``: what a connection has to prove before it may act as a process; ``clock``: by
        which turns of the loop are measured."""
        self.router = router
        self.context = context
        self.limits = limits or Limits()
        self.clock = clock or RealClock()
        self.trusts_all = secret is None or secret.optional
        """Whether every connection may act as a process: there is no secret, or it is optional."""
        if secret is not None:
            router.add(proving.handlers(secret))
        self.loop = asyncio.get_running_loop()
        self.audit = Audit(self.loop.time)
        self.turns = RequestTurns(self.loop, self.clock)
        self.memory = Account(self.limits.queued_request_bytes)
        self.outside = Account(-1)
        """Memory of connections that proved the cluster secret: counted, and not limited."""
        self.answer_queue = AnswerQueue(self.loop, self.memory)
        # A dict: its order of iteration is the same in each run.
        self.connections: dict[OpenConnection, None] = {}
        self.counts = ConnectionCounts()
        self.places = Places(not self.trusts_all, self.loop)
        self.frame_times = FrameTimes(self.loop)
        self.sweep = Sweep(self)
        self._empty: asyncio.Event = asyncio.Event()

    def statistics(self) -> dict[str, int]:
        """Return counts for metrics: connections, bytes, memory held, requests that wait."""
        return {
            "connections": len(self.connections),
            "connections_accepted": self.counts.accepted,
            "bytes_in": self.counts.bytes_in,
            "bytes_out": self.counts.bytes_out,
            "request_bytes_held": self.memory.used - self.memory.answers,
            "answer_bytes_unsent": self.memory.answers,
            "requests_pending": sum(tally.pending for tally in self.router.tallies.values()),
        }

    def opened(self, connection: OpenConnection) -> str | None:
        """Count a connection; return why it is refused, or None."""
        self.connections[connection] = None
        self.counts.accepted += 1
        self.frame_times.begin(connection, self.limits.first_request_s)
        if self.sweep.has_ended:
            return "the server is stopping"
        return self.places.taken(connection, self.limits)

    def closed(self, connection: OpenConnection) -> None:
        """Uncount a connection."""
        self.connections.pop(connection, None)
        self.frame_times.end(connection)
        self.places.left(connection)
        if not self.connections:
            self._empty.set()

    def refuse_new(self) -> None:
        """The server stops: no connection is closed by a timer after this."""
        self.sweep.stop()
        self.frame_times.stop()

    async def wait_until_empty(self) -> None:
        """Wait for the end of the last connection."""
        while self.connections:
            self._empty.clear()
            await self._empty.wait()
