"""The watchdog of a server's event loop: how long it was blocked, and by which callback.

Owns a beat on the loop (a timer whose lateness is the stall) and a thread that samples the stack of
the loop's thread while a beat is late. Time in which the thread waited for a processor is not the
code's fault and is subtracted (`/proc/thread-self/schedstat`, Linux). A beat costs microseconds, so
the watchdog always runs. A server's own process starts it; the simulation, whose time is virtual,
has none.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
import os
import sys
import threading
import time
from types import FrameType

logger = logging.getLogger(__name__)

BEAT_S = 0.04
"""Interval of beats; a measured stall is at most this much too short."""

CHECK_S = 0.08
"""How often the thread checks for a late beat; a stall twice as long always has a callback."""

SAID_S = 0.1
"""Shortest stall that is logged: the bound that one request must keep."""

LINE_EVERY_S = 5.0
"""At most one line in this time; the next one counts the stalls without a line."""

MOST_NAMES = 3
"""Callbacks that one line names."""

STOOD_STILL = 0.1
"""A stall without samples, of which the loop worked for a smaller part, has no callback to
blame."""

WHOLE_PROCESS = "no callback: the process stood still (SIGSTOP, a frozen machine)"

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram. A delay below half of the first is not counted as a stall."""

_RUN_QUEUE = "/proc/thread-self/schedstat"
_LOOPS_OWN = (
    "/asyncio/runners.py",
    "/asyncio/events.py",
    "/asyncio/base_events.py",
    "/selectors.py",
)


class Stalls:
    """What was measured since the start, in seconds; one thread writes, others may read."""

    __slots__ = ("counts", "longest_s", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """How many stalls were at most ``BOUNDS_S[i]`` and above the bound before it."""
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one stall, if it is long enough to be one."""
        if seconds < BOUNDS_S[0] / 2:
            return
        self.counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)


class LoopWatch:
    """Watches the running loop from ``start`` to ``stop``, both called on it."""

    def __init__(self, beat_s: float = BEAT_S) -> None:
        """``beat_s`` is the precision: tests that measure use a finer one."""
        self.stalls = Stalls()
        self._beat_s = beat_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._loops_thread = 0
        self._run_queue: int | None = None
        self._queued_s = 0.0
        self._beaten_at = 0.0
        self._worked_s = 0.0
        self._seen: dict[str, None] = {}
        self._ended = threading.Event()
        self._next_line_at = 0.0
        self._left_out = 0

    def start(self) -> None:
        """Begin; needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._loops_thread = threading.get_ident()
        with contextlib.suppress(OSError):
            self._run_queue = os.open(_RUN_QUEUE, os.O_RDONLY | os.O_CLOEXEC)
        self._queued_s, self._worked_s = self._queued(), time.thread_time()
        self._beaten_at = time.monotonic()
        self._timer = self._loop.call_later(self._beat_s, self._beat)
        self._thread = threading.Thread(target=self._check, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._run_queue is not None:
            os.close(self._run_queue)
            self._run_queue = None

    def _beat(self) -> None:
        assert self._loop is not None
        now, queued_s = time.monotonic(), self._queued()
        late_s = now - self._beaten_at - self._beat_s - (queued_s - self._queued_s)
        self.stalls.add(late_s)
        if late_s >= SAID_S:
            self._say(late_s, now)
        self._seen.clear()
        self._queued_s, self._worked_s = queued_s, time.thread_time()
        # Read again: the time of the log line must not count as the next stall.
        self._beaten_at = time.monotonic()
        self._timer = self._loop.call_later(self._beat_s, self._beat)

    def _say(self, late_s: float, now: float) -> None:
        if now < self._next_line_at:
            self._left_out += 1
            return
        names = " and ".join(list(self._seen))
        if not names:
            # The watchdog's thread was stopped together with the loop and took no sample.
            stood_still = time.thread_time() - self._worked_s < late_s * STOOD_STILL
            names = WHOLE_PROCESS if stood_still else "a callback that was not caught"
        more = f" ({self._left_out} more since the last line)" if self._left_out else ""
        logger.warning(
            "the event loop was blocked for %(blocked_ms)d ms by %(callback)s%(more)s",
            {"blocked_ms": int(late_s * 1000), "callback": names, "more": more},
        )
        self._next_line_at = now + LINE_EVERY_S
        self._left_out = 0

    def _queued(self) -> float:
        """Return how long this thread has waited for a processor since it began; 0.0 if unknown."""
        if self._run_queue is None:
            return 0.0
        try:
            return int(os.pread(self._run_queue, 96, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def _check(self) -> None:
        """Note what the loop's thread does while a beat is late. Runs in the watchdog's thread."""
        checked_s, used_s = time.monotonic(), time.process_time()
        while not self._ended.wait(CHECK_S):
            slept_s, worked_s = time.monotonic() - checked_s, time.process_time() - used_s
            checked_s, used_s = checked_s + slept_s, used_s + worked_s
            if slept_s > 2 * CHECK_S and worked_s < slept_s * STOOD_STILL:
                # The whole process stood still, and this thread woke before the loop's did.
                continue
            if time.monotonic() - self._beaten_at < self._beat_s + CHECK_S / 2:
                continue
            frame = sys._current_frames().get(self._loops_thread)
            name = callback_of(frame)
            del frame
            if name is not None and len(self._seen) < MOST_NAMES:
                self._seen[name] = None


def callback_of(frame: FrameType | None) -> str | None:
    """Return the callback that a thread's innermost frame belongs to, and where in it the thread
    stands; None when the loop runs none. O(depth)."""
    if frame is None:
        return None
    outer = frame
    while outer.f_back is not None and not outer.f_back.f_code.co_filename.endswith(_LOOPS_OWN):
        outer = outer.f_back
    if outer.f_back is None or outer.f_code.co_filename.endswith(_LOOPS_OWN):
        return None
    callback = _name(outer)
    return callback if outer is frame else f"{callback}, in {_name(frame)}:{frame.f_lineno}"


def _name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"
