"""Time slices: how long a coordinator's work may hold the loop before it yields.

Owns the length of a slice. Not the work: loads (``replaying``), sweeps, parts, and the timer.
"""

from __future__ import annotations

import asyncio

from tidelog.runtime.clock import Clock

SLICE_MS = 2
"""How long parts, loading, sweeps and the timer may hold the loop before they yield."""


class TimeSlice:
    """A slice of long work: over after ``SLICE_MS``, when the work yields to the loop."""

    __slots__ = ("_clock", "_end_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + SLICE_MS

    @property
    def is_over(self) -> bool:
        """Whether the work should yield now."""
        return self._clock.monotonic_ms() >= self._end_ms

    async def give_way(self) -> None:
        """Yield to the loop, then start the next slice."""
        await asyncio.sleep(0)
        self._end_ms = self._clock.monotonic_ms() + SLICE_MS
