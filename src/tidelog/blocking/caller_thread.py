"""The way between the thread that uses a consumer and the clients' loop, callbacks included.

Owns that the user's functions run in the thread that waits, inside its call. Not what runs on the
loop: see ``tidelog.aio.consumer``. Not the loop: see ``loop``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from tidelog.blocking.loop import ClientLoop
from tidelog.client.errors import WrongState

Result = TypeVar("Result")


class CallerThread:
    """The thread that uses one consumer: one at a time."""

    def __init__(self, loop: ClientLoop) -> None:
        self._loop = loop
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_calling, self._caller = False, -1

    async def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function of the user in the thread that waits; this runs on the loop."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._calls.put(partial(self._call, function, args, loop, ended))
        await ended

    def _call(
        self,
        function: Callable[..., Any],
        args: Collection[Any],
        loop: asyncio.AbstractEventLoop,
        ended: asyncio.Future[None],
    ) -> None:
        self._is_calling, self._caller = True, threading.get_ident()
        try:
            function(*args)
        except Exception as error:
            loop.call_soon_threadsafe(_end, ended, error)
        else:
            loop.call_soon_threadsafe(_end, ended, None)
        finally:
            self._is_calling = False

    def refuse_in_callback(self, what: str) -> None:
        """Raise WrongState in a callback: it would wait for callbacks, which run in this thread."""
        if self._is_calling and self._caller == threading.get_ident():
            raise WrongState(f"{what} was called in a callback: call it when poll has returned")

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop; its callbacks run here."""
        if self._is_calling:
            # A call within a callback has none itself.
            return self._loop.run(work)
        calls = self._calls = SimpleQueue()
        done = self._loop.start(work)
        done.add_done_callback(lambda _: calls.put(None))
        try:
            while (call := calls.get()) is not None:
                call()
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def do(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call a method that does not wait on the loop, where its state is."""

        async def done() -> Result:
            return function(*args, **kwargs)

        return self.wait(done())


def _end(ended: asyncio.Future[None], error: Exception | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
