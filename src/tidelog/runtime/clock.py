"""The clock seam: the time of day for timestamps, a monotonic time for waiting."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two times in milliseconds: ``wall_ms`` may jump, ``monotonic_ms`` never steps back."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since some fixed moment."""


class RealClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
