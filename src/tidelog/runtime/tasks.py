"""The end of tasks of an event loop.

Owns the order, all are cancelled before one is awaited, and errors that nothing else retrieves. Not
their start, nor the clean-up after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def call_off(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and return when each has ended, however it did; linear in their number.

    Only those that exist at the call. Raises none of their errors.
    """
    called = list(tasks)
    for task in called:
        task.cancel()
    await asyncio.gather(*called, return_exceptions=True)


async def shared(task: asyncio.Task[Result], called_off: Exception) -> Result:
    """Await a task that others await, too: a caller that is cancelled does not end it.

    Raises ``called_off`` where the task was cancelled, and its caller was not.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if not task.cancelled() or (caller is not None and caller.cancelling()):
            raise
        raise called_off from None


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task: a waiting caller gets it, and the loop must not warn."""
    if not task.cancelled():
        task.exception()
