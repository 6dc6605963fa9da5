"""Long work in pieces: its order, its errors, its places, its end."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.every_yield import every_yield
from tidelog.model.work import Work, finish
from tidelog.runtime import pace
from tidelog.runtime.clock import RealClock


def work(done: list[str], *calls: Callable[[], None] | None) -> Work[str]:
    try:
        for call in calls:
            try:
                yield call
            except ValueError as error:
                done.append(f"caught {error}")
        return "result"
    finally:
        done.append("over")


def fails() -> None:
    raise ValueError("it")


def test_all_of_it_at_once() -> None:
    done: list[str] = []
    assert finish(work(done, None, lambda: done.append("a"), fails, None)) == "result"
    assert done == ["a", "caught it", "over"]


def test_calls_go_to_threads_and_errors_come_back() -> None:
    async def main() -> None:
        done: list[str] = []
        with ThreadPoolExecutor(1, "apart") as threads:
            background = pace.Background(RealClock(), threads)
            name = lambda: done.append(threading.current_thread().name)  # noqa: E731
            assert await background.run(work(done, name, None, fails)) == "result"
        assert done == ["apart_0", "caught it", "over"]

    asyncio.run(main())


def test_the_work_gets_what_a_call_returns() -> None:
    def doubled() -> Work[int]:
        first: int = yield lambda: 3
        assert (yield None) is None
        return first + (yield lambda: 2 * first)

    async def main() -> None:
        assert await pace.run(doubled(), RealClock()) == 9

    assert finish(doubled()) == 9
    asyncio.run(main())


def test_a_handlers_result_may_come_in_several_ways_one_after_another() -> None:
    async def later(result: object) -> object:
        return result

    def in_steps(result: object) -> Work[object]:
        yield None
        return result

    async def main() -> None:
        clock = RealClock()
        assert await pace.response("now", clock) == "now"
        result = in_steps(later(later(in_steps("then"))))
        assert await pace.response(result, clock) == "then"

    asyncio.run(main())


def test_work_without_a_task_is_done_in_turns_and_the_next_one_comes_in_between() -> None:
    done: list[str] = []

    def named(name: str, steps: int) -> Work[None]:
        for step in range(steps):
            done.append(f"{name}{step}")
            yield None
        if name == "b":
            raise ValueError("a bug")

    async def main() -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: errors.append(said))
        one_by_one = pace.OneByOne(RealClock())
        for name, steps in (("a", 3), ("b", 1), ("c", 2)):
            one_by_one.add(named(name, steps))
        assert not done and len(one_by_one) == 3
        while one_by_one:
            before = len(done)
            await asyncio.sleep(0)
            assert len(done) - before <= 1
        assert done == ["a0", "b0", "c0", "a1", "c1", "a2"] and len(errors) == 1
        one_by_one.add(named("d", 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done[-1] == "d0" and not one_by_one

    with every_yield():
        asyncio.run(main())


def test_an_error_that_the_work_does_not_catch_ends_it() -> None:
    async def main() -> None:
        done: list[str] = []
        background = pace.Background(RealClock(), None, places=1)

        def breaks() -> None:
            raise KeyError("unheard of")

        for _ in range(3):
            with pytest.raises(KeyError):
                await background.run(work(done, breaks))
        assert done == ["over"] * 3
        assert await background.run(work(done)) == "result", "its place is free"

    asyncio.run(main())


def test_at_most_as_many_run_at_once_as_there_are_places() -> None:
    async def main() -> None:
        background = pace.Background(RealClock(), None, places=2)
        working: list[int] = []
        most = 0

        def one(number: int) -> Work[None]:
            nonlocal most
            working.append(number)
            for _ in range(5):
                most = max(most, len(working))
                yield None
            working.remove(number)

        await asyncio.gather(*(background.run(one(number)) for number in range(9)))
        assert most == 2 and not working

    with every_yield():
        asyncio.run(main())


def test_cancelled_work_waits_for_the_call_that_a_thread_makes() -> None:
    async def main() -> None:
        done: list[str] = []
        begun, may_end = threading.Event(), threading.Event()

        def slow() -> None:
            begun.set()
            assert may_end.wait(60)
            done.append("call")

        background = pace.Background(RealClock(), None, places=1)
        task = asyncio.ensure_future(background.run(work(done, slow, lambda: done.append("never"))))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["call", "over"]
        assert await background.run(work(done)) == "result"

    asyncio.run(main())


def test_what_a_failed_call_held_is_free_at_once() -> None:
    """Batches that decompress to too much left 8 MB each to the collector, which seldom comes."""

    class Large:
        pass

    held: list[weakref.ref[Large]] = []

    def too_large() -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise ValueError("it")

    async def main() -> None:
        with ThreadPoolExecutor(1, "apart") as threads:
            background = pace.Background(RealClock(), threads)
            for _ in range(3):
                assert await background.run(work([], too_large, None)) == "result"
                # The thread's own reference goes when it waits again.
                await asyncio.get_running_loop().run_in_executor(threads, lambda: None)
            assert [each() for each in held] == [None] * 3

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


class Clock(RealClock):
    now = 0

    def monotonic_ms(self) -> int:
        return self.now


def test_work_gives_way_when_its_turn_is_over_and_not_before() -> None:
    clock = Clock()

    def long() -> Work[list[int]]:
        given_way = []
        for _ in range(3 * pace.BACKGROUND_MS):
            before = loops_turns
            clock.now += 1
            yield None
            given_way.append(loops_turns - before)
        return given_way

    async def count() -> None:
        nonlocal loops_turns
        while True:
            loops_turns += 1
            await asyncio.sleep(0)

    async def main() -> list[int]:
        counting = asyncio.create_task(count())
        try:
            await asyncio.sleep(0)
            return await pace.run(long(), clock)
        finally:
            counting.cancel()

    loops_turns = 0
    turn = [0] * (pace.BACKGROUND_MS - 1) + [1]
    assert asyncio.run(main()) == 3 * turn


def test_items_are_cut_into_parts() -> None:
    assert list(pace.parts([])) == []
    with every_yield(2):
        assert list(pace.parts("abcde")) == ["ab", "cd", "e"]
