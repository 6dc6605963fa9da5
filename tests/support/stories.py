"""A story that a test tells on an event loop of its own.

Owns the loop, its clock, the deadline, and that no error stays without a caller. Not what happens
in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.processes import DEADLINE_S


def story(of: Callable[[], Awaitable[None]]) -> None:
    """Run a story to its end, which must come in time and leave no error unhandled."""

    async def whole() -> None:
        troubles: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: troubles.append(what))
        async with asyncio.timeout(DEADLINE_S):
            await of()
        assert not troubles

    asyncio.run(whole())


def let_pass(seconds: float) -> None:
    """Let the clock of the loop go on by so much at once."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
