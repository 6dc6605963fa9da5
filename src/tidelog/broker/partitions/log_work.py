"""Changes of logs in which a thread has a part: cuts, what retention takes out, compactions.

Owns that each one that has begun is gone through to its end, whoever stops waiting for it: half of
it on the disk is no state that a log can be in. Whoever wants to give a partition another role, or
to take its log away, waits here before; a stop of the broker waits for all. Which change comes when
is the log's to say: it refuses a second one (``PartitionLog.changing``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from tidelog.runtime.turns import Pieces
from tidelog.storage.log.partition_log import PartitionLog

Result = TypeVar("Result")


class LogWork:
    """The changes under way on one broker: at most one for each that asks (``run`` waits)."""

    def __init__(self, threads: Executor | None) -> None:
        self._threads = threads
        self._under_way: dict[asyncio.Task[Any], PartitionLog | None] = {}

    async def run(self, log: PartitionLog | None, pieces: Pieces[Result]) -> Result:
        """Do work on a log (None: on what is above all logs) and return its result.

        What needs no thread is done in this turn; the rest goes on when the caller is cancelled.
        """
        try:
            call = next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result
        task = asyncio.get_running_loop().create_task(self._finish(pieces, call), name="log-work")
        self._under_way[task] = log
        task.add_done_callback(self._under_way.pop)
        return await asyncio.shield(task)

    async def until_free(self, log: PartitionLog, deadline_s: float | None = None) -> bool:
        """Wait until nothing is under way on a log; False when the loop's time is over before."""
        left_s = None
        while busy := [task for task, its in self._under_way.items() if its is log]:
            if deadline_s is not None:
                left_s = deadline_s - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return False
            await asyncio.wait(busy, timeout=left_s)
            await asyncio.sleep(0)  # it is taken off the list in the turn after its end
        return True

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))
            await asyncio.sleep(0)

    async def _finish(self, pieces: Pieces[Result], call: Callable[[], None] | None) -> Result:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    if call is None:
                        await asyncio.sleep(0)
                    else:
                        await loop.run_in_executor(self._threads, call)
                except Exception as error:
                    call = pieces.throw(error)
                else:
                    call = next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result
