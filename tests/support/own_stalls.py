"""Stalls of a loop without what other programs on the machine cost: for a watchdog of the tests.

A watchdog takes off how long the loop's thread waited for a processor. This takes off how long the
process's other threads waited for one, too: that which has the interpreter's lock then keeps the
loop waiting, and does nothing. What the loop's thread computed itself is a stall in any case.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from tidelog.runtime.loop_watch import Stalls

TASKS = "/proc/self/task"


class Waits:
    """How long the other threads of this process wait for a processor."""

    def __init__(self) -> None:
        self._own = threading.get_native_id()
        self._files: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self.since_before_s()

    def since_before_s(self) -> float:
        """All of them together, since the call before."""
        found = {task for task in os.listdir(TASKS) if int(task) != self._own}
        for ended in self._files.keys() - found:
            os.close(self._files.pop(ended))
            self._told.pop(ended, None)
        total_ns = 0
        for task in found:
            with contextlib.suppress(OSError):
                if task not in self._files:
                    self._files[task] = os.open(f"{TASKS}/{task}/schedstat", os.O_RDONLY)
                now_ns = int(os.pread(self._files[task], 96, 0).split()[1])
                # A thread that is new has waited since it began, which was after the call before.
                total_ns += now_ns - self._told.get(task, 0)
                self._told[task] = now_ns
        return total_ns / 1e9


class OwnStalls(Stalls):
    """Counts what is left of a stall without the waits of other threads. Made by the first beat."""

    __slots__ = ("_waits", "_worked_s")

    def __init__(self) -> None:
        super().__init__()
        self._waits: Waits | None = None
        self._worked_s = 0.0

    def add(self, seconds: float) -> None:
        if self._waits is None:
            self._waits = Waits()
        before_s, self._worked_s = self._worked_s, time.thread_time()
        waited_s = self._waits.since_before_s()
        super().add(min(seconds, max(seconds - waited_s, self._worked_s - before_s)))
