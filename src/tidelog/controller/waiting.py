"""Requests that wait until brokers have been told: conditions, looked at when something moved.

Owns the futures; grows with the requests that wait, which the connections limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiting:
    """Conditions that somebody waits for."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}

    async def until(self, holds: Callable[[], bool], limit_ms: float) -> bool:
        """Wait until a condition holds; False when it did not in time, or nobody looks any more."""
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

    def look(self) -> None:
        """Something moved: let those go whose condition holds."""
        for future, holds in list(self._waiting.items()):
            if not future.done() and holds():
                future.set_result(True)

    def give_up(self) -> None:
        """Nobody will move anything any more: let all go."""
        for future in self._waiting:
            if not future.done():
                future.set_result(False)
