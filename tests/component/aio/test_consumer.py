"""The public consumer: subscriptions, what a poll returns, positions, and callbacks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.fetch_answers import Fetches
from tests.support.network_server import until
from tests.support.processes import DEADLINE_S
from tests.support.scripted_cluster import ScriptedCluster, listed_offsets, topic, view_of
from tidelog.aio import Consumer
from tidelog.aio import consumer as of_consumer
from tidelog.client.errors import ConfigurationRefused, Wakeup, WrongState
from tidelog.client.metadata import ClusterMetadata
from tidelog.client.offsets import EARLIEST
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
CHECK_MS = 20
"""How old the topics of a pattern may be."""


class Reading:
    """A consumer without a group, and the logs that it reads."""

    def __init__(self, *topics: str, names: tuple[str, ...] = ("t",), **settings: Any) -> None:
        self.fetches = Fetches()
        self.begins: dict[TopicPartition, Any] = defaultdict(int)
        self.cluster = ScriptedCluster(
            view_of_all(*names),
            {messages.FetchRequest: self.fetches, messages.ListOffsetsRequest: self._listed},
        )
        self.time = 100.0
        settings = {"auto_offset_reset": "earliest", "metadata_max_age_ms": CHECK_MS, **settings}
        self.consumer = Consumer(*topics, cluster=self.cluster, now=lambda: self.time, **settings)

    def _listed(self, _: int, request: Any) -> Any:
        is_begin = request.topics[0].partitions[0].timestamp == EARLIEST
        ends = {where: log[-1][0] for where, log in self.fetches.logs.items()}
        return listed_offsets(request, self.begins if is_begin else defaultdict(int, ends))

    async def poll(self, most: int | None = None) -> dict[TopicPartition, list[Any]]:
        """The values that a poll returns which looks at the group first."""
        self.time += 1
        # The time that leaders wait for more is over.
        waiting, self.fetches.waiting = self.fetches.waiting, []
        for each in waiting:
            each.answer()
        found = await self.consumer.poll(0, most)
        return {where: [each.value for each in records] for where, records in found.items()}

    async def read(self, count: int) -> dict[TopicPartition, list[Any]]:
        """Poll until so many values have come."""
        got: dict[TopicPartition, list[Any]] = {}
        while sum(map(len, got.values())) < count:
            for where, values in (await self.poll()).items():
                got.setdefault(where, []).extend(values)
        return got

    async def assigned(self, *wanted: tuple[str, int]) -> None:
        """Poll until these partitions are assigned."""
        while self.consumer.assignment() != set(wanted):
            await self.poll()
            await asyncio.sleep(0)


def view_of_all(*names: str) -> ClusterMetadata:
    return view_of(*(topic(name, [1, 2], ordered=False) for name in names))


def story(of: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        troubles: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: troubles.append(what))
        async with asyncio.timeout(DEADLINE_S):
            await of()
        assert not troubles

    asyncio.run(whole())


def both(name: str) -> list[tuple[str, int]]:
    return [(name, 0), (name, 1)]


# Subscriptions


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
        one.consumer.subscribe(["t"])
        with pytest.raises(WrongState, match="unsubscribe first"):
            one.consumer.assign([A])
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


# Reading


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
        one.fetches.write(B, b"x")
        record = await one.consumer.getone(B)
        assert (record.topic, record.partition, record.value) == ("t", 1, b"x")
        assert (await one.consumer.getone()).value == b"0"
        figures = one.consumer.metrics()["consumer-metrics"]
        assert figures["records-consumed-total"] == 2
        assert figures["bytes-consumed-total"] > 100
        assert figures["assigned-partitions"] == 2
        assert one.consumer.highwater(A) == 100 and one.consumer.highwater(("u", 0)) is None  # type: ignore[arg-type]
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
        polling = asyncio.ensure_future(one.consumer.poll(10**8))
        await until(lambda: one.consumer._is_polling)
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


def test_one_poll_runs_at_a_time() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        await one.poll()
        polling = asyncio.ensure_future(one.consumer.poll(10**8))
        await until(lambda: one.consumer._is_polling)
        with pytest.raises(WrongState, match="poll was called while it runs"):
            await one.consumer.poll()
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


def test_a_seek_before_the_first_poll_is_where_reading_begins() -> None:
    async def of() -> None:
        one = Reading()
        one.consumer.assign([A])
        with pytest.raises(WrongState, match="not assigned"):
            one.consumer.seek(B, 1)
        one.consumer.seek(A, 1)
        one.fetches.write(A, b"0")
        one.fetches.write(A, b"1")
        assert await one.read(1) == {A: [b"1"]}
        await one.consumer.close()
        other = Reading("t")
        with pytest.raises(WrongState, match="poll first"):
            other.consumer.seek(A, 1)
        await other.consumer.close()

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
                for wrong in (lambda: one.consumer.subscribe(["t"]), one.consumer.unsubscribe):
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
