"""The pace of one run of the cleaner: so many bytes are read and written in a second.

Owns the waits, in the helper process. Not the rate of a run: see ``plan.Share``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.runtime.clock import Clock, RealClock

LEAST_WAIT_NS = 50_000_000
"""Shorter waits are put off until they add up to this."""


@dataclass(slots=True)
class Pace:
    """Call ``take`` with the bytes of each access. What was not used up before is not saved."""

    bytes_per_second: float
    clock: Clock = field(default_factory=RealClock)
    sleep: Callable[[float], None] = time.sleep
    _free_at_ns: float = 0.0

    def take(self, count: int) -> None:
        """Wait as long as these bytes take, or put a short wait off."""
        now_ns = self.clock.monotonic_ns()
        self._free_at_ns = max(self._free_at_ns, now_ns) + count / self.bytes_per_second * 1e9
        ahead_ns = self._free_at_ns - now_ns
        if ahead_ns >= LEAST_WAIT_NS:
            self.sleep(ahead_ns / 1e9)
