"""Futures that wait for the next change of something, whatever it changes to.

Owns the list of those that wait. Not what they wait for: each checks again when it is woken.
"""

from __future__ import annotations

import asyncio


class Waiters:
    """Waits for one kind of change. Bound: one future for each task that waits."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def add(self) -> asyncio.Future[None]:
        """Return a future that the next ``wake`` completes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        return future

    def wake(self) -> None:
        """Complete all futures, in the order in which they were added."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)
        self._futures.clear()

    def __bool__(self) -> bool:
        return bool(self._futures)
