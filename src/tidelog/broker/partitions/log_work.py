"""Changes of logs that need a thread: truncation, retention, compaction.

Owns that each change that has begun is completed, also when its caller stops waiting: a log must
not stay half-changed on disk. A change of role and the removal of a log wait here first; a stop of
the broker waits for all changes. Not the order of changes: a log refuses a second one
(``PartitionLog.change``).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Any, TypeVar

from tidelog.model.work import Work
from tidelog.runtime import pace
from tidelog.runtime.clock import Clock
from tidelog.storage.log.partition_log import PartitionLog

Result = TypeVar("Result")


class LogWork:
    """The changes in progress on one broker: at most one per caller (``run`` waits)."""

    def __init__(self, clock: Clock, threads: Executor | None) -> None:
        self._clock = clock
        self._threads = threads
        self._under_way: dict[asyncio.Task[Any], PartitionLog | None] = {}

    async def run(self, log: PartitionLog | None, pieces: Work[Result]) -> Result:
        """Do work on a log (None: on none in particular) and return its result.

        What needs no thread is done in this turn; the rest goes on when the caller is cancelled.
        """
        turn = pace.Turn(self._clock)
        try:
            while not callable(first := next(pieces)) and not turn.is_over:
                pass
        except StopIteration as end:
            result: Result = end.value
            return result
        rest = pace.go_on(pieces, first, turn, self._threads)
        task = asyncio.get_running_loop().create_task(rest, name="log-work")
        self._under_way[task] = log
        task.add_done_callback(self._under_way.pop)
        return await asyncio.shield(task)

    async def until_free(self, log: PartitionLog, deadline_s: float | None = None) -> bool:
        """Wait until no change of a log is in progress; False if the timeout ends first."""
        left_s = None
        while busy := [task for task, its in self._under_way.items() if its is log]:
            if deadline_s is not None:
                left_s = deadline_s - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return False
            await asyncio.wait(busy, timeout=left_s)
            await asyncio.sleep(0)  # it is taken off the list in the turn after its end
        return True

    def hand_over(self, former: PartitionLog, log: PartitionLog) -> None:
        """Let the changes of a log that has moved count as changes of the log in its new place."""
        self._under_way.update({t: log for t, its in self._under_way.items() if its is former})

    async def settled(self) -> None:
        """Wait until no change is in progress."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))
            await asyncio.sleep(0)
