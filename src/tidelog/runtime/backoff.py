"""Exponential back-off with jitter: how long to pause after failures in a row.

Owns the rule. Not the count of failures, nor which failures are worth another try: the callers'.
Pure; the randomness is injected.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MOST_DOUBLINGS = 20
"""After these the pause stays as it is, whatever ``max_ms`` allows."""

_NEVER_DRAWN = random.Random(0)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from ``first_ms`` up to ``max_ms``, each varied by up to ``jitter``.

    The defaults are Kafka's ``retry.backoff.ms``, ``retry.backoff.max.ms`` and its jitter of one
    fifth. ``jitter=0`` draws nothing from ``random``.
    """

    first_ms: int = 100
    max_ms: int = 1000
    random: random.Random = field(default_factory=random.Random)
    jitter: float = 0.2

    def pause_ms(self, failures: int) -> float:
        """Return the pause in ms before the next try, ``failures`` in a row (from 0) before."""
        whole = min(self.max_ms, self.first_ms << min(failures, MOST_DOUBLINGS))
        if not self.jitter:
            return whole
        return whole * self.random.uniform(1 - self.jitter, 1 + self.jitter)

    def pause_s(self, failures: int) -> float:
        """Return ``pause_ms`` in seconds."""
        return self.pause_ms(failures) / 1000


def steady(first_ms: int, max_ms: int) -> Backoff:
    """Return a back-off without jitter, for work that no other process repeats at the same time."""
    return Backoff(first_ms, max_ms, _NEVER_DRAWN, jitter=0)
