"""Commits that a consumer makes aside: their order, their callbacks, and what an error means.

Owns the tasks that call back. Not the commits: see ``client.groups.reader_commits``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from tidelog.aio.consumer_hooks import call_here
from tidelog.aio.consumer_types import OffsetAndMetadata
from tidelog.client.errors import ClientError, CommitFailed, Refused, WrongState
from tidelog.client.groups.reader_commits import COMMIT_LOST
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Callback = Callable[[Any, Exception | None], object]

_LOST = (
    "the group has gone on without this consumer, and other members have its partitions: it polled "
    "too rarely (max_poll_interval_ms) or sent no heartbeat for session_timeout_ms"
)
_REBALANCES = "the group rebalances, and this consumer joins again: poll, then commit"


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Say what an error means for the caller of a commit."""
    try:
        yield
    except Refused as error:
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            raise Refused(error.code, error.subject, _REBALANCES) from None
        if error.code in COMMIT_LOST:
            raise CommitFailed(error.code, error.subject, error.reason or _LOST) from None
        raise


class CommitsAside:
    """The commits of one consumer that were begun, and their callbacks."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}

    def begin(
        self, ask: Callable[[], Awaitable[None]], offsets: Offsets, callback: Callback | None
    ) -> asyncio.Task[None]:
        """Ask for a commit; the task ends when its callback has, which gets the error or None.

        Callbacks have the order of the calls. Without one the task raises the error.
        """
        refused: ClientError | None = None
        try:
            with explained():
                asked = ask()
        except ClientError as error:
            refused = error
        # A commit that a callback asks for does not wait for that callback.
        is_in_callback = asyncio.current_task() in self._tasks
        before = [] if is_in_callback else list(self._tasks)[-1:]

        async def ended() -> None:
            error = refused
            try:
                if error is None:
                    with explained():
                        await asked
            except ClientError as failed:
                error = failed
            except asyncio.CancelledError:
                if callback is not None:
                    why = WrongState("the commit was cancelled: it may have been made")
                    await call_here(callback, offsets, why)
                raise
            if before and not before[0].done():
                await asyncio.wait(before)
            if callback is not None:
                await call_here(callback, offsets, error)
            elif error is not None:
                raise error

        task = asyncio.get_running_loop().create_task(ended())
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task))
        return task

    async def all_called_back(self) -> None:
        """Wait until all callbacks have ended; in one of them it does not wait."""
        if self._tasks and asyncio.current_task() not in self._tasks:
            await asyncio.wait(self._tasks)
