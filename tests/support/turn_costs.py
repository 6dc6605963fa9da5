"""How long one turn of an event loop takes, in CPU seconds of its thread.

Owns the measuring. CPU time, not wall time: other programs on the machine, and threads that work
beside the loop, are not in it. Nor is a walk of the garbage collector over what lived before: a
server has frozen what it started with and has the collector walk seldom
(``runtime.loop.tame_collector``), and so does this: the process of a whole test run keeps so much
that such a walk takes longer than the turns that are measured, and with Python's own thresholds a
walk falls into one turn of fifty and is half of it.

What others do to the caches of a processor is in it, and makes one turn of a hundred take three
times as long. ``best_turns`` compares runs of the same work turn by turn.
"""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from types import TracebackType

from tidelog.runtime.loop import GC_THRESHOLDS


class TurnCosts:
    """``async with TurnCosts() as turns``: ``turns.longest_s`` is that of the longest turn."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.costs_s = array("d")

    @property
    def turns(self) -> int:
        return len(self.costs_s)

    async def __aenter__(self) -> TurnCosts:
        gc.freeze()
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*GC_THRESHOLDS)
        self._task = asyncio.get_running_loop().create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.sleep(0)
        self._task.cancel()
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    async def _watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - before)
            self.costs_s.append(now - before)
            before = now
