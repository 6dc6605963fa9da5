"""Subscriptions of the public consumer: each one replaces the one before it, and all of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.network_server import until
from tests.support.reading import CHECK_MS, A, B, Reading, both, view_of_all
from tests.support.stories import story
from tidelog.client.errors import ConfigurationRefused, WrongState
from tidelog.model.topics import TopicPartition


def test_topics_after_a_pattern_are_what_is_read() -> None:
    """The former pattern was looked at still, and took the new subscription back."""

    async def of() -> None:
        one = Reading(names=("aa", "ab", "b"))
        one.consumer.subscribe(pattern="a.*")
        await one.assigned(*both("aa"), *both("ab"))
        assert one.consumer.subscription() == {"aa", "ab"}
        looks = len(one.cluster.described_by)
        one.consumer.subscribe(["b"])
        await one.assigned(*both("b"))
        # Longer than until the next look at the topics of a pattern.
        begun = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - begun > 3 * CHECK_MS / 1000)
        await one.poll()
        assert one.consumer.subscription() == {"b"}
        await one.assigned(*both("b"))
        assert len(one.cluster.described_by) <= looks + 2
        await one.consumer.close()

    story(of)


def test_a_pattern_after_topics_and_after_another_pattern_is_what_is_read() -> None:
    """It was looked at only where there was no subscription before."""

    async def of() -> None:
        one = Reading("b", names=("aa", "ab", "b", "c"))
        await one.assigned(*both("b"))
        one.consumer.subscribe(pattern="a.*")
        await one.assigned(*both("aa"), *both("ab"))
        assert one.consumer.subscription() == {"aa", "ab"}
        one.consumer.subscribe(pattern="c")
        await one.assigned(*both("c"))
        one.cluster.described = view_of_all("aa", "c", "cc")
        begun = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - begun > 3 * CHECK_MS / 1000)
        await one.poll()
        assert one.consumer.subscription() == {"c"}
        await one.consumer.close()

    story(of)


def test_topics_of_a_pattern_that_come_later_are_read() -> None:
    async def of() -> None:
        one = Reading(names=("aa", "b", "__consumer_offsets"))
        one.consumer.subscribe(pattern=".*")
        await one.assigned(*both("aa"), *both("b"))
        one.cluster.described = view_of_all("aa", "ac")
        await one.assigned(*both("aa"), *both("ac"))
        watching = one.consumer._watching
        assert watching is not None and not watching.done()
        await one.consumer.close()
        await asyncio.wait([watching])
        assert one.consumer._watching is None

    story(of)


def test_a_pattern_that_matches_nothing_yet_reads_nothing() -> None:
    async def of() -> None:
        one = Reading(names=("b",))
        one.consumer.subscribe(pattern="a.*")
        assert await one.poll() == {} and one.consumer.subscription() == set()
        one.cluster.described = view_of_all("aa", "b")
        await one.assigned(*both("aa"))
        await one.consumer.close()

    story(of)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_the_topics_of_a_pattern_are_looked_up_once_and_count_only_while_it_holds(
    is_replaced: bool,
) -> None:
    async def of() -> None:
        one = Reading(names=("aa", "b"), metadata_max_age_ms=10**8)
        describe, may_end, looks = one.cluster.describe, asyncio.Event(), 0

        async def slow(names: Any, **other: Any) -> Any:
            nonlocal looks
            looks += names is None
            await may_end.wait()
            return await describe(names, **other)

        one.cluster.describe = slow  # type: ignore[method-assign]
        one.consumer.subscribe(pattern="a.*")
        asking = [asyncio.ensure_future(one.consumer.ready()) for _ in range(2)]
        await until(lambda: looks == 2)
        if is_replaced:
            one.consumer.subscribe(["b"])
        may_end.set()
        first, second = await asyncio.gather(*asking)
        assert first is second
        assert one.consumer.subscription() == ({"b"} if is_replaced else {"aa"})
        names = [str(task.get_coro()) for task in asyncio.all_tasks()]
        assert sum("_watch_pattern" in each for each in names) == (0 if is_replaced else 1)
        await one.consumer.close()

    story(of)


def test_internal_topics_are_read_where_that_is_wanted() -> None:
    async def of() -> None:
        one = Reading(names=("aa", "__consumer_offsets"), exclude_internal_topics=False)
        one.consumer.subscribe(pattern=".*")
        await one.assigned(*both("aa"), *both("__consumer_offsets"))
        await one.consumer.close()

    story(of)


def test_a_subscription_takes_either_topics_or_a_pattern_and_no_assignment_beside_it() -> None:
    async def of() -> None:
        one = Reading()
        for wrong in ({"topics": ["t"], "pattern": "t"}, {}):
            with pytest.raises(ConfigurationRefused, match="either topics or a pattern"):
                one.consumer.subscribe(**wrong)
        with pytest.raises(WrongState, match="has not subscribed"):
            await one.poll()
        one.consumer.assign([A])
        with pytest.raises(WrongState, match="unsubscribe first"):
            one.consumer.subscribe(["t"])
        one.consumer.unsubscribe()
        for subscription in ({"topics": ["t"]}, {"pattern": "t"}):
            one.consumer.subscribe(**subscription)  # type: ignore[arg-type]
            with pytest.raises(WrongState, match="unsubscribe first"):
                one.consumer.assign([A])
        with pytest.raises(TypeError, match="a listener needs on_partitions_revoked"):
            one.consumer.subscribe(["t"], listener=5)
        await one.consumer.close()
        for call in (lambda: one.consumer.subscribe(["t"]), lambda: one.consumer.assign([A])):
            with pytest.raises(WrongState, match="closed"):
                call()

    story(of)


def test_another_assignment_keeps_the_positions_of_what_stays() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        one.fetches.write(A, b"0", b"1")
        assert await one.read(2) == {A: [b"0", b"1"]}
        one.consumer.assign([A, B])
        one.fetches.write(B, b"x")
        one.fetches.write(A, b"2")
        assert await one.read(2) == {A: [b"2"], B: [b"x"]}
        await one.consumer.close()

    story(of)


class Listener:
    """Notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_partitions_revoked(self, _: Any) -> None:
        self.calls.append("revoked")

    def on_partitions_assigned(self, _: Any) -> None:
        self.calls.append("assigned")


def test_close_calls_back_once_and_leaves_nothing_open() -> None:
    async def of() -> None:
        one, closed = Reading(), 0

        async def close() -> None:
            nonlocal closed
            closed += 1

        one.cluster.close = close  # type: ignore[method-assign]
        listener = Listener()
        one.consumer.subscribe(["t"], listener=listener)
        await one.assigned(*both("t"))
        reader: Any = one.consumer._reader
        await one.consumer.close()
        assert reader._closed and reader.fetcher._closed and closed == 1
        await one.consumer.close()
        await one.consumer.stop()
        assert listener.calls == ["assigned", "revoked"] and closed == 1
        with pytest.raises(WrongState, match="closed"):
            await one.consumer.poll()

    story(of)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_close_leaves_a_former_subscription_as_well(is_replaced: bool) -> None:
    """Its listener may still ask where it is, and commit, but not poll."""

    async def of() -> None:
        one, found = Reading(names=("t", "u"), max_poll_records=1), []

        class Asking(Listener):
            async def on_partitions_revoked(self, _: Any) -> None:  # type: ignore[override]
                found.append((await one.consumer.position(A), await one.consumer.places()))
                with pytest.raises(WrongState, match="poll was called while it runs"):
                    await one.consumer.poll()

        one.consumer.subscribe(["t"], listener=Asking())
        one.fetches.write(A, b"0", b"1")
        assert await one.read(1) == {A: [b"0"]}
        reader: Any = one.consumer._reader
        if is_replaced:
            one.consumer.subscribe(["u"])
        await one.consumer.close()
        assert reader._closed and [at for at, _ in found] == [1]
        assert [places[A].offset for _, places in found] == [1]

    story(of)


def test_a_consumer_opens_and_closes_as_a_context_and_stops() -> None:
    async def of() -> None:
        one = Reading("t")
        async with one.consumer as entered:
            assert entered is one.consumer and entered.bootstrap_connected()
        other = Reading("t")
        await other.consumer.stop()
        for each in (one, other):
            with pytest.raises(WrongState, match="closed"):
                await each.poll()

    story(of)


def test_a_pattern_that_finds_what_is_read_already_changes_nothing() -> None:
    async def of() -> None:
        one, listener = Reading(), Listener()
        one.consumer.subscribe(["t"], listener=listener)
        await one.assigned(*both("t"))
        one.consumer.subscribe(pattern="t", listener=listener)
        await one.poll()
        assert one.consumer.subscription() == {"t"} and listener.calls == ["assigned"]
        assert one.consumer.metrics()["consumer-metrics"]["rebalance-total"] == 1
        await one.consumer.close()

    story(of)


def test_nothing_of_a_former_subscription_is_left() -> None:
    async def of() -> None:
        one = Reading(names=("t", "u"), max_poll_records=1)
        one.consumer.subscribe(pattern="t")
        await one.assigned(*both("t"))
        one.fetches.write(A, b"0", b"1")
        assert await one.read(1) == {A: [b"0"]}
        one.consumer.pause(B)
        assert not one.consumer.is_due()
        former, watching = one.consumer._reader, one.consumer._watching
        one.consumer.unsubscribe()
        assert one.consumer.is_due() and one.consumer.take_one() is None
        assert one.consumer.assignment() == set() == one.consumer.subscription()
        assert one.consumer.paused() == set() and one.consumer._queue.paused == set()
        assert watching is not None and one.consumer._watching is None
        one.consumer.subscribe(["u"])
        await one.assigned(*both("u"))
        assert watching.cancelled() and former is not None and former._closed
        one.fetches.write(TopicPartition("u", 0), b"x")
        assert await one.read(1) == {("u", 0): [b"x"]}, "and not what was at hand of t"
        await one.consumer.close()

    story(of)


def test_after_a_change_the_group_is_looked_at_before_records_at_hand_are_returned() -> None:
    async def of() -> None:
        one = Reading("t", names=("t", "u"), max_poll_records=1)
        one.fetches.write(A, b"0", b"1", b"2")
        assert await one.read(1) == {A: [b"0"]}
        assert not one.consumer.is_due()
        one.consumer.subscribe(["t", "u"])
        assert one.consumer.is_due() and one.consumer.take_one() is None
        await one.consumer.close()
        other = Reading(max_poll_records=1)
        other.consumer.assign([A])
        other.fetches.write(A, b"0", b"1", b"2")
        assert await other.read(1) == {A: [b"0"]}
        changes = (lambda: other.consumer.assign([A]), lambda: other.consumer.seek(A, 1))
        for change in changes:
            while other.consumer.is_due():
                await other.poll(1)
            change()
            assert other.consumer.is_due() and other.consumer.take_one() is None
        await other.consumer.close()

    story(of)


def test_a_partition_that_was_assigned_since_the_last_poll_is_read_from_where_it_is_sought() -> (
    None
):
    """It was refused as not assigned; Kafka's consumer takes it."""

    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        one.fetches.write(A, b"a0")
        one.fetches.write(B, *(b"b%d" % n for n in range(9)))
        assert await one.read(1) == {A: [b"a0"]}
        one.consumer.assign([B])
        one.consumer.seek(B, 7)
        with pytest.raises(WrongState, match="not assigned"):
            one.consumer.seek(A, 0)
        assert await one.read(2) == {B: [b"b7", b"b8"]}
        assert one.consumer.assignment() == {B}
        one.consumer.assign([A, B])
        one.consumer.seek(A, 0)
        one.consumer.assign([B])
        assert await one.poll() == {}
        assert one.consumer.assignment() == {B}
        await one.consumer.close()

    story(of)


def test_a_position_that_is_set_while_a_look_up_waits_for_metadata_is_read_from() -> None:
    """It was of the next assignment, and the look-up of the one before dropped it."""

    async def of() -> None:
        one = Reading()
        one.fetches.write(B, *(b"b%d" % n for n in range(9)))
        describe, may_end, looks = one.cluster.describe, asyncio.Event(), 0
        one.cluster.show()
        one.cluster.described = view_of_all("t")

        async def slow(names: Any, **other: Any) -> Any:
            nonlocal looks
            looks += 1
            await may_end.wait()
            return await describe(names, **other)

        one.cluster.describe = slow  # type: ignore[method-assign]
        one.consumer.assign([A])
        assert await one.poll() == {}
        await until(lambda: looks)
        one.consumer.assign([B])
        one.consumer.seek(B, 7)
        reader = await one.consumer.ready()
        may_end.set()
        await until(lambda: reader.generation.has_begun)
        assert await one.read(2) == {B: [b"b7", b"b8"]}
        one.consumer.assign([A])
        one.consumer.seek(A, 3)
        one.consumer.assign([B])
        assert await one.poll() == {}
        await until(lambda: reader.generation.has_begun)
        one.consumer.assign([A])
        one.fetches.write(A, b"a0")
        assert await one.read(1) == {A: [b"a0"]}, "what was set before [B] is over"
        await one.consumer.close()

    story(of)


def test_a_listener_is_called_until_its_subscription_ends() -> None:
    async def of() -> None:
        called: list[str] = []

        class Listener:
            def on_partitions_revoked(self, _: Any) -> None:
                called.append("revoked")

            def on_partitions_assigned(self, _: Any) -> None:
                called.append("assigned")

        one = Reading()
        one.consumer.subscribe(["t"], listener=Listener())
        await one.assigned(*both("t"))
        one.consumer.unsubscribe()
        one.consumer.assign([A])
        await one.assigned(A)
        assert called == ["assigned", "revoked"]
        await one.consumer.close()
        assert called == ["assigned", "revoked"]

    story(of)
