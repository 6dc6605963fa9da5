"""The public consumer: what a poll returns, positions, and callbacks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.network_server import until
from tests.support.reading import A, B, Reading, both
from tests.support.stories import story
from tidelog.aio import consumer as of_consumer
from tidelog.client.errors import ClientError, ConfigurationRefused, Wakeup, WrongState
from tidelog.model.topics import TopicPartition


def test_records_at_hand_are_returned_without_a_look_at_the_group_for_a_moment() -> None:
    async def of() -> None:
        one = Reading(max_poll_records=2)
        one.consumer.assign([A])
        one.fetches.write(A, *(b"%d" % n for n in range(9)))
        assert await one.read(2) == {A: [b"0", b"1"]}
        looks = 0

        async def attend(*_: Any) -> None:
            nonlocal looks
            looks += 1

        one.consumer.attend = attend  # type: ignore[method-assign]
        assert (await one.consumer.poll())[A][0].value == b"2"
        assert len((await one.consumer.poll(max_records=1))[A]) == 1
        one.time += of_consumer.ATTEND_S - 0.001
        assert (await one.consumer.getmany(A))[A][0].value == b"5"
        assert looks == 0
        one.time += 0.002
        assert (await one.consumer.poll())[A][0].value == b"7"
        assert looks == 1
        del one.consumer.attend  # type: ignore[method-assign]
        await one.consumer.close()

    story(of)


def test_only_the_wanted_partitions_are_returned() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A, B])
        one.fetches.write(A, b"0")
        one.fetches.write(B, b"x", b"y")
        record = await one.consumer.getone(B)
        assert (record.topic, record.partition, record.value) == ("t", 1, b"x")
        assert (await one.consumer.getone(B)).value == b"y"
        assert (await one.consumer.getone()).value == b"0"
        figures = one.consumer.metrics()["consumer-metrics"]
        assert figures["records-consumed-total"] == 3
        assert figures["bytes-consumed-total"] > 100
        assert figures["assigned-partitions"] == 2
        assert figures["buffered-bytes"] == figures["waiting-partitions"] == 0
        one.fetches.write(A, b"1")
        reader: Any = one.consumer._reader
        await until(lambda: reader.buffered_bytes)
        reader.gating.ends[B] = 5
        figures = one.consumer.metrics()["consumer-metrics"]
        assert figures["buffered-bytes"] == reader.buffered_bytes
        assert one.consumer.waiting().keys() == {B} and figures["waiting-partitions"] == 1
        del reader.gating.ends[B]
        assert one.consumer.highwater(A) == 100 and one.consumer.highwater(("u", 0)) is None  # type: ignore[arg-type]
        await one.consumer.close()

    story(of)


def test_what_is_fetched_of_others_stays_within_the_limit_while_one_is_waited_for() -> None:
    """All of it was taken over, turn by turn, without a limit and until the time was over."""

    async def of() -> None:
        one = Reading(fetch_buffer_bytes=3_000)
        one.consumer.assign([A, B])
        waited_for = asyncio.ensure_future(one.consumer.getone(A))
        await until(lambda: one.fetches.waiting)
        for number in range(64):
            one.fetches.write(B, b"%d" % number * 500)
            for _ in range(20):
                await asyncio.sleep(0)
        figures = one.consumer.metrics()["consumer-metrics"]
        assert 3_000 < figures["buffered-bytes"] < 2 * 3_000
        assert figures["bytes-consumed-total"] == 0
        one.fetches.write(A, b"0")
        assert (await waited_for).value == b"0"
        assert (await one.read(64))[B] == [b"%d" % number * 500 for number in range(64)]
        await one.consumer.close()

    story(of)


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_partition_is_read_although_another_one_fills_the_buffer(is_paused: bool) -> None:
    """``getone`` of it waited for ever, and so did each poll while the other one was paused."""

    async def of() -> None:
        one = Reading(fetch_buffer_bytes=1)
        one.consumer.assign([A, B])
        one.fetches.write(A, b"0")
        wanted = () if is_paused else (B,)
        assert await one.consumer.getmany(B) == {}
        await until(lambda: one.consumer.metrics()["consumer-metrics"]["buffered-bytes"])
        if is_paused:
            one.consumer.pause(A)
        waited_for = asyncio.ensure_future(one.consumer.getone(*wanted))
        # Nothing is written to B meanwhile.
        for _ in range(3):
            await until(lambda: one.fetches.waiting)
            one.fetches.waiting.pop().answer()
        one.fetches.write(B, b"x")
        assert (await asyncio.wait_for(waited_for, 60)).value == b"x"
        one.consumer.resume(A)
        assert await one.read(1) == {A: [b"0"]}
        await one.consumer.close()

    story(of)


def test_a_poll_waits_as_long_as_it_is_asked_to_in_all() -> None:
    async def of() -> None:
        one, waits = Reading(), []
        one.consumer.assign([A])
        await one.poll()

        async def attend(timeout_ms: float, *_: Any) -> None:
            waits.append(round(timeout_ms))
            one.time += 0.3

        one.consumer.attend = attend  # type: ignore[method-assign]
        assert await one.consumer.poll(1_000) == {}
        assert waits == [1_000, 700, 400, 100, 0]
        del one.consumer.attend  # type: ignore[method-assign]
        with pytest.raises(ConfigurationRefused, match="max_records must be at least 1"):
            await one.consumer.poll(0, 0)
        with pytest.raises(TypeError, match="a partition is a TopicPartition"):
            await one.consumer.getmany("t")  # type: ignore[arg-type]
        await one.consumer.close()

    story(of)


def test_records_are_iterated_one_by_one() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        one.fetches.write(A, b"0", b"1", b"2")
        found = []
        async for record in one.consumer:
            found.append(record.value)
            if len(found) == 3:
                break
        assert found == [b"0", b"1", b"2"]
        assert one.consumer.metrics()["consumer-metrics"]["records-consumed-total"] == 3
        await one.consumer.close()

    story(of)


def test_a_wakeup_ends_the_poll_that_waits_or_the_next_one_once() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        await one.poll()
        polling = await one.polling()
        one.consumer.wakeup()
        with pytest.raises(Wakeup):
            await polling
        one.fetches.write(A, b"0")
        one.consumer.wakeup()
        with pytest.raises(Wakeup):
            await one.consumer.poll()
        assert await one.read(1) == {A: [b"0"]}
        await one.consumer.close()

    story(of)


def test_what_the_group_asks_for_and_a_wakeup_come_before_records_at_hand() -> None:
    async def of() -> None:
        one = Reading(max_poll_records=1)
        one.consumer.assign([A])
        one.fetches.write(A, b"0", b"1", b"2")
        assert await one.read(1) == {A: [b"0"]}
        polls = one.consumer.metrics()["consumer-metrics"]["poll-total"]
        assert not one.consumer.is_due()
        one.consumer.wakeup()
        with pytest.raises(Wakeup):
            await one.consumer.poll()
        assert one.consumer.is_due() and one.consumer.take_one() is None, "after any error"
        assert await one.read(1) == {A: [b"1"]}
        assert one.consumer.metrics()["consumer-metrics"]["poll-total"] == polls + 1
        assert not one.consumer.is_due()
        reader: Any = one.consumer._reader
        reader.gating.has_shut = True
        assert one.consumer.is_due() and one.consumer.take_one() is None
        reader.gating.has_shut = False
        record = one.consumer.take_one()
        assert record is not None and record.value == b"2" and one.consumer.take_one() is None
        assert one.consumer.metrics()["consumer-metrics"]["records-consumed-total"] == 3
        reader.member.rejoin()
        assert one.consumer.is_due()
        await one.consumer.close()

    story(of)


def test_the_reader_is_waited_for_only_where_nothing_is_at_hand() -> None:
    async def of() -> None:
        one = Reading(max_poll_records=1)
        one.consumer.assign([A, B])
        one.fetches.write(A, b"0", b"1")
        assert await one.read(1) == {A: [b"0"]}
        asked = []

        async def poll(*limits: Any) -> list[Any]:
            asked.append(limits)
            return []

        one.consumer._reader.poll = poll  # type: ignore[assignment, method-assign, union-attr]
        await one.consumer.attend(1_500.7)
        await one.consumer.attend(1_500.7, [B])
        assert asked == [(0, 0, None), (1_500, of_consumer.TAKE_BYTES, [B])]
        await one.consumer.close()

    story(of)


def test_a_wakeup_before_the_first_poll_counts_too() -> None:
    async def of() -> None:
        one = Reading("t")
        figures = one.consumer.metrics()["consumer-metrics"]
        assert set(figures.values()) == {0} and one.consumer.waiting() == {}
        one.consumer.wakeup()
        with pytest.raises(Wakeup):
            await one.poll()
        assert await one.poll() == {}
        await one.consumer.close()

    story(of)


def test_a_wakeup_takes_nothing_from_what_comes_with_it() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        await one.poll()
        reader: Any = one.consumer._reader
        original = reader.poll

        async def poll(*limits: int) -> Any:
            found = await original(*limits)
            one.consumer.mark_woken()
            return found

        reader.poll = poll
        with pytest.raises(Wakeup):
            await one.poll()
        one.fetches.write(A, b"0")
        await until(lambda: reader.buffered_bytes)
        assert await one.poll() == {A: [b"0"]}
        reader.poll = original
        with pytest.raises(Wakeup):
            await one.poll()
        assert await one.poll() == {}
        await one.consumer.close()

    story(of)


def test_one_poll_runs_at_a_time() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        await one.poll()
        polling = await one.polling()
        with pytest.raises(WrongState, match="poll was called while it runs"):
            await one.consumer.poll()
        with pytest.raises(WrongState, match="poll was called while it runs"):
            await anext(aiter(one.consumer))
        one.fetches.write(A, b"0")
        assert [each.value for each in (await polling)[A]] == [b"0"]
        await one.consumer.close()

    story(of)


def test_a_paused_partition_returns_nothing_until_it_is_resumed() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A, B])
        one.consumer.pause(A)
        one.fetches.write(A, b"0")
        one.fetches.write(B, b"x")
        assert await one.read(1) == {B: [b"x"]}
        assert one.consumer.paused() == {A}
        one.consumer.resume(B)
        assert await one.poll() == {} and one.consumer.paused() == {A}
        one.consumer.resume(A)
        assert await one.read(1) == {A: [b"0"]}
        await one.consumer.close()

    story(of)


@pytest.mark.parametrize("check_crcs", [True, False])
def test_records_are_decoded_as_the_settings_say(check_crcs: bool) -> None:
    async def of() -> None:
        one = Reading(key_deserializer=bytes.decode, value_deserializer=int, check_crcs=check_crcs)
        one.consumer.assign([A])
        one.fetches.write(A, b"7")
        ((end, data),) = one.fetches.logs[A]
        damaged = bytearray(data)
        damaged[17] ^= 1  # the CRC
        one.fetches.logs[A] = [(end, bytes(damaged))]
        if check_crcs:
            with pytest.raises(ClientError, match="CRC"):
                await one.read(1)
        else:
            record = await one.consumer.getone()
            assert (record.key, record.value) == ("k", 7)
        await one.consumer.close()

    story(of)


def test_a_partition_that_goes_away_is_paused_no_longer() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A, B])
        one.consumer.pause(A, B)
        await one.poll()
        one.consumer.assign([B])
        await one.assigned(tuple(B))
        assert one.consumer.paused() == {B} == one.consumer._queue.paused
        one.consumer.assign([A, B])
        one.fetches.write(A, b"0")
        assert await one.read(1) == {A: [b"0"]}
        await one.consumer.close()

    story(of)


def test_records_at_hand_of_a_paused_partition_wait() -> None:
    async def of() -> None:
        one = Reading(max_poll_records=1)
        one.consumer.assign([A])
        one.fetches.write(A, b"0", b"1")
        assert await one.read(1) == {A: [b"0"]}
        one.consumer.pause(A)
        assert await one.consumer.poll() == {} and one.consumer.take_one() is None
        one.consumer.resume(A)
        assert await one.read(1) == {A: [b"1"]}
        await one.consumer.close()

    story(of)


# Positions


def test_positions_are_after_what_was_returned() -> None:
    async def of() -> None:
        one = Reading(max_poll_records=1)
        one.consumer.assign([A])
        assert await one.consumer.position(A) == 0
        one.fetches.write(A, b"0", b"1", b"2")
        assert await one.read(1) == {A: [b"0"]}
        assert await one.consumer.position(A) == 1
        one.consumer.seek(A, 2)
        assert await one.consumer.position(A) == 2
        assert await one.read(1) == {A: [b"2"]}
        await one.consumer.seek_to_beginning()
        assert await one.read(1) == {A: [b"0"]}
        await one.consumer.seek_to_end(A)
        assert await one.consumer.position(A) == 3
        assert await one.poll() == {}
        await one.consumer.close()

    story(of)


def test_only_the_named_partitions_are_sought() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A, B])
        one.fetches.write(A, b"0")
        one.fetches.write(B, b"x")
        assert await one.read(2) == {A: [b"0"], B: [b"x"]}
        await one.consumer.seek_to_beginning(B)
        assert one.consumer.is_due()
        assert await one.read(1) == {B: [b"x"]} and await one.consumer.position(A) == 1
        with pytest.raises(TypeError, match="a partition is a TopicPartition"):
            await one.consumer.seek_to_end("t")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a partition is a TopicPartition"):
            await one.consumer.position("t")  # type: ignore[arg-type]
        await one.consumer.close()

    story(of)


def test_a_seek_before_the_first_poll_is_where_reading_begins() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        with pytest.raises(WrongState, match="not assigned"):
            one.consumer.seek(B, 1)
        for wrong in (-1, 2**63):
            with pytest.raises(ConfigurationRefused, match="an offset must be from 0"):
                one.consumer.seek(A, wrong)
        one.consumer.seek(("t", 0), 1)  # type: ignore[arg-type]
        one.fetches.write(A, b"0")
        one.fetches.write(A, b"1")
        assert await one.read(1) == {A: [b"1"]}
        await one.consumer.close()
        other = Reading("t")
        with pytest.raises(WrongState, match="poll first"):
            other.consumer.seek(A, 1)
        await other.consumer.close()

    story(of)


def test_only_a_poll_joins_where_topics_are_subscribed_to() -> None:
    """Its callbacks are called inside ``poll``."""

    async def of() -> None:
        one = Reading("t")
        assert await one.consumer.places() == {} and one.consumer.assignment() == set()
        await one.assigned(*both("t"))
        await one.consumer.close()

    story(of)


def test_without_a_group_nothing_is_committed() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        await one.poll()
        with pytest.raises(WrongState, match="without a group_id cannot commit"):
            await one.consumer.commit()
        with pytest.raises(WrongState, match="has committed nothing"):
            await one.consumer.committed(A)
        await one.consumer.close()

    story(of)


def test_callbacks_are_called_for_what_comes_and_goes() -> None:
    async def of() -> None:
        calls: list[tuple[str, set[TopicPartition]]] = []
        one = Reading(names=("t", "u"))

        class Listener:
            def on_partitions_revoked(self, revoked: Any) -> None:
                calls.append(("revoked", revoked))
                # Also where it is of the former subscription, and the next one has others.
                with pytest.raises(WrongState, match="in a callback"):
                    one.consumer.subscribe(["t"])

            async def on_partitions_assigned(self, assigned: Any) -> None:
                calls.append(("assigned", assigned))
                for wrong in (
                    lambda: one.consumer.subscribe(["t"]),
                    lambda: one.consumer.assign([A]),
                    one.consumer.unsubscribe,
                ):
                    with pytest.raises(WrongState, match="in a callback"):
                        wrong()
                with pytest.raises(WrongState, match="close was called in a callback"):
                    await one.consumer.close()

        listener = Listener()
        one.consumer.subscribe(["t"], listener=listener)
        await one.assigned(*both("t"))
        one.consumer.subscribe(["t", "u"], listener=listener)
        await one.assigned(*both("t"), *both("u"))
        # Another listener: the former subscription is left first, with its own listener.
        one.consumer.subscribe(["u"])
        await one.assigned(*both("u"))
        assert calls == [
            ("assigned", {*both("t")}),
            ("assigned", {*both("u")}),
            ("revoked", {*both("t"), *both("u")}),
        ]
        assert one.consumer.metrics()["consumer-metrics"]["rebalance-total"] == 3
        await one.consumer.close()
        await one.consumer.close()
        assert len(calls) == 3

    story(of)
