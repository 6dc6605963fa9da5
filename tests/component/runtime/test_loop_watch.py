"""The watchdog of the loop: what it measures, what it names, what it leaves out."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.own_stalls import Waits
from tests.support.processes import DEADLINE_S, wait_until
from tidelog.observe.loop_stalls import LoopStallCollector
from tidelog.runtime import loop_watch
from tidelog.runtime.loop import new_event_loop
from tidelog.runtime.loop_watch import BOUNDS_S, WHOLE_PROCESS, LoopWatch, Stalls, callback_of

STALL_S = 0.3


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Each kind of loop."""
    return request.param


def burn(seconds: float) -> None:
    """Hold the loop's thread by work of its own, and longer for each time that another thread, as
    the watchdog's, waited for a processor meanwhile."""
    others = Waits()
    while seconds > 0:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        seconds = others.since_before_s()


def holds_the_loop() -> None:
    """The callback that a line must name."""
    burn(STALL_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, the loop free meanwhile."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0024, None), (0.0025, 0), (0.005, 0), (0.0051, 1), (0.1, 4), (0.11, 5), (60.0, 11)],
)
def test_a_stall_is_counted_in_its_bucket(seconds: float, bucket: int | None) -> None:
    stalls = Stalls()
    stalls.add(seconds)
    assert stalls.counts == [int(each == bucket) for each in range(len(BOUNDS_S) + 1)]
    assert stalls.longest_s == stalls.total_s == (0.0 if bucket is None else seconds)


def test_the_metric_is_a_histogram_of_sums() -> None:
    stalls = Stalls()
    for seconds in (0.004, 0.004, 0.2, 99.0):
        stalls.add(seconds)
    (metric,) = LoopStallCollector(stalls).collect()
    found = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in metric.samples
        if sample.labels.get("le") in (None, "0.005", "0.1", "0.25", "10.0", "+Inf")
    }
    name = "tidelog_loop_stall_seconds"
    assert found == {
        (f"{name}_bucket", "0.005"): 2,
        (f"{name}_bucket", "0.1"): 2,
        (f"{name}_bucket", "0.25"): 3,
        (f"{name}_bucket", "10.0"): 3,
        (f"{name}_bucket", "+Inf"): 4,
        (f"{name}_count", None): 4,
        (f"{name}_sum", None): pytest.approx(99.208),
    }


def test_a_blocked_loop_is_measured_and_its_callback_named(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    watch = LoopWatch()

    async def main() -> None:
        watch.start()
        asyncio.get_running_loop().call_soon(holds_the_loop)
        await until(lambda: watch.stalls.longest_s > 0.0)
        watch.stop()

    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert watch.stalls.longest_s >= STALL_S - loop_watch.BEAT_S - 0.02
    (line,) = [each.getMessage() for each in caplog.records if "blocked" in each.message]
    assert f"{__name__}.holds_the_loop, in {__name__}.burn:" in line


def test_a_task_is_named_by_its_coroutine(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()

    async def greedy() -> None:
        burn(STALL_S)

    async def main() -> None:
        watch.start()
        await asyncio.get_running_loop().create_task(greedy())
        await until(lambda: watch.stalls.longest_s > 0.0)
        watch.stop()

    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
    assert any(
        "main.<locals>.greedy" in each.getMessage() or ".greedy, in" in each.getMessage()
        for each in caplog.records
    )


def test_lines_have_a_limit_and_say_how_many_were_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = LoopWatch()
    with caplog.at_level(logging.WARNING):
        for at in (10.0, 11.0, 12.0, 10.0 + loop_watch.LINE_EVERY_S):
            watch._say(0.2, at)
    assert len(caplog.records) == 2
    assert caplog.records[1].getMessage().endswith("(2 more since the last line)")


def test_waiting_for_a_processor_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says how long the thread waited in its run queue: that time is taken off."""
    watch = LoopWatch()
    told, more = watch._queued, [0.0]
    monkeypatch.setattr(watch, "_queued", lambda: told() + more[0])

    def burns() -> None:
        began = time.monotonic()
        burn(STALL_S)
        more[0] = time.monotonic() - began

    async def main() -> None:
        watch.start()
        started = watch._beaten_at
        await until(lambda: watch._beaten_at > started)
        # On a busy machine the watchdog's thread may take long to begin: that is not asked here.
        watch.stalls, beaten = Stalls(), watch._beaten_at
        asyncio.get_running_loop().call_soon(burns)
        await until(lambda: watch._beaten_at > beaten)
        watch.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
    assert watch.stalls.longest_s < STALL_S / 2


def test_an_idle_loop_has_no_callback(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A thread that waits in its loop is not to blame."""
    ended = threading.Event()

    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, ended.wait, DEADLINE_S)

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    name: str | None = "not looked at"
    deadline = time.monotonic() + DEADLINE_S
    while name is not None and time.monotonic() < deadline:
        frame = sys._current_frames().get(thread.ident or 0)
        # Before the loop runs there is a callback without an owner, too: wait for its first turns.
        name = callback_of(frame)
    ended.set()
    thread.join(DEADLINE_S)
    assert name is None


def test_a_watch_that_was_stopped_leaves_no_thread() -> None:
    async def main() -> None:
        watch = LoopWatch()
        watch.start()
        watch.stop()
        watch.stop()

    before = set(threading.enumerate())
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
    assert set(threading.enumerate()) <= before, "threads of other tests may have ended meanwhile"


STOPPED_SCRIPT = """
import asyncio, logging, sys
from tidelog.runtime.loop_watch import LoopWatch

async def work():
    watch = LoopWatch()
    watch.start()
    print("up", flush=True)
    while not watch.stalls.longest_s > 0.25:
        await asyncio.sleep(0.01)
    watch.stop()

logging.basicConfig(stream=sys.stdout, format="%(message)s")
asyncio.run(work())
"""


def test_a_process_that_was_stopped_blames_no_callback() -> None:
    """SIGSTOP, as of a frozen machine: the watchdog's thread stood still, too."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_SCRIPT], stdout=subprocess.PIPE, text=True
    ) as stopped:
        try:
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == "up\n"
            stopped.send_signal(signal.SIGSTOP)
            until_s = time.monotonic() + 2 * STALL_S
            wait_until(lambda: time.monotonic() > until_s, DEADLINE_S, "it stood still for long")
            stopped.send_signal(signal.SIGCONT)
            said, _ = stopped.communicate(timeout=DEADLINE_S)
        finally:
            stopped.kill()
    assert WHOLE_PROCESS in said, said
