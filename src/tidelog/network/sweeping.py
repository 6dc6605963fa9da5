"""The sweep over a server's connections: idle and stalled ones end, empty buffers are taken back.

Owns what ends a connection that says nothing, and how many log lines clients may cause from one
sweep to the next. Not late frames: see `frame_times`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from tidelog.network.answer_queue import AnswerQueue
from tidelog.network.audit import Audit
from tidelog.network.limits import Account, Limits
from tidelog.network.open_connection import OpenConnection

logger = logging.getLogger(__name__)

SWEEP_S = 5.0
"""Interval of checks for idle and stalled connections; the work grows with the connections."""

RECLAIM_S = 0.05
"""How often empty buffers are taken back while memory is short."""

LINES_PER_SWEEP = 20
"""Log lines that clients cause, per sweep; more are counted, so that no client fills a disk."""


class Swept(Protocol):
    """The connections, and what says which of them end."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    memory: Account
    answer_queue: AnswerQueue
    audit: Audit
    connections: dict[OpenConnection, None]


class Sweep:
    """The sweep of one server."""

    def __init__(self, swept: Swept) -> None:
        self._swept = swept
        self._lines = 0
        self._reclaim_again_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.has_ended = False
        """Whether the server stops: it takes no new connection."""

    def begin(self) -> None:
        """Run now and then; once is enough."""
        if self._timer is None:
            self._timer = self._swept.loop.call_later(SWEEP_S, self.run)

    def stop(self) -> None:
        """Close no connection any more."""
        self.has_ended = True
        self._swept.audit.say_rest()
        if self._timer is not None:
            self._timer.cancel()

    def say_closed(self, connection: OpenConnection, reason: str) -> None:
        """Log why the server closes a connection, in a bounded number of lines."""
        if self.may_say():
            logger.warning("closing %s: %s", connection, reason)

    def may_say(self) -> bool:
        """Whether a line that any client can cause may be logged; it is counted in any case."""
        self._lines += 1
        return self._lines <= LINES_PER_SWEEP

    def reclaim(self) -> None:
        """Take back empty buffers, at most every ``RECLAIM_S``: a connection waits for memory."""
        now = self._swept.loop.time()
        if now < self._reclaim_again_at:
            return
        self._reclaim_again_at = now + RECLAIM_S
        self._swept.loop.call_soon(self.take_back)

    def take_back(self) -> None:
        """Take back the empty buffers of all connections."""
        for connection in list(self._swept.connections):
            connection.release_idle_buffer()

    def run(self) -> None:
        """Check each connection."""
        swept = self._swept
        self._timer = swept.loop.call_later(SWEEP_S, self.run)
        if self._lines > LINES_PER_SWEEP:
            more = self._lines - LINES_PER_SWEEP
            logger.warning(
                "%(left_out)d more lines about clients were left out", {"left_out": more}
            )
        self._lines = 0
        swept.audit.say_rest()
        now = swept.loop.time()
        much = swept.limits.unsent_answer_bytes
        contended = swept.memory.contended or swept.memory.answers >= much
        for connection in list(swept.connections):
            self._check(connection, now, contended)

    def _check(self, connection: OpenConnection, now: float, contended: bool) -> None:
        limits = self._swept.limits
        if connection in self._swept.answer_queue:
            # It is not idle: the clients are that do not read their responses.
            connection.stay_active(now)
        since = connection.closing_since
        if since is not None and now - since > limits.frame_s:
            connection.abort()
            return
        idle_s = now - connection.last_active
        # One that waits for memory itself has the time after which clients cancel a request.
        stall_s = limits.frame_s if connection.is_starved else limits.max_stall_s
        if contended and connection.is_holding and idle_s > stall_s:
            connection.close(f"it holds memory that others wait for, idle for {idle_s:.0f} s")
            connection.abort()
        elif 0 <= limits.max_idle_s < idle_s and not connection.unanswered:
            connection.close(None)
            connection.abort()
        elif idle_s > SWEEP_S:
            connection.release_idle_buffer()
