"""Named deadlines that can be moved cheaply, such as those of sessions, rebalances, transactions.

Owns no clock and no callbacks: the shell reads the next moment, and then takes the due names.
Moving a deadline later costs one dictionary write (a heartbeat does that): the heap keeps the old
moment and is corrected when it is reached. So ``next_ms`` may be too early, never too late.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Name = TypeVar("Name")

_STALE_ALLOWANCE = 64
"""Most obsolete entries before the heap is rebuilt."""


class Deadlines(Generic[Name]):
    """Names with a moment in ms each. The heap holds at most twice the names and 64 entries."""

    __slots__ = ("_at", "_count", "_heap", "_listed")

    def __init__(self) -> None:
        self._at: dict[Name, int] = {}
        self._listed: dict[Name, int] = {}
        self._heap: list[tuple[int, int, Name]] = []
        self._count = 0

    def set(self, name: Name, at_ms: int) -> None:
        """Let ``name`` be due at ``at_ms``, in place of any former moment."""
        self._at[name] = at_ms
        listed = self._listed.get(name)
        if listed is None or listed > at_ms:
            self._push(name, at_ms)

    def drop(self, name: Name) -> None:
        """Forget ``name``; a name that is not there is fine."""
        self._at.pop(name, None)

    def clear(self) -> None:
        """Forget every name."""
        self._at.clear()
        self._listed.clear()
        self._heap.clear()

    def get(self, name: Name) -> int | None:
        """Return when ``name`` is due, or None."""
        return self._at.get(name)

    @property
    def next_ms(self) -> int | None:
        """The moment at which to ask ``due`` again, or None when there is nothing to wait for."""
        if not self._at:
            return None
        return self._heap[0][0]

    def due(self, now_ms: int) -> list[Name]:
        """Remove and return the names whose moment has come, earliest first.

        Its loop ends: each turn removes a heap entry or moves one past ``now_ms``.
        """
        reached: list[tuple[int, int, Name]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            listed, order, name = heappop(self._heap)
            if self._listed.get(name) != listed:
                continue
            del self._listed[name]
            actual = self._at.get(name)
            if actual is None:
                continue
            if actual > now_ms:
                self._push(name, actual)
            else:
                del self._at[name]
                reached.append((actual, order, name))
        reached.sort(key=lambda entry: entry[:2])
        return [name for _, _, name in reached]

    def _push(self, name: Name, at_ms: int) -> None:
        # The counter keeps names out of the heap's comparisons and ties in order of arrival.
        self._count += 1
        self._listed[name] = at_ms
        heappush(self._heap, (at_ms, self._count, name))
        if len(self._heap) > 2 * len(self._at) + _STALE_ALLOWANCE:
            self._rebuild()

    def _rebuild(self) -> None:
        self._listed = dict(self._at)
        self._heap = [
            (deadline, order, name) for order, (name, deadline) in enumerate(self._at.items())
        ]
        heapify(self._heap)
        self._count = len(self._heap)
