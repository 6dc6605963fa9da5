"""The pace of one run of the cleaner: so many bytes are read and written in a second.

Owns the waits, in the helper process, and the small file of a log directory that has the present
rate: a run of days follows a change within seconds. Not the rate of a run: see ``plan.Share``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tidelog.runtime.clock import Clock, RealClock
from tidelog.runtime.disk import Disk

LEAST_WAIT_S = 0.05
"""Shorter waits are put off until they add up to this."""

CHECK_S = 1.0
"""The longest sleep in one piece: then the rate is read again."""

RATE_SIZE = 32
"""Bytes of the file: one write replaces all of them."""

SECOND_NS = 1_000_000_000


def _unchanged() -> float | None:
    return None


@dataclass(slots=True)
class Pace:
    """Call ``take`` with the bytes of each access. What was not used up before is not saved."""

    bytes_per_second: float
    clock: Clock = field(default_factory=RealClock)
    sleep: Callable[[float], None] = time.sleep
    check: Callable[[], float | None] = _unchanged
    """Returns the present rate; None: as before."""
    _owed_bytes: float = 0.0
    _seen_ns: int = 0

    def take(self, count: int) -> None:
        """Wait as long as these bytes take, or put a short wait off."""
        self._pay()
        self._owed_bytes += count
        while (wait_s := self._owed_bytes / self.bytes_per_second) >= LEAST_WAIT_S:
            self.sleep(min(wait_s, CHECK_S))
            self._pay()
            self.bytes_per_second = self.check() or self.bytes_per_second

    def _pay(self) -> None:
        """Subtract what the time since the last call allows."""
        now_ns = self.clock.monotonic_ns()
        passed_s = (now_ns - self._seen_ns) / SECOND_NS
        self._seen_ns = now_ns
        # No product of an unlimited rate: it may be of no time.
        is_paid = self._owed_bytes / self.bytes_per_second <= passed_s
        self._owed_bytes = 0.0 if is_paid else self._owed_bytes - passed_s * self.bytes_per_second


def write_rate(disk: Disk, path: str, bytes_per_second: float) -> None:
    """Write the present rate for the runs under way. Raises OSError."""
    file = disk.open(path, create=True)
    try:
        file.write_at(0, [f"{bytes_per_second!r}".ljust(RATE_SIZE).encode()])
    finally:
        file.close()


def read_rate(disk: Disk, path: str) -> float | None:
    """Return the present rate; None where it is not known."""
    with suppress(OSError, ValueError):
        rate = float(disk.read(path))
        return rate if rate > 0 else None
    return None
