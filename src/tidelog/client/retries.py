"""Trying again: which failures are worth it, how long to wait, when to give up.

Owns the backoff. What must be forgotten between attempts (leaders, coordinators) is the caller's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog.client.errors import ClientError, ClusterUnreachable, ConnectionLost, Refused

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waiting with jitter of one fifth (Kafka's retry.backoff.ms and .max.ms)."""

    first_ms: int = 100
    max_ms: int = 1000
    random: random.Random = field(default_factory=random.Random)

    def wait_s(self, attempt: int) -> float:
        """Return how long to wait after failure number ``attempt`` (from 0), in seconds."""
        whole = min(self.max_ms, self.first_ms << min(attempt, 20))
        return whole * self.random.uniform(0.8, 1.2) / 1000


def is_worth_retrying(error: ClientError) -> bool:
    """Whether the same call may succeed later: lost connections and retriable codes."""
    if isinstance(error, Refused):
        return error.retriable
    return isinstance(error, ConnectionLost | ClusterUnreachable)


async def retrying(
    attempt: Callable[[], Awaitable[Result]],
    *,
    timeout_ms: int,
    backoff: Backoff,
    failed: Callable[[ClientError], None] | None = None,
    retry_on: Callable[[ClientError], bool] = is_worth_retrying,
) -> Result:
    """Call ``attempt`` until it succeeds, fails for good, or ``timeout_ms`` have passed.

    ``failed`` is told of each failure that is tried again. Raises the last error. The number of
    attempts is bounded by the time and the backoff.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    count = 0
    while True:
        try:
            return await attempt()
        except ClientError as error:
            wait_s = backoff.wait_s(count)
            if not retry_on(error) or loop.time() + wait_s > deadline:
                raise
            if failed is not None:
                failed(error)
        await asyncio.sleep(wait_s)
        count += 1
