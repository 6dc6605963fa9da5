"""A poll that is cancelled, and one that runs while its consumer closes: what it leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.committing import A, B, Committing
from tests.support.fetch_answers import Fetches
from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tests.support.stories import story
from tidelog.aio import Consumer
from tidelog.client.errors import WrongState
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

LONG_MS = 10**8


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Revoked:
    """A listener that notes its revocations; each waits until the test lets it end."""

    def __init__(self) -> None:
        self.calls: list[set[TopicPartition]] = []
        self.may_end = asyncio.Event()

    def on_partitions_assigned(self, _: set[TopicPartition]) -> None:
        pass

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self.calls.append(partitions)
        await self.may_end.wait()


def test_a_cancelled_poll_leaves_the_commit_of_the_former_subscription_to_the_next() -> None:
    """It was called off."""

    async def of() -> None:
        one = Committing(enable_auto_commit=True, auto_commit_interval_ms=LONG_MS)
        await one.read(3)
        one.held = asyncio.get_running_loop().create_future()
        one.consumer.unsubscribe()
        one.consumer.assign([B])
        for _ in range(3):
            poll = asyncio.ensure_future(one.consumer.poll(LONG_MS))
            await until(lambda: one.sent)
            await cancelled(poll)
        assert one.sent == [3] and not one.stored
        one.held.set_result(None)
        assert await one.consumer.position(B) == 0
        assert one.stored[A].offset == 3 and one.sent == [3]
        await one.consumer.close()

    story(of)


def test_the_close_after_a_cancelled_poll_waits_for_the_commit_that_it_has_begun() -> None:
    async def of() -> None:
        one = Committing(enable_auto_commit=True, auto_commit_interval_ms=LONG_MS)
        await one.read(3)
        one.held = asyncio.get_running_loop().create_future()
        one.consumer.unsubscribe()
        one.consumer.assign([B])
        poll = asyncio.ensure_future(one.consumer.poll(LONG_MS))
        await until(lambda: one.sent)
        await cancelled(poll)
        end = asyncio.ensure_future(one.consumer.close(timeout_ms=LONG_MS))
        asyncio.get_running_loop().call_later(0.01, one.held.set_result, None)
        await end
        assert one.stored[A].offset == 3 and one.sent == [3]

    story(of)


async def reading(listener: Revoked, **settings: Any) -> tuple[Consumer, Fetches]:
    """Return a consumer without a group that has returned the first record of its topic."""
    fetches = Fetches()
    answers = {messages.FetchRequest: fetches}
    cluster = ScriptedCluster(view_of(topic("t", [1], ordered=False)), answers)
    consumer = Consumer(cluster=cluster, max_poll_records=1, **settings)
    consumer.subscribe(["t"], listener=listener)
    while not consumer.assignment():
        await consumer.poll()
    consumer.seek(A, 0)
    fetches.write(A, b"0", b"1")
    while not await consumer.poll(LONG_MS):
        pass
    return consumer, fetches


def test_a_callback_that_a_cancelled_poll_has_cancelled_is_not_called_twice() -> None:
    async def of() -> None:
        listener = Revoked()
        consumer, _ = await reading(listener)
        consumer.unsubscribe()
        consumer.assign([A])
        poll = asyncio.ensure_future(consumer.poll(LONG_MS))
        await until(lambda: listener.calls)
        await cancelled(poll)
        await consumer.poll()
        assert listener.calls == [{A}] and consumer.assignment() == {A}
        await consumer.close()
        assert listener.calls == [{A}]

    story(of)


class Opening(ScriptedCluster):
    """A cluster that is reached when the test says so."""

    def __init__(self) -> None:
        super().__init__(view_of(topic("t", [1], ordered=False)))
        self.is_asked = False
        self.may_open = asyncio.Event()

    async def open(self, timeout_ms: int | None = None) -> None:
        self.is_asked = True
        await self.may_open.wait()


@pytest.mark.parametrize("how", ["topics", "pattern"])
def test_a_poll_that_begins_before_a_close_does_not_join_after_it(how: str) -> None:
    """A member was left in the group, and read on."""

    async def of() -> None:
        cluster = Opening()
        consumer = Consumer(cluster=cluster, group_id="g")
        consumer.subscribe(**({"topics": ["t"]} if how == "topics" else {"pattern": "t"}))
        poll = asyncio.ensure_future(consumer.poll(LONG_MS))
        await until(lambda: cluster.is_asked)
        await consumer.close()
        cluster.may_open.set()
        with pytest.raises(WrongState, match="closed"):
            await poll
        assert not cluster.asked and consumer.assignment() == set()
        names = [str(task.get_coro()) for task in asyncio.all_tasks()]
        assert not [each for each in names if "_watch_pattern" in each]

    story(of)


@pytest.mark.parametrize("is_in_time", [True, False])
def test_a_close_waits_for_the_former_subscription_that_a_poll_leaves(is_in_time: bool) -> None:
    """It closed the connections under it."""

    async def of() -> None:
        one = Committing(enable_auto_commit=True, auto_commit_interval_ms=LONG_MS)
        await one.read(3)
        one.held = asyncio.get_running_loop().create_future()
        one.consumer.unsubscribe()
        one.consumer.assign([B])
        poll = asyncio.ensure_future(one.consumer.poll(LONG_MS))
        await until(lambda: one.sent)
        if is_in_time:
            asyncio.get_running_loop().call_later(0.01, one.held.set_result, None)
        await one.consumer.close(timeout_ms=LONG_MS if is_in_time else 1)
        with pytest.raises(WrongState, match="closed"):
            await poll
        assert bool(one.stored) == is_in_time and one.sent == [3]
        assert one.consumer.assignment() == set()

    story(of)


def test_a_cancelled_close_closes_what_a_poll_leaves() -> None:
    async def of() -> None:
        listener = Revoked()
        consumer, _ = await reading(listener)
        consumer.unsubscribe()
        consumer.assign([A])
        poll = asyncio.ensure_future(consumer.poll(LONG_MS))
        await until(lambda: listener.calls)
        end = asyncio.ensure_future(consumer.close(timeout_ms=LONG_MS))
        await asyncio.wait([end], timeout=0.01)
        assert not end.done()
        await cancelled(end)
        listener.may_end.set()
        with pytest.raises(WrongState, match="closed"):
            await poll
        assert listener.calls == [{A}]

    story(of)
