"""How often an API was requested, and how long it took. Owns the counts, not reports of them."""

from __future__ import annotations

from dataclasses import dataclass, field

TIMES = 64
"""Buckets of the histogram of times: one for each bit of a time in ns."""


@dataclass(slots=True)
class Tally:
    """The counts and times of one API since the start."""

    requests: int = 0
    failures: int = 0
    """Exceptions in the handler (bugs), not refusals."""
    pending: int = 0
    """Requests with a pending response."""
    took_ns: int = 0
    """Sum of the times of requests, from their begin to their response."""
    times: list[int] = field(default_factory=lambda: [0] * TIMES)
    """Histogram: at ``n`` the requests of under 2^n ns, and at least half of that."""

    def took(self, ns: int) -> None:
        """Count the time of one request."""
        self.took_ns += ns
        self.times[ns.bit_length()] += 1
