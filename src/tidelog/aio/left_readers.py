"""The readers of a consumer's former subscriptions, until the next call that waits ends them.

Owns that each of them ends, whatever the callbacks of another raise. Not what a reader does at its
end: see ``client.groups.group_reader``.
"""

from __future__ import annotations

import asyncio
import contextlib

from tidelog.client.errors import ClientError
from tidelog.client.groups.group_reader import GroupReader
from tidelog.runtime.tasks import call_off, retrieve_error


class LeftReaders:
    """The former readers of one consumer."""

    def __init__(self) -> None:
        self._readers: list[GroupReader] = []
        """Those that have not ended."""
        self.leaving: GroupReader | None = None
        """The reader whose partitions are given up, for commits in callbacks."""
        self._one = asyncio.Lock()
        """Held while ``go_on`` ends readers."""
        self._commits_until = 0.0
        """When ``go_on`` waits for commits no longer, on the loop's clock; 0: it has not begun."""
        self._left_at = 0.0
        """When a call of ``go_on`` was cancelled; 0: none was since the last one began."""
        self._closing: tuple[GroupReader, asyncio.Task[None]] | None = None
        """A reader in its last step: nothing is called back in it."""
        self._raised: Exception | None = None
        """What ``go_on`` raises when all have ended."""

    def __bool__(self) -> bool:
        return bool(self._readers)

    def add(self, reader: GroupReader) -> None:
        """End this one with the next call of ``go_on`` or ``leave``."""
        self._readers.append(reader)

    async def go_on(self, autocommit: bool, timeout_ms: float) -> None:
        """Commit, call back, and leave the groups of all; the consumer goes on with another reader.

        Waits up to ``timeout_ms`` for commits, apart from the time of callbacks. The first
        exception of a callback is raised when all have ended. A cancelled call leaves the rest, and
        the rest of the time, to the next one: no commit is called off, and nothing is called back
        twice.
        """
        async with self._one:
            now_s = asyncio.get_running_loop().time
            if not self._commits_until:
                self._commits_until = now_s() + timeout_ms / 1000
            elif self._left_at:
                self._commits_until += now_s() - self._left_at
            self._left_at = 0.0
            try:
                await self._end_all(autocommit)
            except asyncio.CancelledError:
                self._left_at = now_s()
                raise
            self._commits_until = 0.0
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised

    async def _end_all(self, autocommit: bool) -> None:
        while self._readers:
            if self._closing is None:
                reader = self._readers[-1]
                try:
                    await self._give_up(reader, autocommit)
                except Exception as error:
                    self._raised = self._raised or error
                closing = reader.close(self._commits_until)
                task = asyncio.get_running_loop().create_task(closing)
                task.add_done_callback(retrieve_error)
                self._closing = reader, task
            await self._closed()

    async def _closed(self) -> None:
        """Wait for the reader in its last step, also if a cancelled call has begun that."""
        if self._closing is None:
            return
        reader, task = self._closing
        try:
            with contextlib.suppress(ClientError):
                await asyncio.shield(task)
        finally:
            if task.done():
                self._closing = None
                with contextlib.suppress(ValueError):
                    # A cancelled ``leave`` has taken it.
                    self._readers.remove(reader)

    async def _give_up(self, reader: GroupReader, autocommit: bool) -> None:
        self.leaving = reader
        until = self._commits_until
        try:
            # ``leave`` may have less time.
            self._commits_until += await reader.give_up(until, commits=autocommit) - until
            # Commits of its last callback: cancelled here, the next call waits for them.
            await reader.commits.settle(self._commits_until)
        finally:
            self.leaving = None

    async def leave(
        self, autocommit: bool, timeout_ms: float, present: GroupReader | None = None
    ) -> None:
        """Do that with all, and with ``present`` after them: the consumer ends.

        What ``go_on`` does in another task ends first, within the same time. A cancelled call waits
        for no commit any more, and calls nothing back: it closes every reader.
        """
        until: float | None = None
        raised: BaseException | None = self._raised
        begins = asyncio.get_running_loop().time()
        try:
            until = await self._other_ended(begins + timeout_ms / 1000)
            await self._closed()
        except asyncio.CancelledError as cancelled:
            raised, until = cancelled, None
        except Exception as error:
            raised = raised or error
        readers = [*([] if present is None else [present]), *self._readers]
        self._readers = []
        while readers:
            try:
                until = await self._leave(readers.pop(), until, autocommit)
            except asyncio.CancelledError as cancelled:
                raised, until = cancelled, None
            except Exception as error:
                raised = error if raised is None else raised
        if raised is not None:
            raise raised

    async def _other_ended(self, until: float) -> float:
        """Wait for what ``go_on`` does in another task; until then it may wait for commits.

        Returns a later time: callbacks and LeaveGroup use up none.
        """
        if not self._one.locked():
            return until
        self._commits_until = min(until, self._commits_until)
        commits = self._readers[-1].commits
        await commits.settle(until)
        await call_off(commits.tasks())
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self._one:
            return until + loop.time() - began

    async def _leave(
        self, reader: GroupReader, until: float | None, autocommit: bool
    ) -> float | None:
        self.leaving = reader
        try:
            if until is not None:
                until = await reader.give_up(until, commits=autocommit)
        except asyncio.CancelledError:
            until = None
            raise
        finally:
            self.leaving = None
            with contextlib.suppress(ClientError):
                await reader.close(until)
        return until
