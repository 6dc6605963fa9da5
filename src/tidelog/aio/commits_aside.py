"""Commits that a consumer makes aside: their order, their callbacks, and what an error means.

Owns the tasks that call back. Not the commits: see ``client.groups.reader_commits``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from tidelog.aio.consumer_hooks import call_here
from tidelog.aio.consumer_types import OffsetAndMetadata
from tidelog.client.errors import ClientError, CommitFailed, GaveUp, Refused, WrongState
from tidelog.client.groups.reader_commits import COMMIT_LOST, MOST_WAITING
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Callback = Callable[[Any, Exception | None], object]
_Ended = asyncio.Future[None]

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


class _Call:
    """The callback of one commit: it is called once, after those of the commits before."""

    def __init__(self, callback: Callback, offsets: Offsets, before: list[_Ended]) -> None:
        self._callback = callback
        self._offsets = offsets
        self._before = before
        self.is_begun = False
        self.ended: _Ended = asyncio.get_running_loop().create_future()

    async def begin(self, error: Exception | None) -> None:
        if self._before:
            await asyncio.wait(self._before)
        self.is_begun = True
        try:
            await call_here(self._callback, self._offsets, error)
        finally:
            self.ended.set_result(None)

    async def begin_cancelled(self) -> None:
        # Nothing waits for the cancelled task, nor for the error that a callback passes on.
        try:
            with contextlib.suppress(ClientError):
                await self.begin(WrongState("the commit was cancelled: it may have been made"))
        finally:
            # Cancelled as well: those after it, and the end, must not wait for ever.
            if not self.ended.done():
                self.ended.set_result(None)


class CommitsAside:
    """The commits of one consumer that were begun, and their callbacks."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._last: list[_Ended] = []
        """The ends of the last callbacks: when all of them have come, so have those before."""

    def begin(
        self,
        ask: Callable[[], Coroutine[Any, Any, None]],
        offsets: Offsets,
        callback: Callback | None,
    ) -> asyncio.Task[None]:
        """Ask for a commit; the task ends when its callback has, which gets the error or None.

        Callbacks have the order of the calls, also that of a cancelled task. One of a commit that a
        callback asks for waits for none: its caller may wait for it. Without one the task raises
        the error. Raises GaveUp where MOST_WAITING have not ended.
        """
        if len(self._tasks) >= MOST_WAITING:
            raise GaveUp(
                f"{MOST_WAITING} commits wait for a response, or their callbacks have not ended: "
                "wait for one, or commit less often"
            )
        asked: Coroutine[Any, Any, None] | None = None
        refused: ClientError | None = None
        try:
            with explained():
                asked = ask()
        except GaveUp:
            # The bound of the reader, which counts other commits, too.
            raise
        except ClientError as error:
            refused = error
        call = None if callback is None else self._placed(callback, offsets)

        async def ended() -> None:
            error = refused
            try:
                if asked is not None:
                    with explained():
                        await asked
            except ClientError as failed:
                error = failed
            if call is not None:
                await call.begin(error)
            elif error is not None:
                raise error

        def end(_: asyncio.Task[None]) -> None:
            if asked is not None:
                # Where the task was cancelled before it began.
                asked.close()
            if call is not None and not call.is_begun:
                self._start(call.begin_cancelled())

        task = self._start(ended())
        task.add_done_callback(end)
        return task

    def _placed(self, callback: Callback, offsets: Offsets) -> _Call:
        last = [end for end in self._last if not end.done()]
        is_in_callback = asyncio.current_task() in self._tasks
        call = _Call(callback, offsets, [] if is_in_callback else last)
        self._last = [*last, call.ended] if is_in_callback else [call.ended]
        return call

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task))
        return task

    async def all_called_back(self) -> None:
        """Wait until all callbacks have ended; in one of them it does not wait."""
        if asyncio.current_task() in self._tasks:
            return
        if waiting := [*self._tasks, *self._last]:
            await asyncio.wait(waiting)
