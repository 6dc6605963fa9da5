"""Fetch requests that wait for more to read.

Owns the wait, its timeout and its end. Not the responses: see ``handlers.fetch`` and
``follower_sessions``; not Produce requests that wait: see ``partitions.delayed_produce``. Nothing
polls: a partition wakes the requests that wait at it. Each connection has at most one Fetch here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.model.work import Work
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.partitions.waiters import Waiter
    from tidelog.runtime.clock import Clock

    Places = dict[Waiter, None]


class Departures:
    """Removes fetches whose wait is over from the waiters of their partitions.

    A removal from very many partitions takes several turns of the event loop, one turn at a time
    for all fetches. It takes no longer than the registration took, so that partitions without
    appends do not accumulate waiters.
    """

    def __init__(self, clock: Clock) -> None:
        self._leaving = pace.OneByOne(clock)

    def __len__(self) -> int:
        return len(self._leaving)

    def take_off(self, waiter: Waiter, places: list[Places]) -> None:
        """Remove a waiter from all its places: a few at once, more in turns. It may be called until
        it is removed."""
        if len(places) <= pace.PART:
            for place in places:
                place.pop(waiter, None)
            return
        self._leaving.add(_taken_off(waiter, places))


def _taken_off(waiter: Waiter, places: list[Places]) -> Work[None]:
    for part in pace.parts(places):
        for place in part:
            place.pop(waiter, None)
        yield None


class DelayedFetch:
    """A Fetch request that has read less than ``min_bytes``, and waits (``join``) for more.

    ``future`` gets the result of ``read`` when enough bytes have been appended, one of its
    partitions has changed in another way, or its time is over.
    """

    __slots__ = ("_departures", "_missing", "_places", "_read", "_timer", "future", "is_woken")

    def __init__(
        self,
        missing_bytes: int,
        max_wait_ms: int,
        read: Callable[[], Any],
        departures: Departures,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        self._places: list[Places] = []
        self._missing = missing_bytes
        self._read = read
        self._departures = departures
        self.is_woken = False
        """Whether the wait is over, or ends in the next turn: then it must not ``join``."""
        self._timer = loop.call_later(max_wait_ms / 1000, self._finish)
        self.future.add_done_callback(self._leave)

    def join(self, places: list[Places]) -> None:
        """Wait in these places, too: ``readers`` or ``followers`` of ``waiters.Waiting``. Only
        while it is not woken."""
        self._places += places
        for place in places:
            place[self] = None

    def more(self, size: int) -> None:
        """Count new bytes of a partition: see ``waiters.Waiter``."""
        self._missing -= size
        if (self._missing <= 0 or not size) and not self.is_woken:
            self.is_woken = True
            # In the next turn: the appends of this turn, and their responses, come first.
            asyncio.get_running_loop().call_soon(self._finish)

    def moved(self) -> None:
        """Not woken by this: see ``waiters.FollowerWaiter``."""

    def _finish(self) -> None:
        if not self.future.done():
            try:
                answer = self._read()
            except Exception as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(answer)

    def _leave(self, _: asyncio.Future[Any]) -> None:
        self._timer.cancel()
        self.is_woken = True
        places, self._places = self._places, []
        self._departures.take_off(self, places)
