"""The clock seam: wall-clock time for timestamps, monotonic time for waiting and measuring."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """``wall_ms`` may jump, ``monotonic_ms`` and ``monotonic_ns`` never step back."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since some fixed moment."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some fixed moment, for the duration of a request."""


class RealClock:
    """The machine's clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    """The function itself, without a Python frame: each request calls it twice."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
