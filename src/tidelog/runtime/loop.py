"""The event loop of a server process, and its garbage collector.

Owns the choice of loop (uvloop) and the collector's tuning: p99 is a promise, and a collection of
the oldest generation stops the loop for as long as the heap is large.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Result = TypeVar("Result")

GC_THRESHOLDS = (50_000, 20, 1000)
"""Allocations before a young collection, and how many of each generation before the next: messages
are not tracked by the collector (``gc=False`` structs), so little builds up in between."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new uvloop."""
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def tame_collector() -> None:
    """Call once the process has started: what lives now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run ``main`` to its end on uvloop, as ``asyncio.run`` does on asyncio's loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


TASKS_PER_HELPER = 16
"""A helper process is replaced after so many tasks: what it had to remember goes with it."""

_PR_SET_PDEATHSIG = 1


def helper_processes() -> ProcessPoolExecutor:
    """Return the executor for work that burns Python (``Seams.processes``): one process.

    It is started at the first task, has the lowest priority, and dies with this process, however
    that ends.
    """
    # Imported here: a start need not wait for what most servers never use.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin_helper,
        max_tasks_per_child=TASKS_PER_HELPER,
    )


def _begin_helper() -> None:
    import contextlib
    import ctypes
    import os
    import signal

    # Ctrl-C goes to the whole group; the server ends its helper itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        # Linux only: else a helper would outlive a server that was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
