"""Ending tasks of an event loop.

Owns the order: all are cancelled before one is waited for. Not who begins them, nor what they
leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def call_off(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and return when each has ended, however it did; linear in their number.

    Those are meant that are there at the call. Raises nothing of theirs.
    """
    called = list(tasks)
    for task in called:
        task.cancel()
    await asyncio.gather(*called, return_exceptions=True)
