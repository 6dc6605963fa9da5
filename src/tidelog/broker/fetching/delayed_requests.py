"""Fetch requests that wait for more to read.

Owns the wait, its time-out and its ends; the handlers and the follower sessions make the responses.
Nothing polls: a partition wakes the requests that wait at it. The connections bound what waits: one
Fetch each. Not Produce requests that wait: see ``partitions.delayed_produce``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.runtime.turns import TURN_MS, Turn

if TYPE_CHECKING:
    from tidelog.broker.partitions.waiters import Waiter
    from tidelog.runtime.clock import Clock

    Places = dict[Waiter, None]

AT_ONCE = 100
"""Places that a fetch leaves in one step."""

MOST_STEPS = 500
"""Steps in one turn, should the clock stand still."""


class Departures:
    """Takes fetches that wait no longer off their partitions; very many in turns of the loop.

    One turn at a time for all of them, however many end at once. A fetch is here for no longer than
    it took to begin to wait, so partitions to which nothing comes gather none.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leaving: deque[tuple[Waiter, list[Places]]] = deque()

    def __len__(self) -> int:
        return len(self._leaving)

    def take_off(self, waiter: Waiter, places: list[Places]) -> None:
        """Take one off all its places: few at once, of more it is told until then."""
        if len(places) <= AT_ONCE:
            for each in places:
                each.pop(waiter, None)
            return
        self._leaving.append((waiter, places))
        if len(self._leaving) == 1:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        leaving = self._leaving
        turn = Turn(self._clock, MOST_STEPS, TURN_MS)
        while leaving:
            waiter, places = leaving[0]
            for each in places[-AT_ONCE:]:
                each.pop(waiter, None)
            del places[-AT_ONCE:]
            if not places:
                leaving.popleft()
            if turn.is_over():
                break
        if leaving:
            asyncio.get_running_loop().call_soon(self._go_on)


class DelayedFetch:
    """A Fetch request that found less than ``min_bytes``; it waits where it was told to (``join``).

    ``future`` is done with what ``read`` then returns, when enough has come, something else
    happened to one of its partitions, or the time is over.
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
        """Whether it waits no longer, or will not after this turn: then it is to join nothing."""
        self._timer = loop.call_later(max_wait_ms / 1000, self._finish)
        self.future.add_done_callback(self._leave)

    def join(self, places: list[Places]) -> None:
        """Wait in these places, too: of a partition those that wait for its watermark, or for its
        end. Only while it is not woken."""
        self._places += places
        for each in places:
            each[self] = None

    def more(self, size: int) -> None:
        """Called by a partition; see ``partition_waiting.Waiter``."""
        self._missing -= size
        if (self._missing <= 0 or not size) and not self.is_woken:
            self.is_woken = True
            # In the next turn: the appends of this turn come first, and their answers.
            asyncio.get_running_loop().call_soon(self._finish)

    def moved(self) -> None:
        """Nothing to wake for; see ``partition_waiting.FollowerWaiter``."""

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
