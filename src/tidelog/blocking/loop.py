"""The event loop that all blocking clients of a process share, in one daemon thread.

Owns its lifecycle: it starts with the first client and ends with the last. Not the thread itself:
see ``tidelog.client.blocking``. A process made by ``fork`` has no such thread: there, clients of
the parent refuse to work, and the first new client starts another loop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tidelog.client.blocking import LoopThread
from tidelog.client.errors import ClientError, WrongState
from tidelog.runtime.loop import new_event_loop

Result = TypeVar("Result")


class ClientLoop:
    """One client's use of the shared loop, from its construction until ``leave``."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._thread = _joined()
        self._left = False

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the loop: nothing may wait there for the loop."""
        return self._thread.is_current

    @property
    def has_left(self) -> bool:
        """Whether ``leave`` was called."""
        return self._left

    def is_on_loop(self) -> bool:
        """Return ``is_current``, for a check at a later time."""
        return self._thread.is_current

    def call_soon(self, work: Callable[[], object]) -> None:
        """Call a function on the loop. Raises ClientError as ``start`` does."""
        self._check()
        self._thread.call_soon(work)

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine on the loop and return its result, or raise its exception.

        An interruption or a timeout (TimeoutError) cancels it. Raises ClientError on the loop
        itself (in a callback), after ``leave``, and in a forked process.
        """
        try:
            self._check()
            if self.is_current:
                raise WrongState(
                    "a callback of a client runs on its loop and must not wait for it: "
                    "hand this work to a thread of your own"
                )
        except ClientError:
            work.close()
            raise
        return self._thread.run(work, timeout_s)

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine on the loop. Raises ClientError as ``run`` does, save in a callback."""
        try:
            self._check()
        except ClientError:
            work.close()
            raise
        return self._thread.start(work)

    def _check(self) -> None:
        if self._process != os.getpid():
            raise WrongState(
                "this client was opened before the process forked: open another one in this process"
            )
        if self._left:
            raise WrongState("this client is closed: open another one")

    def leave(self) -> None:
        """End this use; the last one ends the loop. A second call does nothing."""
        if not self._left:
            self._left = True
            if self._process == os.getpid():
                _leave()


_lock = threading.Lock()
_shared: LoopThread | None = None
_users = 0


def _joined() -> LoopThread:
    global _shared, _users
    with _lock:
        if _shared is None:
            _shared = LoopThread(new_event_loop)
        _users += 1
        return _shared


def _leave() -> None:
    global _shared, _users
    with _lock:
        _users -= 1
        ended, _shared = (None, _shared) if _users else (_shared, None)
    if ended is not None:
        ended.stop()


def _forget_after_fork() -> None:
    global _lock, _shared, _users
    # Another thread of the parent may have held the lock.
    _lock, _shared, _users = threading.Lock(), None, 0


os.register_at_fork(after_in_child=_forget_after_fork)
