"""Retries: which errors are retriable, and the deadline.

Owns these rules. Not the pause: see `runtime.backoff`. Not the invalidation of metadata between
attempts: the caller does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.client.errors import ClientError, ClusterUnreachable, ConnectionLost, Refused
from tidelog.runtime.backoff import Backoff

Result = TypeVar("Result")


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

    ``failed`` is called with each error that is retried. Raises the last error. The timeout and the
    back-off bound the number of attempts.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    count = 0
    while True:
        try:
            return await attempt()
        except ClientError as error:
            wait_s = backoff.pause_s(count)
            if not retry_on(error) or loop.time() + wait_s > deadline:
                raise
            if failed is not None:
                failed(error)
        await asyncio.sleep(wait_s)
        count += 1
