"""Requests that are given up before their time-out, because another broker serves them now.

Owns when to look for such a broker, and the end of the wait. Not where to look: the caller does it.
A stopped process keeps its connections, so only metadata show that it was replaced. A request that
is answered in time costs one timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.client.connecting.first_answer import SILENT_S
from tidelog.client.errors import ClientError, TakenOver

Result = TypeVar("Result")

Search = Callable[[], Awaitable[str]]
"""Looks for a broker that serves the request now; returns a line that names it, "" for none."""

FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 4.0
EVEN_SEARCHES = 4
"""So many searches follow each other at the first pause: a new leader is elected within seconds."""


def pause_s(searches: int, first_s: float = FIRST_PAUSE_S) -> float:
    """Return the pause after so many searches in vain: even at first, then doubled, bounded."""
    doubled = first_s * 2.0 ** min(max(0, searches - EVEN_SEARCHES), 8)
    return max(first_s, min(doubled, MOST_PAUSE_S))


async def unless_taken_over(
    work: Awaitable[Result],
    search: Search,
    *,
    after_s: float = SILENT_S,
    first_pause_s: float = FIRST_PAUSE_S,
) -> Result:
    """Await a request. After ``after_s`` without a response, search again and again meanwhile.

    Raises TakenOver, with the line, when ``search`` finds another broker: ``work`` is cancelled.
    An error of ``search`` means that it found none.
    """
    watch = _Watch(search, first_pause_s)
    timer = asyncio.get_running_loop().call_later(after_s, watch.begin)
    try:
        async with asyncio.timeout(None) as watch.limit:
            return await work
    except TimeoutError:
        if not watch.found:
            raise
        raise TakenOver(watch.found) from None
    finally:
        timer.cancel()
        watch.end()


class _Watch:
    """The searches for one request; it is made for each, and begins only for one that is late."""

    __slots__ = ("_first_pause_s", "_search", "_task", "found", "limit")

    def __init__(self, search: Search, first_pause_s: float) -> None:
        self._search = search
        self._first_pause_s = first_pause_s
        self._task: asyncio.Task[None] | None = None
        self.limit: asyncio.Timeout
        self.found = ""

    def begin(self) -> None:
        """Search, in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self._searches())

    def end(self) -> None:
        """Search no longer."""
        if self._task is not None:
            self._task.cancel()

    async def _searches(self) -> None:
        searches = 0
        while not self.found:
            try:
                self.found = await self._search()
            except ClientError:
                # Its brokers are silent, too, or know of no other: this one may still respond.
                self.found = ""
            if not self.found:
                searches += 1
                await asyncio.sleep(pause_s(searches, self._first_pause_s))
        self.limit.reschedule(asyncio.get_running_loop().time())
