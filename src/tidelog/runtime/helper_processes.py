"""The helper processes for CPU-bound work (compaction), started when needed.

Owns their start and their end: each has a low priority, is replaced after some tasks and after it
was killed, and ends when its server ends, however that happens.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

TASKS_PER_HELPER = 16
"""Tasks after which a helper is replaced, which frees the memory that it still holds."""

NICENESS = 10
"""About a tenth of a core on a busy machine. With the lowest priority, 19, a compaction would never
end there, and logs that are not compacted fill the disk."""

_PR_SET_PDEATHSIG = 1


class HelperProcesses(Executor):
    """An executor with one helper process at a time, or ``most``.

    The task of a helper that was killed fails with BrokenProcessPool; the next gets a new helper.
    """

    def __init__(self, most: int = 1, niceness: int = NICENESS) -> None:
        self._most = most
        self._niceness = niceness
        self._pool: ProcessPoolExecutor | None = None
        self._ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn(*args, **kwargs)`` in the helper. RuntimeError after ``shutdown``."""
        if self._ended:
            raise RuntimeError("the helper processes have been ended")
        if self._pool is None:
            self._pool = self._new_pool()
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenProcessPool:
            self._pool.shutdown(wait=False)
            self._pool = self._new_pool()
            return self._pool.submit(fn, *args, **kwargs)

    def _new_pool(self) -> ProcessPoolExecutor:
        # Not forked: a fork would copy the threads and sockets of the server.
        return ProcessPoolExecutor(
            max_workers=self._most,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(self._niceness, os.getpid()),
            max_tasks_per_child=TASKS_PER_HELPER,
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the helper. It waits for a running task, but ends it with ``cancel_futures``: a stop
        must not wait for a compaction, whose files the next start removes."""
        self._ended = True
        if self._pool is None:
            return
        if cancel_futures:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


class OneEach(Executor):
    """An executor with a helper process for each task at the same time; whoever submits bounds
    them. One stays for the next task. A helper that is killed fails its own task alone."""

    def __init__(self) -> None:
        self._spare: list[HelperProcesses] = []
        self._at_work: set[HelperProcesses] = set()
        self._ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn(*args, **kwargs)`` in a helper. RuntimeError after ``shutdown``."""
        if self._ended:
            raise RuntimeError("the helper processes have been ended")
        helper = self._spare.pop() if self._spare else HelperProcesses()
        self._at_work.add(helper)
        doing = helper.submit(fn, *args, **kwargs)
        doing.add_done_callback(lambda _: self._is_free(helper))
        return doing

    def _is_free(self, helper: HelperProcesses) -> None:
        # In a thread of the helper's pool.
        self._at_work.discard(helper)
        if self._spare or self._ended:
            helper.shutdown(wait=False)
        else:
            self._spare.append(helper)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the helpers, as ``HelperProcesses.shutdown`` ends its own."""
        self._ended = True
        for helper in [*self._at_work, *self._spare]:
            helper.shutdown(wait, cancel_futures=cancel_futures)


def _begin(niceness: int, server: int) -> None:
    import contextlib
    import ctypes
    import signal

    # Ctrl-C goes to the whole process group; the server ends its helper itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    with contextlib.suppress(OSError, AttributeError):
        # Linux only: elsewhere a helper outlives a server that was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # A server that was killed before this call sends no signal.
        if os.getppid() != server:
            os._exit(0)
