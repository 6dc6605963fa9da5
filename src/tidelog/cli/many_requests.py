"""Requests to many nodes at a time, each with a deadline: one that is silent hides no other.

Owns the deadline and how many are under way. Not the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tidelog.client.errors import ClientError, RequestTimedOut

AT_ONCE = 16
"""Requests of one kind that are under way at the same time."""

PATIENCE_S = 5.0
"""The timeout of one request: a sick broker must not hide the responses of the others."""

Item = TypeVar("Item")
Result = TypeVar("Result")


async def ask_each(
    items: Sequence[Item], ask: Callable[[Item], Awaitable[Result]], kind: str
) -> list[Result | ClientError]:
    """Call ``ask`` for each item, some at a time; an item that fails yields its error."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> Result | ClientError:
        async with places:
            return await in_time(ask(item), f"{kind} {item}")

    return list(await asyncio.gather(*(one(item) for item in items)))


async def in_time(asked: Awaitable[Result], subject: str) -> Result | ClientError:
    """Return the result, or the error when there is none within ``PATIENCE_S``."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asked
    except ClientError as error:
        return error
    except TimeoutError:
        return RequestTimedOut(f"{subject} did not answer within {PATIENCE_S:.0f} s")
