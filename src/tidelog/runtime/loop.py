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
    from concurrent.futures import Executor

Result = TypeVar("Result")

GC_THRESHOLDS = (50_000, 20, 1000)
"""Allocations before a young collection, and how many of each generation before the next: messages
are not tracked by the collector (``gc=False`` structs), so little builds up in between."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new uvloop."""
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def tame_collector() -> None:
    """Call once the process has started: the collector skips all objects that exist now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run ``main`` to its end on uvloop, as ``asyncio.run`` does on asyncio's loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def helper_processes() -> Executor:
    """Return the executor for CPU-bound work (``Seams.processes``)."""
    # Imported here: a start does not wait for code that most servers never use.
    from tidelog.runtime.helper_processes import OneEach

    return OneEach()


def recovery_helpers(most: int) -> Executor:
    """Return an executor for the checks of a start (``Seams.recovery_helpers``). No client is
    served before they end, so they have the priority of the start itself."""
    from tidelog.runtime.helper_processes import HelperProcesses

    return HelperProcesses(most, niceness=0)
