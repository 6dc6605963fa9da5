"""Administrative requests on their way to the controller, and which of them are sent again.

Owns what happens when the broker that was asked does not respond. A request that changes nothing is
sent to other brokers too. One that changes something may lie unread in a stopped broker, which
sends it on when it runs again: then the deletion of a topic would strike a newer topic of that
name. (A broker drops one whose client has gone, but the end of a connection may come late.) So only
one that is harmless at any time is repeated (CreateTopics); for any other the outcome is unknown
when its time is over, and the error says so. No request goes to a broker that does not greet:
another one is asked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.connecting.first_answer import SILENT_S
from tidelog.client.connecting.giving_up import unless_taken_over
from tidelog.client.errors import ClientError, ConnectionLost, Refused, TakenOver
from tidelog.model.errors import ErrorCode

TIMEOUT_MS = 30_000
"""How long a broker may take for an administrative request."""

RESPONSE_MS = TIMEOUT_MS + 10_000

ItemsOf = Callable[[Any], Iterable[Any]]
"""Finds the parts of a response that have an error code each."""


async def send_admin(
    cluster: Cluster, request: Any, items_of: ItemsOf, *, changes: bool = True
) -> Any:
    """Send a request to the controller; retry after NOT_CONTROLLER for every item.

    Only then a request that ``changes`` something certainly changed nothing.
    """

    async def attempt() -> Any:
        answer = await cluster.send_to_controller(request, timeout_ms=RESPONSE_MS, changes=changes)
        return _served(cluster, items_of, answer)

    return await cluster.retry(attempt, retry_on=_is_unserved)


async def send_repeatedly(cluster: Cluster, request: Any, items_of: ItemsOf) -> tuple[Any, str]:
    """Send a request that may be carried out twice, and late; return the response.

    A broker that hangs is given up, and another one gets the request: then the second value is a
    line that says so, otherwise "".
    """
    given_up = ""

    async def attempt() -> Any:
        nonlocal given_up
        connection = await cluster.controller_connection()
        sent = connection.send(request, None, RESPONSE_MS)
        try:
            answer = await unless_taken_over(sent, partial(_hangs, cluster, connection))
        except TakenOver as error:
            given_up = str(error)
            raise
        return _served(cluster, items_of, answer)

    def is_worth(error: ClientError) -> bool:
        return isinstance(error, TakenOver) or _is_unserved(error)

    return await cluster.retry(attempt, retry_on=is_worth), given_up


def _served(cluster: Cluster, items_of: ItemsOf, answer: Any) -> Any:
    items = list(items_of(answer))
    if items and all(item.error_code == ErrorCode.NOT_CONTROLLER for item in items):
        cluster.forget()
        raise Refused(ErrorCode.NOT_CONTROLLER, "the controller moved")
    return answer


def _is_unserved(error: ClientError) -> bool:
    # After a lost connection the outcome is unknown: report it, do not repeat the request.
    return isinstance(error, Refused) and error.code == ErrorCode.NOT_CONTROLLER


async def _hangs(cluster: Cluster, connection: ClientConnection) -> str:
    """Return a line when a broker greets on no other connection either, "" when it only is slow."""
    try:
        async with asyncio.timeout(SILENT_S):
            other = await cluster.new_connection(connection.peer)
    except (TimeoutError, ConnectionLost):
        cluster.note_silent(connection.peer)
        return f"{connection.peer} did not respond, on a new connection neither"
    other.close()
    return ""
