"""A timer that goes off at the earliest of the times that it was given.

Owns one timer of the loop. Not what is looked for when it goes off: its caller sets it again for
what is later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class EarliestTimer:
    """Calls a function once, at the earliest time that was set since the last call."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    @property
    def at(self) -> float | None:
        """When it goes off, on the loop's clock; None: it is not set."""
        return None if self._handle is None else self._at

    def set(self, time_s: float) -> None:
        """Go off at this time at the latest."""
        if self._handle is not None:
            if self._at <= time_s:
                return
            self._handle.cancel()
        loop = asyncio.get_running_loop()
        self._at = time_s
        self._handle = loop.call_at(max(time_s, loop.time()), self._go_off)

    def stop(self) -> None:
        """Do not go off."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _go_off(self) -> None:
        self._handle = None
        self._call()
