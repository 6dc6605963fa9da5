"""The tasks of a producer that wait for brokers: identity, connections, leaders, metadata.

Owns that one task of a kind runs at a time, the pause after one that failed, and the last trouble
on the way to the brokers. Not what the tasks do: see ``delivery`` and ``topic_follower``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.runtime.tasks import call_off


class BrokerWork:
    """The tasks of one producer. ``drain`` follows each; ``fail_all`` an error that is final."""

    def __init__(
        self,
        cluster: Cluster,
        drain: Callable[[], None],
        fail_all: Callable[[ClientError], None],
    ) -> None:
        self._cluster = cluster
        self._drain = drain
        self._fail_all = fail_all
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._failures = 0
        self._closed = False
        self.trouble: ClientError | None = None
        """The last error on the way to the brokers; None while there is none."""

    def run(self, kind: Hashable, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a task, unless one of this kind runs."""
        if kind in self._tasks or self._closed:
            return
        task = asyncio.get_running_loop().create_task(work(), name=f"producer: {kind}")
        self._tasks[kind] = task
        task.add_done_callback(partial(self._ended, kind))

    def task(self, kind: Hashable) -> asyncio.Task[None] | None:
        """Return the task of a kind that runs."""
        return self._tasks.get(kind)

    def succeeded(self) -> None:
        """Note that a broker has answered: the next failure is the first one again."""
        self._failures = 0

    def because(self, text: str) -> str:
        """Return a text with the present trouble, if any, as its reason."""
        return f"{text}; {self.trouble}" if self.trouble else text

    def close(self) -> None:
        """Begin no further task."""
        self._closed = True

    async def stop(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        await call_off(self._tasks.values())

    def _ended(self, kind: Hashable, task: asyncio.Task[None]) -> None:
        del self._tasks[kind]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._failures = 0
            self.trouble = None
            self._drain()
        elif isinstance(error, ClientError):
            self._failures += 1
            self.trouble = error
            wait_s = self._cluster.settings.backoff.pause_s(self._failures - 1)
            self._cluster.forget()
            asyncio.get_running_loop().call_later(wait_s, self._drain)
            if isinstance(error, Refused) and not error.retriable:
                # No producer id: without it no partition can continue.
                self._fail_all(error)
        else:
            self._fail_all(ClientError(f"producing failed: {error!r}"))
