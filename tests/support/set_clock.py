"""A clock that a test sets, and work that takes time by it."""

from __future__ import annotations

import time


class SetClock:
    """A clock that stands where a test puts it: a slow machine makes no turn longer or shorter."""

    def __init__(self) -> None:
        self.now_ms = 1000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


def burn(seconds: float) -> None:
    """Hold the loop by work of its own."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
