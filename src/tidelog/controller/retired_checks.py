"""Requests for a check of retired partitions before its interval is over.

Owns the wish, and the wait for a check that began after it. Not the check: see ``retired``. One is
under way at a time, so many requests share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

MAX_WAIT_FOR_CHECK_MS = 2_000
"""How long a growth waits for a check of its topic's retired partitions: it asks their leaders,
and with retired.purge=drained all coordinators, then purges, asks again, and removes."""

Until = Callable[[Callable[[], bool], float], Awaitable[bool]]


class RetiredChecks:
    """The checks of one controller."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self._begun = 0
        self._ended = 0

    def soon(self) -> None:
        """Have a check begin now, or when the present one is over."""
        self.wanted.set()

    def begin(self) -> None:
        """Note that a check begins: it counts for all requests until now."""
        self.wanted.clear()
        self._begun += 1

    def end(self) -> None:
        """Note that the check is over."""
        self._ended = self._begun

    async def one(self, until: Until, limit_ms: float) -> None:
        """Wait for a check that begins now or later, at most for ``limit_ms``."""
        number = self._begun + 1
        self.soon()
        await until(lambda: self._ended >= number, limit_ms)
