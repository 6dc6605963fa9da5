"""The pending response of one request to a coordinator: sent at once, later, or never.

Owns the step from a result of the rules to the response of a handler. Only the first result counts;
a client that has disconnected gets no response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidelog.broker.coordinator.table import TableWrite
from tidelog.model.effects import Answer
from tidelog.model.errors import ErrorCode


class PendingResponse:
    """Passed to the rules with an event; the handler returns ``answer`` to the router."""

    __slots__ = ("_future", "_respond", "_result")

    def __init__(self) -> None:
        self._result: Any = None
        self._future: asyncio.Future[Any] | None = None
        self._respond: Callable[[Any], Any] | None = None

    def give(self, result: Any) -> None:
        """Set the result, of the table's own type; ``parts.Answers`` for a request in parts.

        Every result after the first is dropped.
        """
        if self._result is not None:
            return
        self._result = result
        future, respond = self._future, self._respond
        if future is None or respond is None or future.done():
            return
        try:
            future.set_result(respond(result))
        except Exception as error:
            # A bug in a handler must not stop the other responses; the router reports it.
            future.set_exception(error)

    def answer(self, respond: Callable[[Any], Any]) -> Any:
        """Return the response ``respond(result)``, or a future of it while there is no result."""
        if self._result is not None:
            return respond(self._result)
        self._respond = respond
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    async def result(self) -> Any:
        """Wait for the result itself."""
        if self._result is not None:
            return self._result
        return await self.answer(lambda result: result)


def give(answer: Answer) -> None:
    """Set the result of the request that an answer of the rules is for."""
    assert isinstance(answer.pending_response, PendingResponse)
    answer.pending_response.give(answer.result)


def refuse_all(write: TableWrite, error: ErrorCode) -> None:
    """Refuse all requests that wait for a write."""
    for answer in write.answers:
        assert isinstance(answer.pending_response, PendingResponse)
        answer.pending_response.give(answer.result.refused(error))
