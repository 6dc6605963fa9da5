"""Fair shares of the event loop: requests have 5 ms of each turn, addresses alternate.

Owns the queue of connections with requests when the turn's time is used up. A waiting connection is
served before a new one; of several addresses each is served once before one of them is served
again. So, whatever the load of clients, all other work of the loop (timers, connections between
processes, which do not wait here) waits for one turn, and a client for one turn of each other
address. The queue holds at most one entry for each connection.

A connection with a request while none waits is served at once, and begins a turn if the loop has
done other work since the last one began. ``_serve`` detects that, too: it is called in the loop's
next turn whenever one was begun here, even if no connection waits by then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from tidelog.runtime import pace
from tidelog.runtime.clock import Clock

CHECK_EVERY = 8
"""Connections that are served in a turn between two reads of the clock."""


class TurnWaiter(Protocol):
    """A connection that waits for its turn."""

    client_host: str

    def take_turn(self) -> None:
        """Go on until ``RequestTurns.ends_ms``; at least one step."""


class Turns(Protocol):
    """The turns that a connection takes part in."""

    @property
    def is_over(self) -> bool:
        """Whether a connection with a request must wait now."""

    def end_ms(self) -> int:
        """Return when the present turn ends, or the one that begins now."""

    def wait(self, waiter: TurnWaiter) -> None:
        """Call ``take_turn`` once, in a later turn of the loop."""


class TurnsOfProcesses:
    """Those of a connection that proved the cluster secret: it does not wait for others."""

    is_over = False

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock

    def end_ms(self) -> int:
        """See ``Turns``."""
        return self._clock.monotonic_ms() + pace.REQUESTS_MS

    def wait(self, waiter: TurnWaiter) -> None:
        """See ``Turns``."""
        self._loop.call_soon(waiter.take_turn)


class RequestTurns:
    """The turns of one server's clients."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self.ends_ms = 0
        """When the present turn is over, on the monotonic clock."""
        self.left = 0
        """How many may be served before the next check of ``is_over``; each one subtracts 1."""
        self._waiting: dict[str, deque[TurnWaiter]] = {}
        """By address, in the order in which the addresses are served."""
        self._is_called = False

    @property
    def is_over(self) -> bool:
        """Whether a connection with a request must wait now."""
        if self._waiting:
            return True
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self.ends_ms:
            if self._is_called:
                # The loop has done no other work since that turn began.
                return True
            self.ends_ms = now_ms + pace.REQUESTS_MS
            self._call()
        self.left = CHECK_EVERY
        return False

    def end_ms(self) -> int:
        """Return when the present turn ends, or the one that begins now."""
        _ = self.is_over
        return self.ends_ms

    def wait(self, waiter: TurnWaiter) -> None:
        """Call ``take_turn`` once, in a later turn of the loop."""
        self.left = 0
        self._waiting.setdefault(waiter.client_host, deque()).append(waiter)
        self._call()

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Serve waiting connections for one turn, at least one of them."""
        waiting = self._waiting
        if not waiting:
            self._is_called = False
            return
        self.ends_ms = self._clock.monotonic_ms() + pace.REQUESTS_MS
        try:
            while waiting:
                host = next(iter(waiting))
                queue = waiting.pop(host)
                first = queue.popleft()
                if queue:
                    # After the other addresses.
                    waiting[host] = queue
                first.take_turn()
                if self._clock.monotonic_ms() >= self.ends_ms:
                    break
        finally:
            self._is_called = False
            # Also without a waiting connection: requests before the loop's next turn are in this
            # one.
            self._call()
