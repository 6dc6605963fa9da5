"""A clock for promises in seconds: it stands still while what is measured has no processor.

Owns the measure: how long the servers' threads, and this process, were ready to run and did not
(the second field of `/proc/PID/task/TID/schedstat`), and the time that a host takes from a virtual
machine (`/proc/stat`). So a test distinguishes a busy machine from a slow server. Not the limits:
see the tests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

from tests.support.processes import CLOCK_TICKS_PER_S, DEADLINE_S, wait_until

Pids = Callable[[], Collection[int]]
"""The servers' processes that run now: they may be killed and started meanwhile."""

NS_PER_S = 1e9
STOLEN = 8
"""The word of the line `cpu` that counts stolen ticks, of all processors together."""


class OwnTime:
    """The seconds since it was made, less those that were waited for a processor.

    The waits of all threads of the servers are taken off, though some may have waited at the same
    time: what they do one after another is what a promise is about. Of this process the thread that
    waited longest counts. On idle cores it is the time on the wall.
    """

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self._begun_s = time.monotonic()
        self._waited: dict[str, float] = {}
        self.look()
        self._waited_before = dict(self._waited)
        self._stolen_before_s = stolen_s()

    def wall_s(self) -> float:
        """How long it is ago that it was made."""
        return time.monotonic() - self._begun_s

    def seconds(self) -> float:
        """How long the servers and this process have had."""
        return max(0.0, self.wall_s() - self.waited_s())

    def waited_s(self) -> float:
        """How long they had no processor."""
        self.look()
        servers_s = own_s = 0.0
        for path, waited_s in self._waited.items():
            more_s = waited_s - self._waited_before.get(path, 0.0)
            if path.startswith("/proc/self/"):
                own_s = max(own_s, more_s)
            else:
                servers_s += more_s
        return servers_s + own_s + stolen_s() - self._stolen_before_s

    def said(self) -> str:
        """One line for a failure."""
        return f"{self.wall_s():.2f} s, {self.waited_s():.2f} s without a processor"

    def look(self) -> None:
        """Note what each has waited: of what ends later, this is what counts."""
        for pid in ("self", *self._pids()):
            for path in thread_paths(pid):
                self._waited[path] = max(self._waited.get(path, 0.0), run_queue_s(path))


class Starvation:
    """How long one of some processes, or this one, had no processor within any `window_s`.

    Used as a context, a thread looks as long as the block lasts.
    """

    CHECK_S = 0.1

    def __init__(self, pids: Pids, window_s: float) -> None:
        self.longest_s = 0.0
        """Of the thread that waited longest: one that is ready to run as good as never."""
        self._pids = pids
        self._window_s = window_s
        self._looks: deque[tuple[float, dict[str, float]]] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="starvation", daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(self.CHECK_S):
            self.look()

    def look(self) -> None:
        """Hold what each has waited against the beginning of the window."""
        now_s = time.monotonic()
        paths = [path for pid in ("self", *self._pids()) for path in thread_paths(pid)]
        self._looks.append((now_s, {path: run_queue_s(path) for path in paths}))
        while self._looks[0][0] < now_s - self._window_s:
            self._looks.popleft()
        before = self._looks[0][1]
        for path, waited_s in self._looks[-1][1].items():
            self.longest_s = max(self.longest_s, waited_s - before.get(path, waited_s))

    def __enter__(self) -> Starvation:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        self.look()


class WaitedAt:
    """What some processes, and this one, had waited at many moments: spans between two of them are
    judged afterwards.

    Used as a context, a thread looks as long as the block lasts. Each look costs what `OwnTime`'s
    does; a span is found by bisection.
    """

    CHECK_S = 0.05

    def __init__(self, pids: Pids) -> None:
        self._own = OwnTime(pids)
        self._at_s: list[float] = []
        self._waited_s: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waited-at", daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(self.CHECK_S):
            self.look()

    def look(self) -> None:
        """Note what has been waited until now."""
        self._at_s.append(time.monotonic())
        self._waited_s.append(self._own.waited_s())

    def own_s(self, begin_s: float, end_s: float) -> float:
        """How long a span on the monotonic clock was without the waits that were seen in it.

        What was waited before its first look or after its last one counts as its own.
        """
        first = bisect_left(self._at_s, begin_s)
        last = bisect_right(self._at_s, end_s) - 1
        waited_s = self._waited_s[last] - self._waited_s[first] if first < last else 0.0
        return max(0.0, end_s - begin_s - waited_s)

    def __enter__(self) -> WaitedAt:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        self.look()


def thread_paths(pid: int | str) -> list[str]:
    """What the threads of a process have waited is in these files; none when it has ended."""
    with contextlib.suppress(OSError):
        return [f"{path}/schedstat" for path in Path(f"/proc/{pid}/task").iterdir()]
    return []


def run_queue_s(path: str) -> float:
    """How long a thread has waited for a processor in its life; 0.0 for one that has ended."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(path).read_text().split()[1]) / NS_PER_S
    return 0.0


def stolen_s() -> float:
    """How much of each processor's time the host has given to others, on average."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        lines = Path("/proc/stat").read_text().splitlines()
        processors = sum(line.startswith("cpu") for line in lines) - 1
        return int(lines[0].split()[STOLEN]) / CLOCK_TICKS_PER_S / max(1, processors)
    return 0.0


def until_in_time(
    condition: Callable[[], object],
    promised_s: float,
    pids: Pids,
    what: str | Callable[[], str],
    pause_s: float = 0.05,
) -> float:
    """Wait for `condition`, and return how long it took on the wall; AssertionError when it took
    longer than promised by its own time, or it does not come at all."""
    own = OwnTime(pids)

    def looked() -> object:
        own.look()
        return condition()

    wait_until(looked, promised_s + DEADLINE_S, what, pause_s)
    took_s, said = own.wall_s(), own.said()
    if own.seconds() > promised_s:
        event = what if isinstance(what, str) else what()
        raise AssertionError(f"promised within {promised_s} s, it took {said}: {event}")
    return took_s
