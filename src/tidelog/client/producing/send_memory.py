"""The memory of a producer's records that have no outcome yet, and the callers that wait for some.

Owns the count of bytes and its limit (``buffer.memory``), and the futures of those that wait for a
change: each checks again when it is woken. Not how long a caller waits: see ``sender``.
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


class SendMemory:
    """The memory of one producer; a record that has no other beside it always has room."""

    __slots__ = ("_waiters", "limit", "used")

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self.used = 0
        """Bytes of accepted records without an outcome; ``accept`` adds to it for each record."""
        self._waiters = Waiters()

    def has_room(self, size: int) -> bool:
        """Whether a record of this size may be accepted now."""
        return not self.used or self.used + size <= self.limit

    def free(self, size: int) -> None:
        """Give memory back: records have their outcome. All that wait check again."""
        self.used -= size
        self._waiters.wake()

    def waiter(self) -> asyncio.Future[None]:
        """Return a future that is done when memory was given back, or the wait is over."""
        return self._waiters.add()

    def wake(self) -> None:
        """End all waits, with or without memory: the producer closes."""
        self._waiters.wake()

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits: then no batch lingers."""
        return bool(self._waiters)
