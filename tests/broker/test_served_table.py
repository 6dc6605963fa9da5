"""One shell serves any table: a table of counters, with records and a topic of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.counter_table import TOPIC, Count, CounterDecision, Counters
from tests.support.lone_broker import LoneBroker, until
from tidelog.model.errors import ErrorCode as E
from tidelog.model.topics import TopicPartition


def run(
    tmp_path: Path, story: Callable[[Counters, LoneBroker], Awaitable[None]], **more: Any
) -> None:
    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        counters = Counters(lone, **more)
        try:
            await story(counters, lone)
        finally:
            await counters.coordinator.close()
            await lone.stop()

    asyncio.run(main())


def has_result(pending_response: Any) -> bool:
    return pending_response._result is not None


async def loaded(counters: Counters) -> None:
    await until(lambda: not counters.coordinator.is_loading)


def test_a_response_follows_the_commit_of_its_records(tmp_path: Path) -> None:
    async def story(counters: Counters, lone: LoneBroker) -> None:
        hosted = counters.lead(isr=(1, 2))
        await loaded(counters)
        one, reached, two = counters.add(3), counters.wait_for(5), counters.add(2)
        assert hosted.end_offset == 2
        assert not any(map(has_result, (one, reached, two)))
        hosted.follower_fetched(2, 1)
        assert await one.result() == Count(E.NONE, 3)
        assert not has_result(reached) and not has_result(two)
        hosted.follower_fetched(2, 2)
        assert await two.result() == await reached.result() == Count(E.NONE, 5)
        table = counters.table
        assert table.calls == ["loaded", *["decide"] * 3, "stored", "stored"]
        assert table.ahead_ms == pytest.approx(
            lone.broker.clock.wall_ms() - lone.broker.clock.monotonic_ms(), abs=5_000
        )
        assert not lone.broker.coordinator.led(), "the groups' coordinator serves its own topic"

    run(tmp_path, story)


def test_requests_are_refused_while_the_table_is_loading_and_where_it_is_not_led(
    tmp_path: Path,
) -> None:
    async def story(counters: Counters, lone: LoneBroker) -> None:
        assert await counters.add(1).result() == Count(E.COORDINATOR_LOAD_IN_PROGRESS)
        counters.lead(isr=(1, 2))
        assert counters.coordinator.is_loading
        assert await counters.add(1).result() == Count(E.COORDINATOR_LOAD_IN_PROGRESS)
        await loaded(counters)
        counters.add(1)
        counters.resign(1)
        assert await counters.add(1).result() == Count(E.NOT_COORDINATOR)
        # Its end is not committed: the next leadership does not serve it before it is.
        hosted = counters.lead(2, isr=(1, 2))
        await until(lambda: counters.table.calls == ["replay"])
        assert await counters.add(1).result() == Count(E.COORDINATOR_LOAD_IN_PROGRESS)
        hosted.follower_fetched(2, hosted.end_offset)
        await loaded(counters)
        assert counters.table.counts == {"c": 1}

    run(tmp_path, story)


def test_the_next_leadership_replays_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def story(counters: Counters, lone: LoneBroker) -> None:
        counters.lead()
        await loaded(counters)
        for key, amount in (("a", 1), ("b", 7), ("a", 2)):
            counters.add(amount, key)
        before = counters.table
        # A newer epoch of the same leadership keeps the table.
        counters.lead(1)
        assert counters.table is before
        counters.resign(2)
        counters.lead(3)
        await loaded(counters)
        assert counters.table is not before
        assert counters.table.calls == [*["replay"] * 3, "loaded"]
        assert counters.table.counts == {"a": 3, "b": 7}
        assert await counters.add(1, "a").result() == Count(E.NONE, 4)

    run(tmp_path, story)
    lines = [each.getMessage() for each in caplog.records]
    assert [line.partition(" in ")[0] for line in lines if "counter" in line] == [
        f"loaded 0 counters of 1 partitions of {TOPIC}",
        "counter a: restored at 3",
        "counter b: restored at 7",
        f"loaded 2 counters of 1 partitions of {TOPIC}",
    ]


def test_leadership_that_ends_unloads_the_table_and_refuses_all_requests(tmp_path: Path) -> None:
    async def story(counters: Counters, lone: LoneBroker) -> None:
        counters.lead(isr=(1, 2))
        await loaded(counters)
        in_flight, waiting, table = counters.add(1), counters.wait_for(9), counters.table
        counters.resign(1)
        assert await in_flight.result() == await waiting.result() == Count(E.NOT_COORDINATOR)
        assert table.calls[-1] == "unload" and not counters.coordinator.led()

    run(tmp_path, story)


def test_a_write_that_is_not_committed_in_time_counts_when_it_is_later(tmp_path: Path) -> None:
    async def story(counters: Counters, lone: LoneBroker) -> None:
        hosted = counters.lead(isr=(1, 2))
        await loaded(counters)
        late, waiting = counters.add(4), counters.wait_for(4)
        assert await late.result() == Count(E.REQUEST_TIMED_OUT)
        assert counters.table.counts == {} and not has_result(waiting)
        hosted.follower_fetched(2, 1)
        assert await waiting.result() == Count(E.NONE, 4)
        assert counters.table.calls[-2:] == ["delayed", "stored"]

    run(tmp_path, story, commit_timeout_ms=10)


def test_a_write_that_the_log_refuses_is_lost(tmp_path: Path) -> None:
    async def story(counters: Counters, lone: LoneBroker) -> None:
        hosted = counters.lead(isr=(1,), configs={"max.message.bytes": "200"})
        await loaded(counters)
        too_large = "c" * 300
        assert await counters.add(1, too_large).result() == Count(E.MESSAGE_TOO_LARGE)
        assert (hosted.end_offset, counters.table.calls[-1]) == (0, "lost")
        assert await counters.add(1).result() == Count(E.NONE, 1)

    run(tmp_path, story)


def test_a_deadline_of_the_table_is_decided_in_time(tmp_path: Path) -> None:
    async def story(counters: Counters, lone: LoneBroker) -> None:
        hosted = counters.lead()
        await loaded(counters)
        counters.add(1, "stays", lapses_after_ms=3_600_000)
        counters.add(2, "lapses", lapses_after_ms=1)
        await until(lambda: set(counters.table.counts) == {"stays"})
        assert hosted.end_offset == 3 and "due" in counters.table.calls

    run(tmp_path, story)


def test_a_load_that_fails_ends_the_service_until_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(counters: Counters, lone: LoneBroker) -> None:
        counters.lead()
        await loaded(counters)
        counters.add(5)
        counters.resign(1)
        with monkeypatch.context() as broken:
            broken.setattr("tests.support.counter_table.CounterTable._apply", lambda *_: 1 // 0)
            hosted = counters.lead(2)
            await loaded(counters)
        assert await counters.add(1).result() == Count(E.COORDINATOR_NOT_AVAILABLE)
        assert await counters.coordinator.reloaded(hosted) is None
        assert await counters.add(1).result() == Count(E.NONE, 6)

    run(tmp_path, story)
    said = [each.getMessage() for each in caplog.records if each.exc_info is not None]
    assert said == [f"counters of {TopicPartition(TOPIC, 0)} cannot be loaded"]


def test_the_own_part_of_a_coordinator_orders_events_and_surrounds_the_load(tmp_path: Path) -> None:
    """As that of the groups does: it waits for metadata, and decides large requests in parts."""

    class Held:
        def __init__(self, shell: Any) -> None:
            self.shell = shell
            self.later: list[tuple[str, Any]] = []
            self.is_ready = asyncio.Event()
            self.served_after: list[E] = []
            self.carried_out: list[Any] = []
            self.closed = 0

        def carry_out(self, effect: Any) -> None:
            self.carried_out.append(effect)

        def close(self) -> None:
            self.closed += 1

        def decide(self, key: str, event: Any) -> None:
            self.later.append((key, event))

        async def before_loaded(self) -> None:
            await self.is_ready.wait()

        async def after_loaded(self) -> None:
            self.served_after.append(self.shell.error)

    async def story(counters: Counters, lone: LoneBroker) -> None:
        counters.lead()
        (led,) = counters.coordinator.led()
        own: Any = led.own_part
        assert own.shell is led
        assert await counters.add(1).result() == Count(E.COORDINATOR_LOAD_IN_PROGRESS)
        own.is_ready.set()
        await loaded(counters)
        assert own.served_after == [E.NONE]
        later = counters.add(2)
        assert not has_result(later)
        own.shell.decide_now(*own.later.pop())
        assert await later.result() == Count(E.NONE, 2)
        own.shell.perform(CounterDecision(("an effect of its own",)))  # type: ignore[arg-type]
        assert (own.carried_out, own.closed) == (["an effect of its own"], 0)
        counters.resign(1)
        assert own.closed == 1

    run(tmp_path, story, own_part=Held)


def test_the_topic_is_created_as_its_coordinator_wants_it(tmp_path: Path) -> None:
    async def story(counters: Counters, lone: LoneBroker) -> None:
        asked = []

        async def ensure(*topic: Any) -> E:
            asked.append(topic)
            return E.NONE

        lone.broker.topic_creation.ensure = ensure  # type: ignore[method-assign]
        assert counters.coordinator.partition_of("c") is None
        assert await counters.coordinator.ensure_topic() is E.NONE
        assert asked == [(TOPIC, 1, 1, {"cleanup.policy": "compact"}, "")]
        lone.lead(TOPIC, 3)
        found = [counters.coordinator.partition_of(key) for key in ("c", "cc", "ccc")]
        assert found == [1, 2, 0]

    run(tmp_path, story)
