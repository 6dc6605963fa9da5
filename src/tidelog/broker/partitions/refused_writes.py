"""Log lines about a directory that refuses writes for a temporary reason, such as a full disk.

Owns the interval of these lines: a full disk refuses every append, and an operator needs one line.
Producers get an error for each refusal (promise 28); the broker shows it in no other way, because
its replicas stay in service.
"""

from __future__ import annotations

import logging

from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

LINE_EVERY_MS = 60_000


class RefusedWrites:
    """Called with the reason (a full disk, too many open files) of each refused write."""

    def __init__(self, path: str, clock: Clock) -> None:
        """``path``: the log directory."""
        self._path = path
        self._clock = clock
        self._next_line_ms: int | None = None
        self._more = 0

    def __call__(self, want: str) -> None:
        """Log the refusal, or count it until the next line is due."""
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
