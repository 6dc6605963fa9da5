"""The clock by which promises are measured: it stops for a process that has no processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.own_time import (
    OwnTime,
    Starvation,
    WaitedAt,
    run_queue_s,
    thread_paths,
    until_in_time,
)
from tests.support.processes import DEADLINE_S, wait_until

BUSY = "import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
IDLE = "import sys; sys.stdin.read()"
ENOUGH_S = 0.3


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def run(stack: ExitStack, code: str) -> int:
    """Start a process that ends with the test; its id."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    stack.callback(process.communicate)
    stack.callback(process.kill)
    return process.pid


def two_on_one_core(stack: ExitStack) -> list[int]:
    """Two processes that compute and have one core between them."""
    core = min(os.sched_getaffinity(0))
    return [run(stack, BUSY.format(core=core)) for _ in range(2)]


def waited_s(pids: list[int]) -> float:
    return sum(run_queue_s(path) for pid in pids for path in thread_paths(pid))


def test_what_two_on_one_core_wait_for_it_is_taken_off(stack: ExitStack) -> None:
    pids = two_on_one_core(stack)
    own, before_s = OwnTime(lambda: pids), waited_s(pids)
    wait_until(
        lambda: waited_s(pids) > before_s + ENOUGH_S, DEADLINE_S, "they wait for each other", 0.01
    )
    # It began a moment before the sum was taken.
    assert own.waited_s() > ENOUGH_S
    assert "without a processor" in own.said()


def test_a_sleeping_process_waits_for_no_processor(stack: ExitStack) -> None:
    pid = run(stack, IDLE)
    own = OwnTime(lambda: [pid])
    begun_s = own.seconds()
    wait_until(lambda: own.seconds() > begun_s + ENOUGH_S, DEADLINE_S, "its time goes on", 0.01)


def test_what_a_process_waited_counts_when_it_has_ended(stack: ExitStack) -> None:
    pids = two_on_one_core(stack)
    running = list(pids)
    own = OwnTime(lambda: running)
    wait_until(lambda: own.waited_s() > ENOUGH_S, DEADLINE_S, "they wait for each other", 0.01)
    running.clear()
    assert own.waited_s() > ENOUGH_S


def test_two_processes_on_one_core_are_starved_for_a_part_of_each_window(
    stack: ExitStack,
) -> None:
    pids = two_on_one_core(stack)
    with Starvation(lambda: pids, 2.0) as starvation:
        wait_until(lambda: starvation.longest_s > ENOUGH_S, DEADLINE_S, "one of them waits", 0.01)


def test_a_span_is_judged_without_what_was_waited_within_it(stack: ExitStack) -> None:
    begun_s = time.monotonic()
    with WaitedAt(list) as idle:
        wait_until(lambda: time.monotonic() > begun_s + ENOUGH_S, DEADLINE_S, "time goes on", 0.01)
        idle_s = time.monotonic()
    pids = two_on_one_core(stack)
    with WaitedAt(lambda: pids) as waited:
        before_s, begun_at_s = waited_s(pids), time.monotonic()
        wait_until(lambda: waited_s(pids) > before_s + ENOUGH_S, DEADLINE_S, "they wait", 0.01)
        # Two that wait at once are known to have waited longer than the span is.
        wait_until(
            lambda: time.monotonic() > begun_at_s + ENOUGH_S, DEADLINE_S, "time goes on", 0.01
        )
    ended_s = time.monotonic()
    # The looks at both ends may miss a little of what they waited.
    assert waited.own_s(begun_at_s, ended_s) < ended_s - begun_at_s - ENOUGH_S / 2
    assert waited.own_s(begun_s, idle_s) == idle_s - begun_s, "what is waited later is not its own"
    assert waited.own_s(ended_s, ended_s + 1) == pytest.approx(1)
    assert 0 < idle.own_s(begun_s, idle_s) <= idle_s - begun_s


def test_a_promise_that_is_kept_too_late_is_broken() -> None:
    begun: list[OwnTime] = []

    def is_over() -> bool:
        if not begun:
            begun.append(OwnTime(list))
        return begun[0].seconds() > ENOUGH_S

    with pytest.raises(AssertionError, match=r"promised within 0\.1 s, it took .*: all is well"):
        until_in_time(is_over, 0.1, list, lambda: "all is well", 0.01)
    assert until_in_time(lambda: True, DEADLINE_S, list, "nothing") < DEADLINE_S
