"""Long work in steps, so that it never blocks the event loop: some in turns, some in threads.

Owns the form of such work and the two ways to run it. Work is a generator that yields either None
(a good moment to let others run) or a call that a thread may make and that releases the GIL for
nearly all of its time; it returns its result. All state outside of it may have changed after a
yield. A cancelled ``Turns.run`` ends the generator only when the thread's call has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from typing import TypeVar

from tidelog.runtime.clock import Clock

Result = TypeVar("Result")
Pieces = Generator[Callable[[], None] | None, None, Result]

TURN_MS = 5
"""How long one turn of the loop may be."""

PLACES = 2
"""Most works at a time: they share the threads with syncs of logs, and each may hold 40 MB."""


def at_once(pieces: Pieces[Result]) -> Result:
    """Run all of it at once: for small work, tests and helper processes."""
    try:
        call = next(pieces)
        while True:
            try:
                if call is not None:
                    call()
            except Exception as error:
                call = pieces.throw(error)
            else:
                call = next(pieces)
    except StopIteration as end:
        result: Result = end.value
        return result


class Turn:
    """One turn of the loop of work whose pieces are short, but may not be on a busy machine."""

    __slots__ = ("_clock", "_end_ms", "_left")

    def __init__(self, clock: Clock, most: int, turn_ms: int) -> None:
        """It is over after ``most`` pieces or ``turn_ms``, whichever comes first."""
        self._clock = clock
        self._left = most
        self._end_ms = clock.monotonic_ms() + turn_ms

    def is_over(self) -> bool:
        """Count one finished piece; return whether the turn is over."""
        self._left -= 1
        return self._left <= 0 or self._clock.monotonic_ms() >= self._end_ms


async def in_turns(steps: Generator[object, None, Result], clock: Clock) -> Result:
    """Do steps that need no thread in turns of ``TURN_MS``; return their result."""
    end_ms = clock.monotonic_ms() + TURN_MS
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        if clock.monotonic_ms() >= end_ms:
            await asyncio.sleep(0)
            end_ms = clock.monotonic_ms() + TURN_MS


class Turns:
    """Runs long work beside an event loop; work without a place waits for one, in order."""

    def __init__(self, threads: Executor | None, places: int = PLACES) -> None:
        self._threads = threads
        self._places = asyncio.Semaphore(places)
        self.in_threads = 0
        """Calls that threads have made so far."""

    async def run(self, pieces: Pieces[Result]) -> Result:
        """Return the work's result; it is given up when the caller is cancelled."""
        async with self._places:
            try:
                call = next(pieces)
                while True:
                    try:
                        await self._do(call)
                    except Exception as error:
                        call = pieces.throw(error)
                    else:
                        call = next(pieces)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                pieces.close()

    async def _do(self, call: Callable[[], None] | None) -> None:
        if call is None:
            await asyncio.sleep(0)
            return
        self.in_threads += 1
        await _returned(asyncio.get_running_loop().run_in_executor(self._threads, call))


async def _returned(doing: asyncio.Future[None]) -> None:
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        if not doing.done():
            await asyncio.wait([doing])
        raise
    finally:
        # An error refers to this frame, which would keep the objects of the call alive.
        del doing
