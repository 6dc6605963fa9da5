"""The queue of connections that wait until clients have read their responses; one timer serves it.

Owns the order in which they are tried again. Not whether there is room: see `stepping`. The
connections of one address in one queue have the same need: when the one that has waited longest
finds no room, none of them does. So the cost of a try grows with the waiting addresses, not with
the connections, and is at most ``MOST_CHECKS``; addresses are tried in turn.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tidelog.network.limits import Account

ANSWERS_RETRY_S = 0.02
"""Interval between two tries; there are none while no connection waits."""

MOST_CHECKS = 100
"""Most connections that one run tries; a connection that goes on may use up the room."""


class ResponseWaiter(Protocol):
    """A connection that waits for room."""

    client_host: str

    def may_answer_now(self) -> bool:
        """Whether there is room, or nothing more to wait for."""

    def answer_now(self) -> None:
        """Go on; it may wait again."""


class AnswerQueue:
    """The waiting connections of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, account: Account) -> None:
        self._loop = loop
        self._account = account
        self._waiting: dict[tuple[str, int], dict[ResponseWaiter, None]] = {}
        """By address and need, the longest wait first; none is empty."""
        self._place: dict[ResponseWaiter, tuple[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.checks = 0
        """Tries so far."""

    def __contains__(self, waiter: object) -> bool:
        return waiter in self._place

    def wait(self, waiter: ResponseWaiter, need: int) -> None:
        """Call ``answer_now`` when there is room; ``need`` is the same for the same need."""
        place = self._place[waiter] = (waiter.client_host, need)
        self._waiting.setdefault(place, {})[waiter] = None
        self._ask_later()

    def left(self, waiter: ResponseWaiter) -> bool:
        """Remove a connection; return whether it waited."""
        place = self._place.pop(waiter, None)
        if place is None:
            return False
        same = self._waiting[place]
        del same[waiter]
        if not same:
            del self._waiting[place]
        return True

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _ask_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWERS_RETRY_S, self._ask)

    def _ask(self) -> None:
        finishing = self._account.finishing
        checks = MOST_CHECKS
        if finishing in self._place:
            # Others of its address may wait for this one, even if they have waited longer.
            checks -= 1
            self._goes_on(finishing)
        for place in list(self._waiting):
            while checks and (same := self._waiting.get(place)):
                checks -= 1
                if not self._goes_on(next(iter(same))):
                    break
            if place in self._waiting:
                # After those that were not tried.
                self._waiting[place] = self._waiting.pop(place)
            if not checks:
                break
        self._timer = None
        if self._waiting:
            self._ask_later()

    def _goes_on(self, waiter: ResponseWaiter) -> bool:
        self.checks += 1
        if not waiter.may_answer_now():
            return False
        self.left(waiter)
        waiter.answer_now()
        return True
