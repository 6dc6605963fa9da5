"""The event loop of the simulation: asyncio with virtual time, one thread and no I/O.

Owns the order in which callbacks run and the time they see. Does not own connections
(``network.py``), machines or processes (``world.py``).

Every callback belongs to the process in whose context it was scheduled. When that process is dead
the callback is dropped: its tasks stand still for ever, and not even their ``finally`` blocks run,
as after a real ``kill -9``. While it is paused (SIGSTOP) its callbacks are kept for it, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tests.simulation.kernel.faults import ProcessKilled
from tests.simulation.kernel.trace import Trace

STEP_SECONDS = 1e-6
"""Virtual time that one callback takes, so that a busy loop cannot stop the clock."""

START_SECONDS = 1_000.0
"""Monotonic time at which every run begins."""

MAX_STEPS = 20_000_000
"""Callbacks after which a run counts as one that never ends."""

MAX_CLOSES = 100
"""How often a coroutine is closed that waits again each time."""


class SimulationError(Exception):
    """The simulation itself cannot go on: a deadlock, or no end in sight."""


class Deadlock(SimulationError):
    """Nothing is scheduled any more, and what was waited for has not happened."""


class Owner(Protocol):
    """The owner of a callback: the simulated process, as far as the loop has to know it."""

    name: str
    alive: bool
    held: list[_Handle] | None
    """What came while it is paused; None while it runs."""


CURRENT: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("process", default=None)
"""The simulated process whose code is running; None is the test itself."""


class _Handle(asyncio.TimerHandle):
    __slots__ = ("owner",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        # What the classes above do in three calls and a stack trace; a run makes 100,000 of these.
        if context is None:
            context = contextvars.copy_context()
        self._when = when
        self._scheduled = False
        self._callback: Any = callback
        self._args: Any = args
        self._loop = loop
        self._cancelled = False
        self._source_traceback = None
        self._repr = None
        self._context = context
        self.owner = context.get(CURRENT)

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class SimulatedFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future whose hash is its serial number: a set of futures has the same order every time."""

    def __init__(self, serial: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._serial = serial

    def __hash__(self) -> int:
        return self._serial


class SimulatedTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose hash is its serial number."""

    def __init__(self, serial: int, coro: Any, **options: Any) -> None:
        self._serial = serial
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._serial


@dataclass(slots=True, eq=False)
class Job:
    """The work of a helper thread, and when its process got the result: in one count."""

    given_at: int
    told_at: int | None = None


class Failure(NamedTuple):
    """Something failed: in which job (None: on the loop), and when."""

    job: Job | None
    at: int


class SimulatedLoop(asyncio.BaseEventLoop):
    """An asyncio loop that a seed determines.

    ``executor_delay`` draws how long a call given to ``run_in_executor`` waits, twice: before it
    runs and before its result arrives. ``network`` is set by the world.
    """

    def __init__(self, rng: random.Random, *, max_steps: int = MAX_STEPS) -> None:
        super().__init__()
        self.set_debug(False)
        self.steps = 0
        self.max_steps = max_steps
        self.trace = Trace(self.time)
        self.network: Any = None
        self.executor_delay: Callable[[], float] = lambda: rng.uniform(10e-6, 400e-6)
        self.job: Job | None = None
        """What a helper thread does at this moment."""
        self._moment = 0
        self.unhandled: list[str] = []
        """Uncaught errors, as one line each; a test may assert that there are none."""
        self._rng = rng
        self._clock = START_SECONDS
        self._ready_queue: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._serial = 0
        self._tasks: dict[int, SimulatedTask] = {}
        self._ending = False
        self._kernel = contextvars.Context()
        self.set_exception_handler(_note_unhandled)

    # --- time and order -------------------------------------------------------------------

    def time(self) -> float:
        return self._clock

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        handle = _Handle(self._clock, callback, args, self, context)
        if self._ending:
            handle.cancel()
        else:
            self._ready_queue.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        return self.call_at(self._clock + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        handle = _Handle(when, callback, args, self, context)
        if self._ending:
            handle.cancel()
        else:
            heapq.heappush(self._timers, (when, self.next_serial(), handle))
        return handle

    def _run_once(self) -> None:
        if self._timers and self._timers[0][0] <= self._clock:
            self._collect_due()
        if not self._ready_queue:
            self._advance()
        handle = self._ready_queue.popleft()
        if handle._cancelled:
            return
        owner = handle.owner
        if owner is not None:
            if not owner.alive:
                return
            if owner.held is not None:
                owner.held.append(handle)
                return
        self.steps += 1
        if self.steps > self.max_steps:
            raise SimulationError(f"no end after {self.steps} steps")
        self._clock += STEP_SECONDS
        handle._run()

    def _collect_due(self) -> None:
        while self._timers and self._timers[0][0] <= self._clock:
            self._ready_queue.append(heapq.heappop(self._timers)[2])

    def _advance(self) -> None:
        while self._timers:
            when, _, handle = self._timers[0]
            if handle._cancelled or (handle.owner is not None and not handle.owner.alive):
                heapq.heappop(self._timers)
                continue
            self._clock = max(self._clock, when)
            self._collect_due()
            return
        waiting = [task.get_name() for task in self._tasks.values() if not task.done()]
        raise Deadlock(f"nothing is scheduled; waiting: {', '.join(waiting[:20]) or 'no task'}")

    def resume(self, held: list[_Handle]) -> None:
        """Run what was kept for a process while it was paused, in the order in which it came."""
        self._ready_queue.extend(held)

    # --- tasks and futures ----------------------------------------------------------------

    def create_future(self) -> SimulatedFuture:
        return SimulatedFuture(self.next_serial(), self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_options: Any,
    ) -> Any:
        serial = self.next_serial()
        if self._ending:
            coro.close()
            future = self.create_future()
            future.cancel()
            return future
        task = SimulatedTask(
            serial, coro, loop=self, name=name or f"task-{serial}", context=context
        )
        self._tasks[serial] = task
        task.add_done_callback(self._forget, context=self._kernel)
        return task

    def _forget(self, task: SimulatedTask) -> None:
        self._tasks.pop(task._serial, None)

    # --- threads and helper processes -----------------------------------------------------

    def _next_moment(self) -> int:
        self._moment += 1
        return self._moment

    def failure(self) -> Failure:
        """Return that something fails now, for later questions about which jobs could know it."""
        return Failure(self.job, self._next_moment())

    def is_in_flight(self, failure: Failure) -> bool:
        """Whether what is done now was begun before its process could know of a failure.

        The job that failed itself knew it at once.
        """
        knows_at = failure.at if failure.job is None else failure.job.told_at
        if self.job is failure.job:
            return False
        return knows_at is None or (self.job is not None and self.job.given_at < knows_at)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run ``func`` inline, later: as a whole, at one moment, in the caller's context."""
        future = self.create_future()
        context = contextvars.copy_context()
        job = Job(self._next_moment())

        def run() -> None:
            if future.cancelled() and self._rng.random() < 0.5:
                return
            self.job = job
            try:
                result, error = func(*args), None
            except ProcessKilled:
                raise
            except BaseException as caught:
                result, error = None, caught
            finally:
                self.job = None
            self.call_later(self.executor_delay(), deliver, result, error, context=context)

        def deliver(result: Any, error: BaseException | None) -> None:
            job.told_at = self._next_moment()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.executor_delay(), run, context=context)
        return future

    def set_default_executor(self, executor: Any) -> None:
        """Nothing: there are no threads."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing: there are no threads."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        """Nothing: no simulated process gets signals."""

    def remove_signal_handler(self, sig: int) -> bool:
        return False

    # --- the network ----------------------------------------------------------------------

    async def create_server(
        self, factory: Any, host: Any = None, port: Any = None, **kw: Any
    ) -> Any:
        return await self.network.create_server(factory, host, port, **kw)

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **kw: Any
    ) -> Any:
        return await self.network.create_connection(factory, host, port, **kw)

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> Any:
        return self.network.getaddrinfo(host, port)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> Any:
        return str(sockaddr[0]), str(sockaddr[1])

    # --- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """End every unfinished coroutine without any effect on the world, then close.

        Their ``finally`` blocks find this loop running: asyncio would make a real one for them,
        keep it for ever, and with it the whole world.
        """
        if self.is_closed():
            return
        self._ending = True
        asyncio._set_running_loop(self)
        try:
            for task in list(self._tasks.values()):
                task._log_destroy_pending = False
                _end(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()
        self._ready_queue.clear()
        self._timers.clear()
        super().close()


def _end(coroutine: Any) -> None:
    """Close a coroutine, also one that waits again in each of its ``finally`` blocks.

    Such a wait ends the first ``close`` with a RuntimeError. The innermost is closed first: an
    outer one would drop an inner one that waits again, and Python prints an error for each.
    """
    for _ in range(MAX_CLOSES):
        with contextlib.suppress(BaseException):
            _innermost(coroutine).close()
        if coroutine.cr_frame is None:
            return


def _innermost(coroutine: Any) -> Any:
    """Return what a chain of coroutines waits in: the last one that has begun and not ended."""
    found = coroutine
    while getattr(inner := found.cr_await, "cr_frame", None) is not None:
        found = inner
    return found


def _note_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, ProcessKilled):
        return
    assert isinstance(loop, SimulatedLoop)
    loop.unhandled.append(f"{context.get('message')}: {type(error).__name__} {error}")
