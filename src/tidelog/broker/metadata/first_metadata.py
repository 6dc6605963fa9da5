"""Requests for metadata before the first UpdateMetadata: they wait for it.

Owns that wait, and no other. The listener is open so early because the controller connects to it,
too. A response without brokers or topics would make a client drop its metadata, and librdkafka
close its connections; responses never step back (promise 13).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tidelog.broker.metadata.cache import MetadataCache
from tidelog.network.router import CloseConnection, RequestContext

FIRST_METADATA_WITHIN_MS = 10_000
"""Longest wait of a request; a client without a response tries another broker."""


class Knows(Protocol):
    """A broker with its metadata cache."""

    metadata: MetadataCache


Broker = TypeVar("Broker", bound=Knows)


def after_first_metadata(
    handle: Callable[[Broker, Any, RequestContext], Any],
) -> Callable[[Broker, Any, RequestContext], Any]:
    """Return a handler that runs ``handle`` once this broker knows the cluster's brokers.

    Raises CloseConnection when no UpdateMetadata comes within ``FIRST_METADATA_WITHIN_MS``.
    """

    async def wait(broker: Broker, request: Any, context: RequestContext) -> Any:
        try:
            async with asyncio.timeout(FIRST_METADATA_WITHIN_MS / 1000):
                while not broker.metadata.brokers:
                    await broker.metadata.changed()
        except TimeoutError:
            raise CloseConnection("no UpdateMetadata has arrived at this broker") from None
        response = handle(broker, request, context)
        return await response if inspect.iscoroutine(response) else response

    def handle_or_wait(broker: Broker, request: Any, context: RequestContext) -> Any:
        if broker.metadata.brokers:
            return handle(broker, request, context)
        return wait(broker, request, context)

    return handle_or_wait
