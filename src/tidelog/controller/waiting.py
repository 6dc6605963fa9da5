"""Requests that wait until brokers have been sent a change.

Owns the futures, each with the condition that ends it; ``check`` tries the conditions. Grows with
the waiting requests, which the number of connections limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WaitingRequests:
    """The waiting requests of one controller, with their conditions."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}

    async def until(self, holds: Callable[[], bool], limit_ms: float) -> bool:
        """Wait until a condition holds; False after ``limit_ms`` or when the controller resigns."""
        if holds():
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[future] = holds
        try:
            async with asyncio.timeout(max(0.0, limit_ms) / 1000):
                return await future
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(future, None)

    def check(self) -> None:
        """End the waits whose condition holds now."""
        for future, holds in list(self._waiting.items()):
            if not future.done() and holds():
                future.set_result(True)

    def give_up(self) -> None:
        """End all waits: the controller resigns."""
        for future in self._waiting:
            if not future.done():
                future.set_result(False)
