"""Requests to a group's coordinator, with retries.

Owns the retries of one request: the coordinator moved, is loading, is not available, or the
connection was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.client.cluster import COORDINATOR_PURPOSE, Cluster
from tidelog.client.errors import ClientError, Refused, error_code
from tidelog.client.found_coordinators import LATE_MS
from tidelog.model.errors import ErrorCode

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


async def ask_coordinator(
    cluster: Cluster,
    group: str,
    request: Any,
    error_of: Callable[[Any], int],
    *,
    request_timeout_ms: int | None = None,
    timeout_ms: int | None = None,
    purpose: str = COORDINATOR_PURPOSE,
    late_ms: int = LATE_MS,
) -> Any:
    """Send a request to the coordinator of ``group``, with retries; return the response.

    ``request`` may be a function that builds the request of each attempt, for what is left.
    ``error_of`` finds the error code in a response. When there is none after ``late_ms``, another
    coordinator is looked for. Raises Refused for a code that is not retriable, or the last error at
    the deadline.
    """

    async def attempt() -> Any:
        wanted = request() if callable(request) else request
        answer = await cluster.send_to_coordinator(
            group, wanted, timeout_ms=request_timeout_ms, purpose=purpose, late_ms=late_ms
        )
        code = error_of(answer)
        if code:
            raise Refused(code, f"group {group!r}")
        return answer

    def failed(error: ClientError) -> None:
        if isinstance(error, Refused) and error.code in _MOVED:
            cluster.forget_coordinator(group)

    return await cluster.retry(attempt, timeout_ms, failed)


def retriable_of(answer: Any) -> int:
    """Return the error code of a response when the request is worth another try, otherwise 0."""
    code = error_code(answer.error_code)
    return int(code) if code.retriable else 0
