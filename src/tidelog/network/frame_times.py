"""The times in which connections must have sent the whole of a frame that they have begun.

Owns those times, and one timer for all of them. Not how long they are: see `receiving`.
"""

from __future__ import annotations

import asyncio

from tidelog.network.open_connection import OpenConnection

FRAME_CHECK_S = 0.5
"""Interval of checks for late frames, while there are incomplete ones."""


class FrameTimes:
    """The incomplete frames of one server's connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.awaited: dict[OpenConnection, float] = {}
        """When the frame must be complete of each connection that has begun one, or is new."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._stopped = False

    def begin(self, connection: OpenConnection, seconds: float) -> None:
        """Close the connection unless its frame is whole (``end``) in this time."""
        self.awaited[connection] = self._loop.time() + seconds
        if self._timer is None:
            self._check_again()

    def end(self, connection: OpenConnection) -> float:
        """Stop the time of a frame, if there is one; return how much was left."""
        end = self.awaited.pop(connection, None)
        return 0.0 if end is None else max(0.0, end - self._loop.time())

    def stop(self) -> None:
        """Close no connection any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _check_again(self) -> None:
        if not self._stopped:
            self._due = self._loop.time() + FRAME_CHECK_S
            self._timer = self._loop.call_at(self._due, self.check)

    def check(self) -> None:
        """Close the connections whose time is over."""
        self._timer = None
        now = self._loop.time()
        # Bytes that arrived while the loop was blocked are not read yet: timers run before reading.
        stood_still_s = now - self._due
        for connection, end in list(self.awaited.items()):
            if now >= end + stood_still_s:
                del self.awaited[connection]
                connection.frame_is_late()
            else:
                self.awaited[connection] = end + stood_still_s
        if self.awaited:
            self._check_again()
