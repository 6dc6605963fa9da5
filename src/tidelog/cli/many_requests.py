"""Requests to many nodes at a time, each with a deadline: one that is silent hides no other.

Owns the deadlines and how many are under way. Not the requests.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tidelog.client.errors import ClientError, RequestTimedOut

AT_ONCE = 16
"""Requests of one kind that are under way at the same time."""

PATIENCE_S = 5.0
"""The timeout of one request: a sick broker must not hide the responses of the others."""

LAST_WAIT_S = 1.0
"""The timeout of a request that begins after a shared deadline."""

Item = TypeVar("Item")
Result = TypeVar("Result")


async def ask_each(
    items: Sequence[Item],
    ask: Callable[[Item], Awaitable[Result]],
    kind: str,
    shared: SharedPatience | None = None,
) -> list[Result | ClientError]:
    """Call ``ask`` for each item, some at a time; an item that fails yields its error."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> Result | ClientError:
        async with places:
            subject = f"{kind} {item}"
            if shared is None:
                return await in_time(ask(item), subject)
            return await shared.in_time(lambda: ask(item), subject)

    return list(await asyncio.gather(*(one(item) for item in items)))


async def in_time(
    asked: Awaitable[Result], subject: str, seconds: float = PATIENCE_S
) -> Result | ClientError:
    """Return the result, or the error when there is none in time."""
    try:
        async with asyncio.timeout(seconds):
            return await asked
    except ClientError as error:
        return error
    except TimeoutError:
        return RequestTimedOut(f"{subject} did not answer within {seconds:.1f} s")


class SharedPatience:
    """One deadline, by the clock, for all requests of a command, whatever their number.

    While all answer, the command may take longer: a request that begins after the deadline gets
    ``LAST_WAIT_S``. After one that was not answered in time, none begins any longer.
    """

    def __init__(self, seconds: float) -> None:
        self._ends_at = asyncio.get_running_loop().time() + seconds
        self._met_silence = False

    @property
    def left_s(self) -> float:
        """The time that is left, at least 0."""
        return max(0.0, self._ends_at - asyncio.get_running_loop().time())

    async def in_time(
        self, ask: Callable[[], Awaitable[Result]], subject: str, most_s: float = math.inf
    ) -> Result | ClientError:
        """Return the result of ``ask``, or the error when there is none in time."""
        left_s = self.left_s
        if self._met_silence:
            if left_s == 0:
                return RequestTimedOut(f"{subject} was not asked: others did not answer in time")
        else:
            left_s = max(left_s, LAST_WAIT_S)
        answer = await in_time(ask(), subject, min(left_s, most_s))
        self._met_silence |= isinstance(answer, RequestTimedOut)
        return answer
