"""Throttles of replication: a token bucket, and which copies of a partition a throttle limits.

Owns both as plain rules; times are given by the caller. Not the counts of a broker, nor where they
are asked: see `broker.throttles`. A copy is limited only while its replica is outside of the ISR.

| throttle | limits the copies of |
|---|---|
| ``leader.replication.throttled.rate`` | listed replicas, sent by this broker |
| ``follower.replication.throttled.rate`` | listed replicas, fetched by this broker |
| ``reassignment.throttled.rate`` | targets of reassignments, sent and fetched by this broker |

Source: KIP-73; KIP-542 for why the last one has no list.
"""

from __future__ import annotations

from collections.abc import Collection

BURST_MS = 500
"""A bucket that was idle holds the bytes of so long: no less than a follower's fetch waits."""

ALL = "*"


class Bucket:
    """Bytes that may be copied now, at ``rate`` bytes per second.

    A copy is charged after it was made, so one that is larger than the bucket makes a debt, and
    the next one waits for it: in the long run the rate is exact.
    """

    __slots__ = ("_bytes", "_since_ms", "rate")

    def __init__(self, rate: int, now_ms: float) -> None:
        self.rate = max(1, rate)
        self._bytes = 0.0
        self._since_ms = now_ms

    def change_rate(self, rate: int, now_ms: float) -> None:
        """Go on at another rate; a debt stays one, what was saved fits the new rate."""
        self._fill(now_ms)
        self.rate = max(1, rate)
        self._fill(now_ms)

    def charge(self, size: int, now_ms: float) -> None:
        """Note a copy of ``size`` bytes."""
        self._fill(now_ms)
        self._bytes -= size

    def free_in_ms(self, now_ms: float) -> float:
        """Return when the next copy may be made, in ms from now; 0: now."""
        self._fill(now_ms)
        return 0 if self._bytes >= 0 else -self._bytes * 1000 / self.rate

    def _fill(self, now_ms: float) -> None:
        more = self.rate * max(0.0, now_ms - self._since_ms) / 1000
        self._bytes = min(self._bytes + more, self.rate * BURST_MS / 1000)
        self._since_ms = now_ms


def is_listed(listed: Collection[str], partition: int, replica: int) -> bool:
    """Whether a list of throttled replicas names one: ``*``, or ``PARTITION:BROKER``."""
    return ALL in listed or f"{partition}:{replica}" in listed
