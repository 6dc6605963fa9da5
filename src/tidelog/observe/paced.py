"""Rate limit of a page that is expensive to make, whatever the number of clients.

Owns the budget: making a page holds the interpreter's lock, so each scrape delays the event loop
beside it. One page is made at a time, requests that arrive meanwhile share the next, and all of
them take at most ``SHARE`` of a processor, with ``BURST_S`` saved up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

SHARE = 0.2
BURST_S = 1.0
"""Seconds of processor time that may be used at once after a quiet time."""

Made = TypeVar("Made")


class Paced(Generic[Made]):
    """``paced()`` is what ``make()`` returned in a call that began after this one."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[float, Made] | None = None
        """When the last call began, and what it returned."""
        self._saved_s = BURST_S
        self._counted_at = time.monotonic()

    def __call__(self) -> Made:
        """Return the page; wait while the budget is used up. Raises what ``make`` raises."""
        asked_at = time.monotonic()
        with self._lock:
            if self._made is None or self._made[0] < asked_at:
                self._wait()
                began_at, used_s = time.monotonic(), time.thread_time()
                try:
                    self._made = began_at, self._make()
                finally:
                    self._saved_s -= time.thread_time() - used_s
            return self._made[1]

    def _wait(self) -> None:
        """Wait until the budget allows a page; callers that wait for the lock share the result."""
        now = time.monotonic()
        self._saved_s = min(BURST_S, self._saved_s + SHARE * (now - self._counted_at))
        self._counted_at = now
        if self._saved_s < 0:
            time.sleep(-self._saved_s / SHARE)
