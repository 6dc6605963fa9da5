"""Asking a group's coordinator, wherever it is by now.

Owns the retrying around one request to one coordinator: moved, loading, not there yet, lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.client.cluster import COORDINATOR_PURPOSE, Cluster
from tidelog.client.errors import ClientError, Refused
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
) -> Any:
    """Send a request to the coordinator of ``group`` until it is answered; return the answer.

    ``request`` may be a function that makes it for each attempt: of what is left, then.
    ``error_of`` finds the error code in an answer. Raises Refused for a code that is not worth
    retrying, or the last failure at the deadline.
    """

    async def attempt() -> Any:
        wanted = request() if callable(request) else request
        answer = await cluster.send_to_coordinator(
            group, wanted, timeout_ms=request_timeout_ms, purpose=purpose
        )
        code = error_of(answer)
        if code:
            raise Refused(code, f"group {group!r}")
        return answer

    def failed(error: ClientError) -> None:
        if isinstance(error, Refused) and error.code in _MOVED:
            cluster.forget_coordinator(group)

    return await cluster.retry(attempt, timeout_ms, failed)
