"""The pace of long work (`model.work`): drivers that check the clock at each of its yields.

Owns how long a turn of the event loop is, and these drivers. Not the driver of requests, which
charges their memory: see `network.stepping`; not which request is next: see `network.turns`.

A plain coroutine that awaits something between its steps uses a ``Turn``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from inspect import isawaitable
from types import GeneratorType
from typing import Any, TypeVar

from tidelog.model.work import Result, Work
from tidelog.runtime.clock import Clock

Item = TypeVar("Item")

REQUESTS_MS = 5
"""How long requests may use the loop before other work has its turn."""

BACKGROUND_MS = 2
"""How long one piece of other work may, before requests and the rest of it have theirs."""

PART = 64
"""How many items are done between two checks of the clock, where one of them is far shorter than a
check."""

PLACES = 2
"""Most works of ``Background`` at a time: they share the threads with syncs of logs, and each may
hold 40 MB."""


def parts(items: Sequence[Item]) -> Sequence[Sequence[Item]]:
    """Cut items into parts of ``PART``."""
    if len(items) <= PART:
        # Nearly always in a request: without a generator of its own.
        return (items,) if items else ()
    return [items[first : first + PART] for first in range(0, len(items), PART)]


class Turn:
    """One turn of the loop, of work in the background."""

    __slots__ = ("_clock", "_end_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + BACKGROUND_MS

    @property
    def is_over(self) -> bool:
        """Whether others should run now."""
        return self._clock.monotonic_ms() >= self._end_ms

    async def pause(self) -> bool:
        """Let others run if they should; return whether they did: state may have changed."""
        if not self.is_over:
            return False
        await self.give_way()
        return True

    async def give_way(self) -> None:
        """Let others run, then begin the next turn."""
        await asyncio.sleep(0)
        self._end_ms = self._clock.monotonic_ms() + BACKGROUND_MS


async def run(work: Work[Result], clock: Clock, threads: Executor | None = None) -> Result:
    """Do it in turns of the loop, and its calls in ``threads`` (None: the loop's default).

    The work is given up when the caller is cancelled, but not before a thread's call has returned.
    """
    turn = Turn(clock)
    try:
        said = next(work)
    except StopIteration as end:
        result: Result = end.value
        return result
    return await go_on(work, said, turn, threads)


async def response(result: Any, clock: Clock) -> Any:
    """Return what a handler's result comes to: an awaitable or ``Work`` may return another one."""
    while True:
        if isinstance(result, GeneratorType):
            result = await run(result, clock)
        elif isawaitable(result):
            result = await result
        else:
            return result


async def go_on(work: Work[Result], said: object, turn: Turn, threads: Executor | None) -> Result:
    """Do as ``run`` with work that has begun: ``said`` is what it yielded first."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            found = None
            try:
                if callable(said):
                    found = await _returned(loop.run_in_executor(threads, said))
                elif turn.is_over:
                    await turn.give_way()
            except Exception as error:
                # At the place that yielded the call: the work decides what its failure means.
                said = work.throw(error)
            else:
                said = work.send(found)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        # Also when the caller is cancelled: the work's own ``finally`` blocks leave no change half
        # noted.
        work.close()


class Background:
    """Runs long work with calls for threads; work without a place waits for one, in order."""

    def __init__(self, clock: Clock, threads: Executor | None, places: int = PLACES) -> None:
        self._clock = clock
        self._threads = threads
        self._places = asyncio.Semaphore(places)

    async def run(self, work: Work[Result]) -> Result:
        """Do as the function ``run``, once there is a place."""
        async with self._places:
            return await run(work, self._clock, self._threads)

    @property
    def has_place(self) -> bool:
        """Whether work can begin now: its first piece may be done without a task."""
        return not self._places.locked()

    async def go_on(self, work: Work[Result], said: object) -> Result:
        """Do as the function ``go_on``, once there is a place."""
        async with self._places:
            return await go_on(work, said, Turn(self._clock), self._threads)


class OneByOne:
    """Does work without a task: in order of arrival, one piece of work in each turn of the loop,
    and what is not done when its turn is over comes after the others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Work[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Work[None]) -> None:
        """Do it in a later turn. It has no calls for threads."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        turn = Turn(self._clock)
        try:
            if any(turn.is_over for _ in self._waiting[0]):
                self._waiting.append(self._waiting[0])
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._go_on)


async def _returned(doing: asyncio.Future[Any]) -> Any:
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        if not doing.done():
            await asyncio.wait([doing])
        raise
    finally:
        # An error refers to this frame, which would keep the objects of the call alive.
        del doing
