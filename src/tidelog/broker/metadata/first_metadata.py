"""Requests about the cluster that come before the controller has told this broker of it.

The listener is open that early because the controller comes in by it too. Such requests wait: "no
brokers, no such topic" would make a client forget what it knows, and librdkafka take down its
connections; no broker's answer steps back (promise 13). Owns no other wait.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.network.router import CloseConnection, RequestContext

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

FIRST_METADATA_WITHIN_MS = 10_000
"""How long a request waits; a client that gets no answer tries another broker."""


def after_first_metadata(
    handle: Callable[[Broker, Any, RequestContext], Any],
) -> Callable[[Broker, Any, RequestContext], Any]:
    """Return the handler such that it is asked when this broker knows the cluster's brokers.

    Raises CloseConnection when no UpdateMetadata comes within ``FIRST_METADATA_WITHIN_MS``.
    """

    async def wait(broker: Broker, request: Any, context: RequestContext) -> Any:
        try:
            async with asyncio.timeout(FIRST_METADATA_WITHIN_MS / 1000):
                while not broker.metadata.brokers:
                    await broker.metadata.changed()
        except TimeoutError:
            raise CloseConnection("no controller has told this broker of the cluster") from None
        answer = handle(broker, request, context)
        return await answer if inspect.iscoroutine(answer) else answer

    def handle_or_wait(broker: Broker, request: Any, context: RequestContext) -> Any:
        if broker.metadata.brokers:
            return handle(broker, request, context)
        return wait(broker, request, context)

    return handle_or_wait
