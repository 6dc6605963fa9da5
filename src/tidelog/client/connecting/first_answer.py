"""The first answers of several brokers, which are asked one after another while one is silent.

Owns the order, and when the next one is asked. Not which brokers these are: see ``cluster``. A
stopped process still accepts connections and bytes, so its silence looks like slowness: the one
that was asked goes on, and the next one is asked as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tidelog.client.errors import ClientError, ConnectionLost
from tidelog.runtime.tasks import call_off

Result = TypeVar("Result")

SILENT_S = 1.0
"""A broker that has not answered for so long is silent: others are asked as well."""


class PeerAddress(NamedTuple):
    """Where a broker is, and the key of the connection to it."""

    key: Any
    host: str
    port: int

    @property
    def peer(self) -> str:
        """As connections name it."""
        return f"{self.host}:{self.port}"


def in_turn(
    addresses: Iterable[PeerAddress], opened: Mapping[str, Any], last: Collection[str]
) -> list[PeerAddress]:
    """Return each address once: those of open connections first, those of ``last`` at the end.

    ``opened``: the keys of open connections by their addresses; they are used.
    """
    by_peer: dict[str, PeerAddress] = {}
    for key, host, port in addresses:
        peer = f"{host}:{port}"
        by_peer.setdefault(peer, PeerAddress(opened.get(peer, key), host, port))
    order = by_peer.values()
    return sorted(order, key=lambda address: (address.peer in last, address.peer not in opened))


async def first_answer(
    attempts: Iterable[Callable[[], Awaitable[Result]]],
    *,
    silent_s: float | None = None,
    passed_over: Callable[[int], None] | None = None,
) -> Result:
    """Return the first result; the next attempt begins when the one before failed or is silent.

    ``passed_over`` is called with the place of an attempt that is silent. A ConnectionLost ends one
    attempt, any other error all of them. When every attempt has failed, the error of the last one
    is raised. Attempts that are not needed any more are cancelled. ``silent_s`` None: ``SILENT_S``.
    """
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Future[Result]] = []
    try:
        for attempt in attempts:
            newest = asyncio.ensure_future(attempt())
            tasks.append(newest)
            deadline = loop.time() + (SILENT_S if silent_s is None else silent_s)
            while not newest.done() and (left_s := deadline - loop.time()) > 0:
                await _wait(tasks, left_s)
                if (won := _answered(tasks)) is not None:
                    return won.result()
            if passed_over is not None and not newest.done():
                passed_over(len(tasks) - 1)
        while not all(task.done() for task in tasks):
            await _wait(tasks, None)
            if (won := _answered(tasks)) is not None:
                return won.result()
        error = _error_of(tasks[-1]) if tasks else None
        raise error or ConnectionLost("there is no broker to ask")
    finally:
        await _end(tasks)


async def several_answers(
    attempts: Iterable[Callable[[], Awaitable[Result]]],
    is_enough: Callable[[Sequence[Result]], bool],
    *,
    fewest: int,
    passed_over: Callable[[int], None] | None = None,
) -> list[Result]:
    """Return results as they arrive, until they are enough; the next attempt begins as above.

    ``is_enough`` is asked after each result. When all have begun, and each has ended or is silent,
    ``fewest`` results are enough. A ClientError ends one attempt, any other error all of them. When
    too many attempts failed, fewer results are returned.
    """
    tasks: list[asyncio.Future[Result]] = []
    seen: set[asyncio.Future[Result]] = set()
    results: list[Result] = []

    def is_done() -> bool:
        for task in [task for task in tasks if task.done() and task not in seen]:
            seen.add(task)
            error = _error_of(task)
            if error is None:
                results.append(task.result())
                if is_enough(results):
                    return True
            elif not isinstance(error, ClientError):
                raise error
        return False

    loop = asyncio.get_running_loop()
    try:
        for attempt in attempts:
            newest = asyncio.ensure_future(attempt())
            tasks.append(newest)
            deadline = loop.time() + SILENT_S
            while not newest.done() and (left_s := deadline - loop.time()) > 0:
                await _wait(tasks, left_s)
                if is_done():
                    return results
            if passed_over is not None and not newest.done():
                passed_over(len(tasks) - 1)
        while len(results) < fewest and not all(task.done() for task in tasks):
            await _wait(tasks, None)
            if is_done():
                break
        return results
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Future[Result]]) -> None:
    await call_off(task for task in tasks if not task.done())
    for task in tasks:
        # Two may end at once: the event loop would log the error of the one that is not asked.
        _error_of(task)


async def _wait(tasks: Sequence[asyncio.Future[Result]], timeout_s: float | None) -> None:
    open_ones = [task for task in tasks if not task.done()]
    await asyncio.wait(open_ones, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _answered(tasks: Sequence[asyncio.Future[Result]]) -> asyncio.Future[Result] | None:
    """Return the first attempt that succeeded, or raise an error that holds for all brokers."""
    for task in tasks:
        if task.done():
            error = _error_of(task)
            if error is None:
                return task
            if not isinstance(error, ConnectionLost):
                raise error
    return None


def _error_of(task: asyncio.Future[Result]) -> BaseException | None:
    if task.cancelled():
        return ConnectionLost("the attempt was cancelled")
    return task.exception()
