"""The fetcher: what it requests of which leader, what it buffers, and what it returns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.fetch_answers import batch
from tests.support.fetching_reader import A, B, C, Fetching
from tests.support.network_server import until
from tests.support.stories import story
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.offsets import IsolationLevel
from tidelog.model.topics import TopicPartition
from tidelog.replication.resize_rules import Named


def test_one_fetch_is_in_flight_for_each_leader_with_all_its_partitions() -> None:
    async def of() -> None:
        one = Fetching([1, 2, 1], options=FetchOptions(partition_bytes=1_000))
        one.fetcher.assign({A: 5, B: 6, C: 7})
        await until(lambda: len(one.fetches.waiting) == 2)
        first, second = sorted(one.fetches.waiting, key=lambda each: each.node_id)
        assert first.offsets == {A: 5, C: 7} and second.offsets == {B: 6}
        part = first.named[A]
        assert (part.partition_max_bytes, part.current_leader_epoch) == (1_000, 3)
        one.fetcher.seek(A, 9)
        one.fetches.waiting.clear()
        assert await one.quiet(), "the leader has one request already"
        first.answer()
        assert (await one.asked()).offsets == {A: 9, C: 7}
        await one.fetcher.close()

    story(of)


def test_what_was_fetched_is_returned_once_and_the_next_fetch_goes_on_after_it() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 1})
        asked = await one.asked()
        asked.answer({A: batch(0, b"0", b"1", b"2")}, high=50)
        asked = await one.asked()
        assert asked.offsets == {A: 3}
        size = len(batch(0, b"0", b"1", b"2"))
        assert one.fetcher.buffered_bytes == one.state().buffered_bytes == size
        assert one.fetcher.position(A) == 1
        (piece,) = await one.fetcher.poll(0)
        assert (piece.offset, piece.next_offset, piece.high_watermark) == (1, 3, 50)
        assert [row.value for row in piece.rows()] == [b"1", b"2"]
        assert one.fetcher.positions() == {A: 3} and one.fetcher.buffered_bytes == 0
        assert one.fetcher.epoch_before(A, 3) == 3 and one.fetcher.epoch_before(A, 2) == -1
        assert await one.poll() == {}
        await one.fetcher.close()

    story(of)


def test_a_poll_that_waits_returns_when_something_comes_or_it_is_interrupted() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 0})
        asked = await one.asked()
        polling = asyncio.ensure_future(one.fetcher.poll(10**8))
        await one.quiet()
        assert not polling.done()
        asked.answer({A: batch(0, b"0")})
        assert one.values(await polling) == {A: [b"0"]}
        polling = asyncio.ensure_future(one.fetcher.poll(10**8))
        await one.quiet()
        one.fetcher.interrupt()
        assert await polling == []
        polling = asyncio.ensure_future(one.fetcher.poll(10**8))
        await one.quiet()
        assert not polling.done(), "one poll is interrupted, not the next one too"
        await one.fetcher.close()
        assert await polling == []

    story(of)


def test_answers_of_before_a_seek_or_an_assignment_are_dropped() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 0})
        asked = await one.asked()
        one.fetcher.seek(A, 40, 3)
        asked.answer({A: batch(0, b"0")})
        asked = await one.asked()
        assert asked.offsets == {A: 40} and await one.poll() == {}
        assert one.fetcher.epoch_before(A, 40) == 3
        one.fetcher.assign({A: 40})
        asked.answer({A: batch(40, b"40")})
        asked = await one.asked()
        assert asked.offsets == {A: 40} and one.fetcher.buffered_bytes == 0
        one.fetcher.remove([A, B])
        asked.answer({A: batch(40, b"40")})
        assert await one.quiet() and await one.poll() == {}
        assert one.fetcher.positions() == {} and one.fetcher.buffered_bytes == 0
        await one.fetcher.close()

    story(of)


def test_an_assignment_replaces_the_former_one_and_drops_what_was_fetched() -> None:
    async def of() -> None:
        one = Fetching([1, 2])
        one.fetcher.assign({A: 0})
        (await one.asked()).answer({A: batch(0, b"0")})
        await until(lambda: one.fetcher.buffered_bytes)
        one.fetcher.seek(A, 0)
        assert one.fetcher.buffered_bytes == 0
        one.fetcher.assign({B: 0})
        assert one.fetcher.positions() == {B: 0}
        assert not one.fetcher.finished(), "without a stop it never is"
        await one.fetcher.close()

    story(of)


def test_what_a_request_and_its_answer_say() -> None:
    async def of() -> None:
        options = FetchOptions(max_wait_ms=11, min_bytes=12, max_bytes=13)
        for isolation in IsolationLevel:
            one = Fetching([1, 1], options=options, isolation=isolation)
            one.fetcher.assign({A: 0, B: 0})
            asked = await one.asked()
            request = asked.request
            assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (11, 12, 13)
            assert (request.replica_id, request.isolation_level) == (-1, isolation)
            assert one.cluster.timeouts_ms[-1] == one.cluster.settings.request_timeout_ms + 11
            one.fetcher.remove([B])
            found = {A: batch(0, b"0")}
            asked.answer(found, high=50, stable=40, aborted=(3,), session_id=9)  # type: ignore[arg-type]
            asked = await one.asked()
            (forgotten,) = asked.request.forgotten_topics_data
            assert (forgotten.topic, forgotten.partitions) == ("t", [1])
            (piece,) = await one.fetcher.poll(0)
            is_committed = isolation is IsolationLevel.READ_COMMITTED
            assert piece.aborted == ([(7, 3)] if is_committed else None)
            assert (piece.high_watermark, piece.last_stable_offset) == (50, 40)
            asked.answer()
            one.fetches.waiting.clear()
            # Otherwise its end would be requested.
            one.fetcher._sessions.clear()
            await one.fetcher.close()

    story(of)


def test_all_that_was_fetched_of_a_partition_is_returned_by_one_poll() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.assign({A: 0})
        for offset in range(3):
            (await one.asked()).answer({A: batch(offset, b"%d" % offset)})
        await one.asked()
        assert await one.poll() == {A: [b"0", b"1", b"2"]}
        await one.fetcher.close()

    story(of)


def test_leaders_are_looked_for_once_at_a_time() -> None:
    async def of() -> None:
        one = Fetching([1, 1])
        lookups: list[TopicPartition] = []
        found, may_go = one.cluster.leader, asyncio.Event()

        async def leader(where: TopicPartition, least: int = -1) -> Any:
            lookups.append(where)
            await may_go.wait()
            return await found(where, least)

        one.cluster.leader = leader  # type: ignore[method-assign]
        one.fetcher.assign({A: 0})
        await until(lambda: lookups)
        one.fetcher.add({B: 0})
        one.fetcher._start()
        assert await one.quiet() and lookups == [A]
        may_go.set()
        await until(lambda: lookups == [A, B])
        await one.fetcher.close()

    story(of)


def test_a_seek_keeps_what_is_not_a_position() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.hold_at({A: 30})
        one.fetcher.add({A: 0}, {A: 2}, {A: Named(1, 1, 10)})
        assert one.fetcher.epoch_before(A, 0) == 2
        one.state().stop = 50
        one.fetcher.pause([A])
        one.fetcher.seek(A, 20)
        state = one.state()
        assert (state.stop, state.paused, state.gate) == (50, True, 30)
        assert state.named == Named(1, 1, 10)
        assert one.fetcher.epoch_before(A, 20) == -1
        await one.fetcher.close()

    story(of)


def test_further_partitions_leave_the_others_as_they_are() -> None:
    async def of() -> None:
        one = Fetching([1, 1, 2])
        one.fetcher.add({A: 0})
        await one.asked()
        before = one.state()
        one.fetcher.add({A: 99, B: 4})
        assert one.state() is before and one.fetcher.positions() == {A: 0, B: 4}
        one.fetches.waiting.clear()
        one.fetcher.add({C: 0}, named={C: Named(3, 1, 12)})
        (topic,) = (await one.asked()).request.topics
        assert (topic.undeleted_partition_count, topic.resize_epoch) == (3, 1)
        assert topic.partitions[0].partition_epoch == 12
        one.fetcher.restamp({A: Named(2, 5, 10)})
        assert one.fetcher.named()[A] == Named(2, 5, 10) != one.fetcher.named()[B]
        await one.fetcher.close()

    story(of)


def test_reading_ends_at_its_stops() -> None:
    async def of() -> None:
        one = Fetching([1, 1])
        one.fetcher.assign({A: 0, B: 0}, {A: 2, B: 3}, {A: 3})
        asked = await one.asked()
        assert not one.fetcher.finished()
        asked.answer({A: batch(0, b"0", b"1"), B: batch(0, b"x")})
        asked = await one.asked()
        assert asked.offsets == {B: 1}
        assert await one.poll() == {A: [b"0", b"1"], B: [b"x"]}
        assert not one.fetcher.finished()
        asked.answer({B: batch(1, b"y", b"z", b"-")})
        await until(lambda: one.fetcher.buffered_bytes)
        assert await one.quiet()
        assert await one.poll() == {B: [b"y", b"z", b"-"]}
        assert one.fetcher.finished()
        await one.fetcher.close()

    story(of)


def test_of_a_partition_two_answers_are_fetched_ahead() -> None:
    async def of() -> None:
        size = len(batch(0, b"x" * 100))
        one = Fetching([1], options=FetchOptions(partition_bytes=size))
        one.fetcher.assign({A: 0})
        for offset in range(2):
            (await one.asked()).answer({A: batch(offset, b"x" * 100)})
        await until(lambda: one.fetcher.buffered_bytes == 2 * size)
        assert await one.quiet()
        assert await one.poll(1) == {A: [b"x" * 100]}
        assert (await one.asked()).offsets == {A: 2}
        await one.fetcher.close()

    story(of)


def test_all_partitions_share_the_memory_and_gated_ones_half_of_it() -> None:
    async def of() -> None:
        size = len(batch(0, b"x" * 100))
        one = Fetching([1, 2], prefetch_bytes=2 * size)
        one.fetcher.hold_at({B: 0})
        one.fetcher.assign({A: 0})
        one.fetcher.add({B: 0})
        for _ in range(2):
            asked = await one.asked()
            (where,) = asked.named
            asked.answer({where: batch(0, b"x" * 100)})
        assert not await one.quiet(), (
            "B has its half, A may have all, as if nothing of B were there"
        )
        asked = await one.asked()
        assert asked.offsets == {A: 1}
        asked.answer({A: batch(1, b"x" * 100)})
        await until(lambda: one.fetcher.buffered_bytes == 3 * size)
        assert await one.quiet()
        one.fetcher.hold_at({})
        assert await one.quiet()
        assert (await one.poll()).keys() == {A, B}
        await until(lambda: len(one.fetches.waiting) == 2)
        await one.fetcher.close()

    story(of)


@pytest.mark.parametrize("is_paused", [False, True])
def test_what_is_read_is_fetched_although_others_fill_the_memory(is_paused: bool) -> None:
    """Those that were paused, or not asked for, filled it for ever, and the poll waited as long."""

    async def of() -> None:
        one = Fetching([1, 1, 2], prefetch_bytes=1)
        one.fetcher.assign({A: 0, B: 0, C: 0})
        await until(lambda: len(one.fetches.waiting) == 2)
        of_one, of_two = sorted(one.fetches.waiting, key=lambda each: each.node_id)
        one.fetches.waiting.clear()
        of_one.answer({A: batch(0, b"0")})
        of_two.answer()
        assert await one.quiet(), "the memory is full, and there is something to return"
        only = None if is_paused else {B}
        one.fetcher.pause([A, C] if is_paused else [])
        polling = asyncio.ensure_future(one.fetcher.poll(10**8, None, only))
        assert not await one.quiet(), "what is buffered will not be returned"
        for _ in range(2):
            asked = await one.asked()
            assert asked.offsets == {B: 0}
            assert await one.quiet()
            asked.answer()
        (await one.asked()).answer({B: batch(0, b"x")})
        assert one.values(await polling) == {B: [b"x"]}
        # One response is fetched ahead.
        (await one.asked()).answer({B: batch(1, b"y")})
        await until(lambda: one.state(B).buffered)
        assert await one.quiet()
        assert one.fetcher.buffered_bytes == len(batch(0, b"0")) + len(batch(1, b"y"))
        one.fetcher.resume([A])
        assert await one.poll() == {A: [b"0"], B: [b"y"]}
        await one.fetcher.close()

    story(of)


def test_what_opens_a_gate_is_fetched_although_its_memory_is_full() -> None:
    """Partitions with a gate further on share the memory of those that wait for them."""

    async def of() -> None:
        one = Fetching([1, 1, 1], prefetch_bytes=4)
        one.fetcher.hold_at({A: 0, B: 2, C: 0})
        one.fetcher.add({A: 0, B: 0, C: 0})
        (await one.asked()).answer({A: batch(0, b"0")})
        assert not await one.quiet(), "what is buffered is beyond a shut gate"
        for _ in range(2):
            asked = await one.asked()
            assert asked.offsets == {B: 0}
            asked.answer()
        (await one.asked()).answer({B: batch(0, b"x", b"y")})
        assert await one.quiet()
        assert await one.poll() == {B: [b"x", b"y"]}
        assert await one.quiet(), "B is at its gate"
        await one.fetcher.close()

    story(of)


def test_beyond_a_gate_nothing_is_returned_until_it_opens() -> None:
    async def of() -> None:
        one = Fetching([1])
        one.fetcher.hold_at({A: 1})
        one.fetcher.add({A: 0})
        (await one.asked()).answer({A: batch(0, b"0") + batch(1, b"1")})
        await until(lambda: one.fetcher.buffered_bytes)
        assert await one.poll() == {A: [b"0"]}
        assert one.fetcher.positions() == {A: 1}
        assert one.fetcher.buffered_bytes == len(batch(1, b"1"))
        polling = asyncio.ensure_future(one.fetcher.poll(10**8))
        await one.quiet()
        one.fetcher.hold_at({A: 2})
        assert one.values(await polling) == {A: [b"1"]}
        assert one.fetcher.gates == {A: 2}
        await one.fetcher.close()

    story(of)


def test_the_partition_that_was_returned_is_the_last_one_of_the_next_turn() -> None:
    async def of() -> None:
        one = Fetching([1, 1])
        one.fetcher.assign({A: 0, B: 0})
        (await one.asked()).answer({A: batch(0, b"a0"), B: batch(0, b"b0")})
        (await one.asked()).answer({A: batch(1, b"a1"), B: batch(1, b"b1")})
        await until(lambda: len(one.state(B).buffered) == 2)
        assert await one.poll(1) == {A: [b"a0"]}
        assert await one.poll(1) == {B: [b"b0"]}
        assert await one.poll() == {A: [b"a1"], B: [b"b1"]}
        await one.fetcher.close()

    story(of)


def test_a_paused_partition_is_neither_fetched_nor_returned() -> None:
    async def of() -> None:
        one = Fetching([1, 1])
        one.fetcher.assign({A: 0, B: 0})
        (await one.asked()).answer({A: batch(0, b"0"), B: batch(0, b"x")})
        asked = await one.asked()
        one.fetcher.pause([A, C])
        assert await one.poll() == {B: [b"x"]}
        asked.answer({B: batch(1, b"y")})
        asked = await one.asked()
        assert asked.offsets == {B: 2}
        polling = asyncio.ensure_future(one.fetcher.poll(10**8, 1))
        assert one.values(await polling) == {B: [b"y"]}
        polling = asyncio.ensure_future(one.fetcher.poll(10**8))
        await one.quiet()
        one.fetcher.resume([A])
        assert one.values(await polling) == {A: [b"0"]}
        await one.fetcher.close()

    story(of)
