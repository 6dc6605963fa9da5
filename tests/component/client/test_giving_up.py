"""When a request is given up, and that one that is answered in time costs nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.network_server import until
from tests.support.stories import story
from tidelog.client.connecting.giving_up import MOST_PAUSE_S, pause_s, unless_taken_over
from tidelog.client.errors import ConnectionLost, RequestTimedOut, TakenOver

SOON_S = 0.001
LATER_S = 3600.0


class Looks:
    """Looks for another broker: what each finds in turn, the last one for ever."""

    def __init__(self, *found: str | ConnectionLost) -> None:
        self.found = list(found)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        found = self.found[min(self.count, len(self.found)) - 1]
        if isinstance(found, ConnectionLost):
            raise found
        return found


def test_looks_are_even_at_first_and_then_rarer_within_a_bound() -> None:
    pauses = [pause_s(looks) for looks in range(1, 12)]
    assert pauses[:4] == [0.5] * 4
    assert pauses == sorted(pauses) and pauses[-1] == MOST_PAUSE_S
    assert {pause_s(looks, 4.5) for looks in range(1, 60)} == {4.5}


def test_a_response_in_time_is_returned_without_a_look_or_a_task() -> None:
    async def of() -> None:
        looks, tasks = Looks("another leads"), len(asyncio.all_tasks())

        async def work() -> int:
            assert len(asyncio.all_tasks()) == tasks
            return 7

        for _ in range(100):
            assert await unless_taken_over(work(), looks, after_s=SOON_S) == 7
        timers = [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        assert len(timers) <= 1, "the deadline of the story"
        assert looks.count == 0

    story(of)


def test_a_request_is_given_up_when_a_look_finds_another_broker() -> None:
    async def of() -> None:
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        looks = Looks("", ConnectionLost("no broker"), "broker 2 leads t-0")
        with pytest.raises(TakenOver, match="broker 2 leads t-0"):
            await unless_taken_over(work(), looks, after_s=SOON_S, first_pause_s=SOON_S)
        assert looks.count == 3 and ended.is_set()

    story(of)


def test_a_late_response_is_returned_and_ends_the_looks() -> None:
    async def of() -> None:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        looks = Looks("")
        waiting = asyncio.ensure_future(
            unless_taken_over(answer, looks, after_s=SOON_S, first_pause_s=SOON_S)
        )
        await until(lambda: looks.count > 2)
        answer.set_result(7)
        assert await waiting == 7
        assert len(asyncio.all_tasks()) == 1

    story(of)


def test_an_error_and_a_cancellation_stay_what_they_are() -> None:
    async def of() -> None:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer.set_exception(RequestTimedOut("h:1 did not respond"))
        with pytest.raises(RequestTimedOut):
            await unless_taken_over(answer, Looks(""), after_s=LATER_S)
        waiting = asyncio.ensure_future(
            unless_taken_over(asyncio.Event().wait(), Looks(""), after_s=LATER_S)
        )
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    story(of)
