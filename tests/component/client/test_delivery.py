"""Delivery of batches: when they are sent, in which requests, and what follows from the answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.network_server import until
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tests.support.stories import story
from tests.support.turns import LATER_MS, now
from tidelog.client.errors import ConnectionLost, GaveUp, Refused
from tidelog.client.producing.batch_times import BatchTimes
from tidelog.client.producing.lanes import Lane
from tidelog.client.producing.send_queue import SendQueue
from tidelog.client.producing.sender import RECORD_OVERHEAD_BYTES, RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.reader import read_batch
from tidelog.runtime.backoff import steady

FIRST_MS, MOST_MS = 10_000, 40_000


class Sending:
    """A sender, and the requests that wait for the test to answer them."""

    def __init__(self, leaders: list[int], **settings: Any) -> None:
        self.cluster = ScriptedCluster(
            view_of(topic("t", leaders, ordered=False)),
            {
                messages.ProduceRequest: self._wait,
                messages.InitProducerIdRequest: lambda *_: messages.InitProducerIdResponse(
                    error_code=self.identity_error, producer_id=7, producer_epoch=0
                ),
            },
            backoff=steady(FIRST_MS, MOST_MS),
        )
        self.identity_error = 0
        self.waiting: list[tuple[messages.ProduceRequest, asyncio.Future[Any]]] = []
        self.sender = RecordSender(self.cluster, SendSettings(**{"linger_ms": 0, **settings}))
        self.futures: list[asyncio.Future[Any]] = []

    def _wait(self, _: int, request: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        return future

    async def send(self, value: bytes, partition: int = 0) -> asyncio.Future[Any]:
        self.futures.append(await self.sender.send("t", value, partition=partition))
        return self.futures[-1]

    def values(self) -> list[dict[int, list[bytes | None]]]:
        """The values in each request that waits, by partition."""
        return [
            {
                part.index: [record.value for record in read_batch(part.records)]
                for part in request.topic_data[0].partition_data
            }
            for request, _ in self.waiting
        ]

    def answer(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Answer the first request that waits."""
        request, future = self.waiting.pop(0)
        response = messages.ProduceResponse
        parts = [
            response.PartitionProduceResponse(part.index, int(code), 40)
            for part in request.topic_data[0].partition_data
        ]
        future.set_result(
            response(responses=[response.TopicProduceResponse("t", partition_responses=parts)])
        )

    def queue(self, partition: int = 0) -> SendQueue:
        return self.sender.queues.get(TopicPartition("t", partition), -1)

    @property
    def times(self) -> BatchTimes:
        return self.sender.delivery.times

    async def end(self) -> None:
        """Close it, whatever is not sent."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await self.sender.close()
        for each in self.futures:
            each.exception()


async def turns() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_batch_lingers_until_it_is_full_or_its_time_is_over() -> None:
    async def of() -> None:
        sending = Sending([1], linger_ms=LATER_MS, batch_bytes=200)
        begun = now()
        await sending.send(b"0" * 100)
        due = sending.times.due(sending.queue().waiting[0])
        assert LATER_MS / 1000 <= due - begun < LATER_MS / 1000 + 30
        assert not sending.sender.delivery.owes_turn
        await turns()
        assert sending.waiting == []
        # These two have no room in one batch, so the first one is full.
        await sending.send(b"1" * 100)
        await until(lambda: sending.waiting)
        assert sending.values() == [{0: [b"0" * 100]}]
        sending.answer()
        await turns()
        assert sending.waiting == [], "the second one lingers"
        await sending.end()

    story(of)


def test_a_flush_waits_for_no_linger() -> None:
    async def of() -> None:
        sending = Sending([1], linger_ms=LATER_MS)
        sent = await sending.send(b"0")
        flushing = asyncio.ensure_future(sending.sender.flush())
        await until(lambda: sending.waiting)
        assert not flushing.done()
        sending.answer()
        await flushing
        assert sent.result().offset == 40
        assert sending.sender.metrics()["producer-metrics"]["record-send-total"] == 1
        await sending.sender.close()

    story(of)


def test_no_batch_lingers_while_a_record_waits_for_memory() -> None:
    async def of() -> None:
        size = 500 + RECORD_OVERHEAD_BYTES
        sending = Sending([1, 2], linger_ms=LATER_MS, buffer_bytes=2 * size)
        await sending.send(b"0" * 500)
        await sending.send(b"1" * 500, partition=1)
        third = asyncio.ensure_future(sending.send(b"2" * 500))
        await until(lambda: len(sending.waiting) == 2)
        assert not third.done()
        sending.answer()
        await third
        assert sending.sender.memory.used == pytest.approx(2 * size, abs=4)
        await sending.end()
        assert sending.sender.memory.used == 0

    story(of)


def test_a_broker_has_so_many_requests_at_most() -> None:
    async def of() -> None:
        sending = Sending([1, 1, 1], max_in_flight=2)
        for partition in range(3):
            await sending.send(b"%d" % partition, partition)
            await turns()
        await until(lambda: len(sending.waiting) == 2)
        assert sending.values() == [{0: [b"0"]}, {1: [b"1"]}]
        sending.answer()
        await until(lambda: len(sending.waiting) == 2)
        assert sending.values() == [{1: [b"1"]}, {2: [b"2"]}]
        await sending.end()

    story(of)


def test_batches_for_one_broker_share_requests_up_to_a_size() -> None:
    async def of() -> None:
        sending = Sending([1, 1, 1], linger_ms=LATER_MS, max_request_bytes=1_500)
        for partition in range(3):
            await sending.send(b"%d" % partition * 500, partition)
        flushing = asyncio.ensure_future(sending.sender.flush())
        await until(lambda: len(sending.waiting) == 2)
        assert [sorted(each) for each in sending.values()] == [[0, 1], [2]]
        flushing.cancel()
        await sending.end()

    story(of)


def test_a_batch_that_is_too_large_gives_its_memory_and_its_deadline_to_its_halves() -> None:
    async def of() -> None:
        sending = Sending([1], linger_ms=LATER_MS)
        for number in range(4):
            await sending.send(b"%d" % number)
        whole = sending.queue().waiting[0]
        size, deadline = whole.size, whole.deadline
        assert sending.sender.memory.used == size
        flushing = asyncio.ensure_future(sending.sender.flush())
        await until(lambda: sending.waiting)
        sending.answer(ErrorCode.MESSAGE_TOO_LARGE)
        await until(lambda: sending.waiting)
        assert sending.values() == [{0: [b"0", b"1"]}]
        assert whole.size == 0 and sending.times.expire_when(whole) is None
        assert [half.size for half in whole.halves] == [size // 2, size // 2]
        assert sending.sender.memory.used == size
        for half in whole.halves:
            assert half.deadline == deadline
            assert sending.times.expire_when(half) == deadline
        sent = sending.sender.delivery.figures
        assert (sent.records_sent, sent.records_failed) == (0, 0)
        sending.answer()
        await until(lambda: sending.waiting)
        assert sending.sender.memory.used == size // 2
        sending.answer()
        await flushing
        assert [each.result().offset for each in sending.futures] == [40, 41, 40, 41]
        assert sending.sender.memory.used == 0 and not len(sending.times)
        assert (sent.records_sent, sent.records_failed) == (4, 0)
        await sending.sender.close()

    story(of)


def test_a_refusal_that_may_pass_lets_the_batch_wait_longer_each_time() -> None:
    async def of() -> None:
        sending = Sending([1, 2], delivery_timeout_ms=10**9)
        await sending.send(b"0")
        for attempt, wait_ms in enumerate((FIRST_MS, 2 * FIRST_MS, MOST_MS, MOST_MS)):
            await until(lambda: sending.waiting)
            refreshes, begun = sending.cluster.refreshes, now()
            sending.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await until(lambda before=refreshes: sending.cluster.refreshes > before)
            until_then = sending.queue().not_before
            assert wait_ms / 1000 <= until_then - begun < wait_ms / 1000 + 5
            assert sending.sender.delivery.figures.records_retried == attempt + 1
            await turns()
            assert not sending.waiting, "not before that time"
            sending.queue().not_before = 0.0
            sending.sender.delivery.drain()
        await sending.end()

    story(of)


def test_another_partition_is_sent_while_one_waits() -> None:
    async def of() -> None:
        sending = Sending([1, 1])
        await sending.send(b"0")
        await until(lambda: sending.waiting)
        sending.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await until(lambda: sending.queue().not_before)
        await sending.send(b"1", partition=1)
        await until(lambda: sending.waiting)
        assert sending.values() == [{1: [b"1"]}]
        await sending.end()

    story(of)


def test_the_next_look_is_at_the_earliest_batch_that_waits() -> None:
    async def of() -> None:
        sending = Sending([1, 1], linger_ms=LATER_MS)
        await sending.send(b"0")
        await sending.send(b"1", partition=1)
        sending.queue(0).not_before = now() + 7_000
        sending.queue(1).not_before = earliest = now() + 6_000
        sending.sender.delivery.drain()
        # The timer of the first linger is there still, and looks again.
        timer = sending.sender.delivery.timer
        timer.stop()
        sending.sender.delivery.drain()
        assert timer.at == earliest
        timer.set(earliest + 100)
        assert timer.at == earliest
        timer.set(earliest - 100)
        assert timer.at == earliest - 100
        await sending.end()

    story(of)


def test_a_batch_that_expires_says_why_and_lets_the_next_one_go() -> None:
    async def of() -> None:
        sending = Sending([1], delivery_timeout_ms=100, batch_bytes=150)
        first = await sending.send(b"0" * 100)
        await until(lambda: sending.waiting)
        sending.answer(ErrorCode.NOT_ENOUGH_REPLICAS)
        await until(lambda: sending.queue().not_before)
        second = await sending.send(b"1" * 100)
        later = sending.queue().waiting[1]
        sending.times.forget(later)
        sending.times.expire_at(now() + 1_000, sending.queue(), later)
        await turns()
        sending.queue().not_before = 0.0
        await until(first.done)
        error = first.exception()
        assert isinstance(error, GaveUp)
        assert str(error).startswith("t-0: not delivered within 100 ms; t-0: NOT_ENOUGH_REPLICAS")
        assert isinstance(error.__cause__, Refused)
        assert sending.sender.delivery.figures.records_failed == 1
        await until(lambda: sending.waiting)
        assert sending.values() == [{0: [b"1" * 100]}] and not second.done()
        await sending.end()
        assert sending.sender.delivery.figures.records_failed == 2

    story(of)


def test_a_batch_that_expires_in_flight_is_counted_once() -> None:
    async def of() -> None:
        sending = Sending([1], delivery_timeout_ms=20)
        first = await sending.send(b"0")
        await until(lambda: sending.waiting)
        await until(first.done)
        assert isinstance(first.exception(), GaveUp)
        sending.answer(ErrorCode.NOT_ENOUGH_REPLICAS)
        await turns()
        figures = sending.sender.delivery.figures
        assert (figures.records_failed, figures.records_retried) == (1, 0)
        assert (
            sending.sender.memory.used == 0 and sending.sender.delivery.flights.counts[Lane(1)] == 0
        )
        await sending.sender.close()

    story(of)


def test_without_an_identity_no_record_can_be_sent() -> None:
    async def of() -> None:
        sending = Sending([1])
        sending.identity_error = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        sent = await sending.send(b"0")
        await until(sent.done)
        error = sent.exception()
        assert isinstance(error, Refused) and error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert sending.sender.memory.used == 0
        await sending.sender.close()

    story(of)


def test_an_identity_that_may_come_later_is_waited_for() -> None:
    async def of() -> None:
        sending = Sending([1])
        sending.identity_error = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        sent = await sending.send(b"0")
        await until(lambda: sending.sender.delivery.work.trouble)
        assert not sent.done()
        sending.identity_error = 0
        sending.sender.delivery.drain()
        await until(lambda: sending.waiting)
        assert sending.sender.delivery.work.trouble is None
        await sending.end()

    story(of)


def test_a_partition_without_a_leader_is_looked_up_less_and_less_often() -> None:
    async def of() -> None:
        sending = Sending([-1, 1])
        await sending.send(b"0")
        for lookups, wait_ms in enumerate((FIRST_MS, 2 * FIRST_MS, MOST_MS), 1):
            begun = now()
            await until(lambda count=lookups: sending.queue().failed_lookups == count)
            await until(lambda: sending.sender.delivery.work.task("leaders") is None)
            left_s = sending.queue().not_before - begun
            assert wait_ms / 1000 <= left_s < wait_ms / 1000 + 5
            sending.queue().not_before = 0.0
            sending.sender.delivery.drain()
        led = topic("t", [1, 1], ordered=False, leader_epoch=4)
        sending.cluster.show(led)
        sending.sender.delivery.drain()
        await until(lambda: sending.waiting)
        sending.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await until(lambda: sending.queue().failed_lookups == 0)
        await sending.end()

    story(of)


def test_a_final_error_of_a_lookup_fails_the_batches_of_its_partition_alone() -> None:
    async def of() -> None:
        sending = Sending([-1, 1])
        lost = await sending.send(b"0")
        other = await sending.send(b"1", partition=1)
        refusal = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0")

        async def refuse(*_: Any) -> Any:
            raise refusal

        sending.cluster.leader = refuse  # type: ignore[method-assign]
        await until(lost.done)
        assert lost.exception() is refusal
        await until(lambda: sending.waiting)
        assert sending.values() == [{1: [b"1"]}] and not other.done()
        await sending.end()

    story(of)


def test_a_lost_connection_is_opened_again_and_the_batch_goes_to_the_next_leader() -> None:
    async def of() -> None:
        sending = Sending([1])
        await sending.send(b"0")
        await until(lambda: sending.waiting)
        _, future = sending.waiting.pop()
        sending.cluster.described = view_of(topic("t", [2], ordered=False, leader_epoch=4))
        sending.sender.delivery.connections[Lane(1)].closed = True  # type: ignore[misc]
        future.set_exception(ConnectionLost("gone"))
        await until(lambda: sending.sender.delivery.leader_of(TopicPartition("t", 0)) == 2)
        assert sending.sender.delivery.flights.counts[Lane(1)] == 0
        sending.queue().not_before = 0.0
        sending.sender.delivery.drain()
        await until(lambda: sending.waiting)
        assert sending.cluster.asked[-1][0] == 2 and sending.values() == [{0: [b"0"]}]
        await sending.end()

    story(of)


@pytest.mark.parametrize(
    ("code", "sent"),
    [
        (ErrorCode.NONE, 1),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 1),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0),
    ],
)
def test_what_is_in_the_log_is_counted_and_noted(code: ErrorCode, sent: int) -> None:
    """A duplicate as well: what follows from an acknowledged tombstone follows from it."""

    async def of() -> None:
        sending = Sending([1])
        noted: list[int] = []
        sending.sender.topics.acknowledged = lambda _, batch: noted.append(batch.builder.count)  # type: ignore[method-assign]
        future = await sending.send(b"0")
        await until(lambda: sending.waiting)
        sending.answer(code)
        await until(future.done)
        assert (future.exception() is None) == bool(sent)
        figures = sending.sender.delivery.figures
        assert (figures.records_sent, figures.records_failed) == (sent, 1 - sent)
        assert noted == [1] * sent
        await sending.sender.close()

    story(of)


def test_a_response_without_a_partition_is_no_success() -> None:
    async def of() -> None:
        sending = Sending([1])
        sent = await sending.send(b"0")
        await until(lambda: sending.waiting)
        _, future = sending.waiting.pop()
        future.set_result(messages.ProduceResponse(responses=[]))
        await until(sent.done)
        assert str(sent.exception()) == "the response of broker 1 lacks t-0"
        await sending.sender.close()

    story(of)


def test_metadata_without_that_broker_name_no_leader() -> None:
    async def of() -> None:
        sending = Sending([1])
        view = sending.cluster.described
        sending.cluster._view = replace(view, brokers={0: view.brokers[0]})
        await sending.send(b"0")
        await until(lambda: sending.queue().failed_lookups)
        assert not sending.waiting and sending.cluster.expired
        sending.queue().not_before = 0.0
        sending.sender.delivery.drain()
        await until(lambda: sending.waiting)
        await sending.end()

    story(of)
