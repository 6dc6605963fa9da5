"""The throttle of the copies between log directories.

Owns how many bytes a copy may read now (``replica.alter.log.dirs.io.max.bytes.per.second``).
Not the copies: see `future_replicas`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog.replication.throttling import BURST_MS, Bucket
from tidelog.storage.future.moving import SLICE_BYTES

if TYPE_CHECKING:
    from tidelog.broker.metadata.configurations import ConfigCache
    from tidelog.runtime.clock import Clock

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
UNLIMITED = 2**63 - 1

LEAST_SLICE_BYTES = 64 * 1024
THROTTLED_S = 1.0
"""How often a throttled copy checks the rate, which may have been changed."""


class CopyRate:
    """One limit for all copies of a broker."""

    def __init__(self, dynamic: ConfigCache, clock: Clock) -> None:
        self._dynamic = dynamic
        self._clock = clock
        self._bucket: Bucket | None = None

    async def allowance(self) -> int:
        """Wait until the throttle lets more be copied; return how many bytes in one slice."""
        while True:
            rate = self._dynamic.number(RATE, UNLIMITED)
            now_ms = self._clock.monotonic_ms()
            if rate >= UNLIMITED:
                self._bucket = None
                return SLICE_BYTES
            if self._bucket is None:
                self._bucket = Bucket(rate, now_ms)
            elif self._bucket.rate != max(1, rate):
                self._bucket.change_rate(rate, now_ms)
            wait_ms = self._bucket.free_in_ms(now_ms)
            if wait_ms <= 0:
                return max(LEAST_SLICE_BYTES, min(SLICE_BYTES, rate * BURST_MS // 1000))
            await asyncio.sleep(min(wait_ms / 1000, THROTTLED_S))

    def charge(self, size: int, now_ms: int) -> None:
        """Count what was copied."""
        if self._bucket is not None:
            self._bucket.charge(size, now_ms)
