"""The open connections of one server, and what they share: limits, memory, turns, counts.

Owns their count and the ends of idle, stalled and late ones. Not listening, and not the end of a
server: see `server`. Runs on any asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from tidelog.network import proving
from tidelog.network.answer_queue import AnswerQueue
from tidelog.network.audit import Audit
from tidelog.network.limits import Account, Limits
from tidelog.network.places import Places
from tidelog.network.router import Peer, Router
from tidelog.network.turns import RequestTurns
from tidelog.runtime.clock import Clock, RealClock
from tidelog.runtime.cluster_secret import ClusterSecret

logger = logging.getLogger(__name__)

SWEEP_S = 5.0
"""Interval of checks for idle and stalled connections; the work grows with the connections."""

FRAME_CHECK_S = 0.5
"""Interval of checks for late frames, while there are incomplete ones."""

RECLAIM_S = 0.05
"""How often empty buffers are taken back while memory is short."""

LINES_PER_SWEEP = 20
"""Log lines that clients cause, per sweep; more are counted, so that no client fills a disk."""


class OpenConnection(Peer, Protocol):
    """A connection, as its server sees it."""

    closing_since: float | None
    """When it began to close: its client has still to read what is written."""

    @property
    def last_active(self) -> float:
        """When it last received or sent something, or had a reason not to."""

    @property
    def is_starved(self) -> bool:
        """Whether it waits for memory, and is not read until there is room."""

    @property
    def unanswered(self) -> int:
        """Requests whose response is still to come."""

    @property
    def is_sending(self) -> bool:
        """Whether part of a file is on its way."""

    @property
    def is_holding(self) -> bool:
        """Whether it holds memory that others may wait for and that cannot just be given back."""

    def may_answer_now(self) -> bool:
        """See ``answer_queue.ResponseWaiter``."""

    def answer_now(self) -> None:
        """See ``answer_queue.ResponseWaiter``."""

    def frame_is_late(self) -> None:
        """Close: the frame that was awaited is not complete in its time."""

    def release_idle_buffer(self) -> None:
        """Give an empty buffer back."""

    def stay_active(self, now_s: float) -> None:
        """Not count as idle: others are the reason that nothing happens."""

    def stop_taking(self) -> None:
        """Serve no further request; responses that are pending still go out."""

    def abort(self) -> None:
        """Close at once; what is not sent is lost."""


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
        self.secret = secret
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
        self.awaited: dict[OpenConnection, float] = {}
        """When the frame must be complete of each connection that has begun one, or is new."""
        # A dict: its order of iteration is the same in each run.
        self.connections: dict[OpenConnection, None] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.kept_senders = 0
        """Connections that keep what sends parts of files to them (``outgoing``)."""
        self.accepted = 0
        self.places = Places(not self.trusts_all, self.loop)
        self._stopping = False
        self._lines = 0
        self._reclaim_again_at = 0.0
        self._sweeper: asyncio.TimerHandle | None = None
        self._frame_timer: asyncio.TimerHandle | None = None
        self._frames_due = 0.0
        self._empty: asyncio.Event = asyncio.Event()

    def _begin_sweeping(self) -> None:
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def _refuse_new(self) -> None:
        """The server stops: no connection is closed by a timer after this."""
        self._stopping = True
        self.audit.say_rest()
        for timer in (self._sweeper, self._frame_timer):
            if timer is not None:
                timer.cancel()

    def statistics(self) -> dict[str, int]:
        """Return counts for metrics: connections, bytes, memory held, requests that wait."""
        return {
            "connections": len(self.connections),
            "connections_accepted": self.accepted,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "request_bytes_held": self.memory.used - self.memory.answers,
            "answer_bytes_unsent": self.memory.answers,
            "requests_pending": sum(tally.pending for tally in self.router.tallies.values()),
        }

    # -- called by connections

    def opened(self, connection: OpenConnection) -> str | None:
        """Count a connection; return why it is refused, or None."""
        self.connections[connection] = None
        self.accepted += 1
        self.await_frame(connection, self.limits.first_request_s)
        if self._stopping:
            return "the server is stopping"
        return self.places.taken(connection, self.limits)

    def closed(self, connection: OpenConnection) -> None:
        """Uncount a connection."""
        self.connections.pop(connection, None)
        self.awaited.pop(connection, None)
        self.places.left(connection)
        if not self.connections:
            self._empty.set()

    def await_frame(self, connection: OpenConnection, seconds: float) -> None:
        """Close the connection unless its frame is whole (``awaited.pop``) in this time."""
        self.awaited[connection] = self.loop.time() + seconds
        if self._frame_timer is None:
            self._check_frames_again()

    def time_left_s(self, connection: OpenConnection) -> float:
        """Stop the time of the frame that is awaited of a connection; return how much was left."""
        end = self.awaited.pop(connection, None)
        return 0.0 if end is None else max(0.0, end - self.loop.time())

    def _check_frames_again(self) -> None:
        if not self._stopping:
            self._frames_due = self.loop.time() + FRAME_CHECK_S
            self._frame_timer = self.loop.call_at(self._frames_due, self._check_frames)

    def _check_frames(self) -> None:
        self._frame_timer = None
        now = self.loop.time()
        # Bytes that arrived while the loop was blocked are not read yet: timers run before reading.
        stood_still_s = now - self._frames_due
        for connection, end in list(self.awaited.items()):
            if now >= end + stood_still_s:
                del self.awaited[connection]
                connection.frame_is_late()
            else:
                self.awaited[connection] = end + stood_still_s
        if self.awaited:
            self._check_frames_again()

    def reclaim(self) -> None:
        """Take back empty buffers, at most every ``RECLAIM_S``: a connection waits for memory."""
        now = self.loop.time()
        if now < self._reclaim_again_at:
            return
        self._reclaim_again_at = now + RECLAIM_S
        self.loop.call_soon(self._reclaim)

    def _reclaim(self) -> None:
        for connection in list(self.connections):
            connection.release_idle_buffer()

    def say_closed(self, connection: OpenConnection, reason: str) -> None:
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
            logger.warning(
                "%(left_out)d more lines about clients were left out", {"left_out": more}
            )
        self._lines = 0
        self.audit.say_rest()
        now = self.loop.time()
        much = self.limits.unsent_answer_bytes
        contended = self.memory.contended or self.memory.answers >= much
        for connection in list(self.connections):
            if connection in self.answer_queue:
                # It is not idle: the clients are that do not read their responses.
                connection.stay_active(now)
            since = connection.closing_since
            if since is not None and now - since > self.limits.frame_s:
                connection.abort()
                continue
            idle_s = now - connection.last_active
            # One that waits for memory itself has the time after which clients cancel a request.
            stall_s = self.limits.frame_s if connection.is_starved else self.limits.max_stall_s
            if contended and connection.is_holding and idle_s > stall_s:
                connection.close(f"it holds memory that others wait for, idle for {idle_s:.0f} s")
                connection.abort()
            elif 0 <= self.limits.max_idle_s < idle_s and not connection.unanswered:
                connection.close(None)
                connection.abort()
            elif idle_s > SWEEP_S:
                connection.release_idle_buffer()
