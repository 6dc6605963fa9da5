"""What the log of a broker says while a log directory refuses writes for a want that heals.

Owns the pace of those lines: a full disk refuses every append, and an operator wants to know once.
Producers are told with each refusal (promise 28); nothing else shows it at the broker, whose
replicas are in service.
"""

from __future__ import annotations

import logging

from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

LINE_EVERY_MS = 60_000


class RefusedWrites:
    """Called with each want (a full disk, too many open files) that refused a write."""

    def __init__(self, path: str, clock: Clock) -> None:
        """``path`` is the log directory's."""
        self._path = path
        self._clock = clock
        self._next_line_ms: int | None = None
        self._more = 0

    def __call__(self, want: str) -> None:
        """Say it, or count it until a line is due."""
        now_ms = self._clock.monotonic_ms()
        if self._next_line_ms is not None and now_ms < self._next_line_ms:
            self._more += 1
            return
        besides = f" ({self._more} more since the last line)" if self._more else ""
        logger.error(
            "%s: %s: what is to be written there is refused until that has healed%s",
            self._path,
            want,
            besides,
        )
        self._next_line_ms, self._more = now_ms + LINE_EVERY_MS, 0
