"""Who waits until clients have read their answers: one queue for a server, asked by one timer.

Owns the order in which those that wait are asked again. Whether there is room is ``answering``'s.
Of one address, those that wait for the same need the same: when the one that has waited longest
finds no room, none of them does. So a look costs as much as addresses wait, not connections, and
no more than ``MOST_LOOKS``; each address is asked in turn.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tidelog.network.limits import Account

ANSWERS_RETRY_S = 0.02
"""How soon those that wait are asked again: only under pressure."""

MOST_LOOKS = 100
"""Connections that are asked at a time: what goes on may find that others have taken the room."""


class ResponseWaiter(Protocol):
    """Who waits: a connection."""

    client_host: str

    def may_answer_now(self) -> bool:
        """Whether there is room, or nothing more to wait for."""

    def answer_now(self) -> None:
        """Go on; it may wait again."""


class AnswerQueue:
    """Those of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, account: Account) -> None:
        self._loop = loop
        self._account = account
        self._waiting: dict[tuple[str, int], dict[ResponseWaiter, None]] = {}
        """By address and what is waited for, who waited longest first; none is empty."""
        self._place: dict[ResponseWaiter, tuple[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.looks = 0
        """How often one was asked."""

    def __contains__(self, waiter: object) -> bool:
        return waiter in self._place

    def wait(self, waiter: ResponseWaiter, need: int) -> None:
        """Call ``answer_now`` when there is room; ``need`` is the same for the same need."""
        place = self._place[waiter] = (waiter.client_host, need)
        self._waiting.setdefault(place, {})[waiter] = None
        self._ask_later()

    def left(self, waiter: ResponseWaiter) -> bool:
        """Take one off; return whether it waited."""
        place = self._place.pop(waiter, None)
        if place is None:
            return False
        same = self._waiting[place]
        del same[waiter]
        if not same:
            del self._waiting[place]
        return True

    def stop(self) -> None:
        """Ask nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ask_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWERS_RETRY_S, self._ask)

    def _ask(self) -> None:
        finishing = self._account.finishing
        looks = MOST_LOOKS
        if finishing in self._place:
            # Others of its address may wait for this one, whoever waited longer.
            looks -= 1
            self._goes_on(finishing)
        for place in list(self._waiting):
            while looks and (same := self._waiting.get(place)):
                looks -= 1
                if not self._goes_on(next(iter(same))):
                    break
            if place in self._waiting:
                # Behind those that were not asked.
                self._waiting[place] = self._waiting.pop(place)
            if not looks:
                break
        self._timer = None
        if self._waiting:
            self._ask_later()

    def _goes_on(self, waiter: ResponseWaiter) -> bool:
        self.looks += 1
        if not waiter.may_answer_now():
            return False
        self.left(waiter)
        waiter.answer_now()
        return True
