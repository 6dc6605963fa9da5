"""The readers of a consumer's former subscriptions, until the next call that waits ends them.

Owns that each of them ends, whatever the callbacks of another raise. Not what a reader does at its
end: see ``client.groups.group_reader``.
"""

from __future__ import annotations

import asyncio
import contextlib

from tidelog.client.errors import ClientError
from tidelog.client.groups.group_reader import GroupReader


class LeftReaders:
    """The former readers of one consumer."""

    def __init__(self) -> None:
        self._readers: list[GroupReader] = []
        self.leaving: GroupReader | None = None
        """The reader whose partitions are given up, for commits in callbacks."""

    def __bool__(self) -> bool:
        return bool(self._readers)

    def add(self, reader: GroupReader) -> None:
        """End this one with the next call of ``leave``."""
        self._readers.append(reader)

    async def leave(
        self, autocommit: bool, timeout_ms: float, present: GroupReader | None = None
    ) -> None:
        """Commit, call back, and leave the groups of all, and of ``present`` after them.

        Waits up to ``timeout_ms`` for commits, apart from the time of callbacks. The first
        exception of a callback is raised when all have ended. A cancelled call waits for no commit
        any more, and calls nothing back.
        """
        until: float | None = asyncio.get_running_loop().time() + timeout_ms / 1000
        readers = [*([] if present is None else [present]), *self._readers]
        self._readers = []
        raised: BaseException | None = None
        while readers:
            try:
                until = await self._leave(readers.pop(), until, autocommit)
            except asyncio.CancelledError as cancelled:
                raised, until = cancelled, None
            except Exception as error:
                raised = error if raised is None else raised
        if raised is not None:
            raise raised

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
