"""The turns of a topic one by one: what is hashed again, what waits, and what is let go."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any
from uuid import UUID

from tests.support.network_server import until
from tests.support.resizing_leaders import NAME, ResizingLeaders
from tests.support.stories import story
from tests.support.turns import LATER_MS, ONE, Turns, key_of, now, refusal_of
from tidelog.client.errors import ConnectionLost, GaveUp
from tidelog.client.producing.send_queue import BatchResult, SendQueue
from tidelog.client.producing.topic_epochs import OlderBatch, TopicEpochs
from tidelog.client.stamps import Stamp, stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.older_keys import ANY
from tidelog.records.batch import read_header
from tidelog.records.reader import read_batch


def test_a_record_stays_in_the_partition_that_was_named_through_each_turn() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        goes = await turns.sender.send(NAME, b"hashed", key_of(7, 8))
        stays = await turns.sender.send(NAME, b"named", key_of(7, 8), partition=1)
        assert turns.waiting() == {1: [b"hashed", b"named"]}
        await turns.grow()
        assert turns.waiting() == {3: [b"hashed"], 1: [b"named"]}
        await turns.grow()
        assert turns.waiting() == {7: [b"hashed"], 1: [b"named"]}
        await turns.end()
        assert goes.exception() and stays.exception()

    story(of)


def test_a_refusal_of_a_batch_that_has_expired_changes_nothing() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=0, delivery_timeout_ms=30)
        first = await turns.sender.send(NAME, b"0", b"k")
        await until(lambda: any(turns.cluster.waiting.values()))
        ((_, ((request, answer),)),) = turns.cluster.waiting.items()
        turns.cluster.waiting.clear()
        await until(first.done)
        assert isinstance(first.exception(), GaveUp)
        answer.set_result(refusal_of(request))
        await asyncio.sleep(0)
        assert not turns.sender.turning.topics[NAME].is_turning
        assert turns.sender.memory.used == 0
        later = await turns.sender.send(NAME, b"1", b"k")
        await until(lambda: any(turns.cluster.waiting.values()))
        await until(later.done)
        assert later.exception()

    story(of)


def test_batches_of_a_deleted_topic_and_of_the_next_one_are_not_in_one_request() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        await turns.sender.send(NAME, b"0", key_of(0, 2))
        turns.sender.turning.topics[NAME].is_turning = True
        # As if it had been sent before: it has its numbers, so it is not hashed again.
        (queue,) = turns.sender.queues
        (batch,) = queue.waiting
        queue.next(ONE)
        queue.sent(batch)
        queue.answered(batch, BatchResult(ConnectionLost("gone")))
        led = {index: replace(each, leader=0) for index, each in turns.topic.partitions.items()}
        moved = {index: replace(each, partition_epoch=9 + index) for index, each in led.items()}
        await turns.show(topic_id=UUID(int=2), partitions=moved, resize_epoch=0)
        await turns.sender.send(NAME, b"1", key_of(1, 2))
        turns.sender.delivery.identity = ONE
        flushing = asyncio.ensure_future(turns.sender.flush())
        await until(lambda: len(turns.cluster.waiting.get(0, ())) == 2)
        requests = [request for request, _ in turns.cluster.waiting[0]]
        assert [len(request.topic_data[0].partition_data) for request in requests] == [1, 1]
        flushing.cancel()
        await turns.end()

    story(of)


def test_each_time_the_order_is_switched_the_queues_wait_for_another_identity() -> None:
    """The log goes on, and so would its sequence numbers, from where another queue left them."""

    async def of() -> None:
        turns = Turns(linger_ms=0)
        ordered = turns.topic.undeleted_partition_count
        for count in (-1, ordered, -1):
            sent = await turns.sender.send(NAME, b"0", b"k")
            while not sent.done():
                turns.cluster.answer()
                await asyncio.sleep(0)
            former = turns.sender.delivery.identity
            assert former is not None
            await turns.show(undeleted_partition_count=count)
            assert not len(turns.sender.queues)
            queue = turns.sender.turning.queue_of(turns.sender.turning.topics[NAME], 0)
            assert queue.needs_identity(former)
            turns.sender.delivery.identity = former._replace(producer_id=former.producer_id + 1)
            for leader in turns.leaders.leaders.values():
                leader.sequences.clear()
                leader.known.clear()

    story(of)


def test_a_batch_of_a_deleted_topic_does_not_hold_a_turn_up() -> None:
    found = Stamp(UUID(int=2), 4, 0)
    queue = SendQueue(TopicPartition(NAME, 0), 5, idempotent=True)
    topic = ResizingLeaders(random.Random(1)).described.topics[NAME]
    of_former, of_same, unordered = (
        OlderBatch(queue, queue.open(stamp=stamp), ANY) for stamp in (stamp_of(topic), found, None)
    )

    def may_end(stamp: Stamp | None, *older: OlderBatch) -> bool:
        epochs = TopicEpochs(topic, stamp, older=list(older))
        return epochs.may_end

    assert may_end(found, of_former)
    assert not may_end(found, of_former, of_same)
    assert not may_end(found, unordered)
    assert not may_end(None, of_former)
    assert queue.next(ONE) is of_former.batch
    queue.sent(of_former.batch)
    assert not may_end(found, of_former)


def created_again(turns: Turns) -> None:
    """Let brokers describe another topic of the same name."""
    listed = turns.topic.partitions
    others = {index: replace(each, partition_epoch=50 + index) for index, each in listed.items()}
    topic = replace(turns.topic, topic_id=UUID(int=2), partitions=others, max_partition_epoch=60)
    turns.leaders.described = replace(turns.leaders.described, topics={NAME: topic})


async def next_request(turns: Turns) -> tuple[Any, asyncio.Future[Any]]:
    """Wait for a request that is on its way; return it with the future of its response."""
    await until(lambda: any(turns.cluster.waiting.values()))
    waiting = next(each for each in turns.cluster.waiting.values() if each)
    return waiting.pop(0)


async def on_its_way_to_a_deleted_topic(
    turns: Turns, key: bytes
) -> tuple[Any, asyncio.Future[Any]]:
    """Send a record; its topic is created again while the request is on its way."""
    await turns.send(b"0", key)
    found = await next_request(turns)
    created_again(turns)
    return found


def test_a_batch_that_the_leader_of_a_deleted_topic_refused_goes_to_the_next_topic() -> None:
    async def of() -> None:
        turns, key = Turns(linger_ms=0), key_of(0, 2)
        request, answer = await on_its_way_to_a_deleted_topic(turns, key)
        answer.set_result(refusal_of(request, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        request, _ = await next_request(turns)
        (topic,) = request.topic_data
        assert [part.partition_epoch for part in topic.partition_data] == [50]
        await turns.end()

    story(of)


def test_a_broker_that_still_knows_the_former_topic_lets_no_batch_be_written_twice() -> None:
    """Its leader has written it, and the response was lost: a newer leader does not know it yet."""

    async def of() -> None:
        turns = Turns(linger_ms=0)
        former = replace(turns.topic, resize_epoch=5)
        created_again(turns)
        await turns.cluster.refresh()
        turns.sender.delivery.drain()
        await turns.send(b"0", key_of(0, 2))
        _, answer = await next_request(turns)
        turns.leaders.described = replace(turns.leaders.described, topics={NAME: former})
        answer.set_exception(ConnectionLost("gone"))
        request, answer = await next_request(turns)
        answer.set_result(refusal_of(request, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        (queue,) = (each for each in turns.sender.queues if each.undetermined())
        await until(lambda: queue.waiting or queue.in_flight)
        (batch,) = queue.undetermined()
        turns.sender.delivery.drain()
        assert batch in queue.undetermined()
        created_again(turns)
        request, _ = await next_request(turns)
        (part,) = request.topic_data[0].partition_data
        assert part.partition_epoch == 50
        assert read_header(part.records).base_sequence == 0
        assert queue.undetermined() == [batch]
        await turns.end()

    story(of)


def test_what_is_on_its_way_to_a_deleted_topic_stays_before_what_is_sent_later() -> None:
    async def of() -> None:
        turns, key = Turns(linger_ms=0), key_of(0, 2)
        request, answer = await on_its_way_to_a_deleted_topic(turns, key)
        await turns.cluster.refresh()
        turns.sender.delivery.drain()
        await turns.send(b"1", key)
        assert turns.waiting() == {}
        answer.set_result(refusal_of(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        request, _ = await next_request(turns)
        (part,) = request.topic_data[0].partition_data
        assert part.partition_epoch == 50
        assert [record.value for record in read_batch(part.records)] == [b"0", b"1"]
        await turns.end()

    story(of)


def test_a_batch_whose_connection_broke_goes_to_the_next_topic_when_it_is_refused() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=0)
        await turns.send(b"0", key_of(0, 2))
        _, answer = await next_request(turns)
        created_again(turns)
        answer.set_exception(ConnectionLost("gone"))
        request, answer = await next_request(turns)
        assert request.topic_data[0].partition_data[0].partition_epoch == 0
        answer.set_result(refusal_of(request, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        request, _ = await next_request(turns)
        assert request.topic_data[0].partition_data[0].partition_epoch == 50
        await turns.end()

    story(of)


def test_a_batch_whose_partition_was_removed_fails_at_once_and_holds_no_other_up() -> None:
    """Until its delivery time-out every later record of the topic waited for it."""

    async def of() -> None:
        turns = Turns(linger_ms=0, delivery_timeout_ms=LATER_MS)
        initial = turns.topic
        await turns.grow()
        lost = await turns.sender.send(NAME, b"0", key_of(3, 4))
        _, answer = await next_request(turns)
        answer.set_exception(ConnectionLost("gone"))
        await turns.show(partitions=initial.partitions, undeleted_partition_count=2, resize_epoch=2)
        await turns.send(b"1", key_of(1, 2))
        await until(lost.done)
        assert "it may be written" in str(lost.exception())
        request, _ = await next_request(turns)
        assert request.topic_data[0].resize_epoch == 2
        await turns.end()

    story(of)


def test_a_record_that_is_hashed_again_keeps_its_deadline() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        await turns.send(b"0", key_of(7, 8))
        ((before,),) = (queue.waiting for queue in turns.sender.queues)
        begun = now()
        await until(lambda: now() - begun > 0.02)
        await turns.grow()
        (after,) = [batch for q in turns.sender.queues for batch in q.waiting]
        assert after is not before and after.deadline == before.deadline
        await turns.end()

    story(of)


def test_each_record_that_is_held_expires_at_its_own_deadline() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=0, delivery_timeout_ms=60)
        await turns.sender.topic(NAME)
        epochs = turns.sender.topics.epochs_of(turns.topic)
        epochs.is_turning, epochs.refused = True, stamp_of(turns.topic)
        first = await turns.sender.send(NAME, b"0", b"k")
        begun = now()
        await until(lambda: now() - begun > 0.03)
        sent = now()
        second = await turns.sender.send(NAME, b"1", b"k")
        ended: list[float] = []
        second.add_done_callback(lambda _: ended.append(now()))
        await until(first.done)
        # Its callbacks run in the turn after the one that ends it.
        await until(lambda: ended)
        assert ended[0] - sent > 0.059, "not with the first one"
        assert isinstance(first.exception(), GaveUp) and isinstance(second.exception(), GaveUp)
        assert turns.sender.memory.used == 0
        await turns.sender.close()

    story(of)


def test_an_error_of_the_whole_producer_fails_what_is_held() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=0)
        epochs = turns.sender.topics.epochs_of(turns.topic)
        epochs.is_turning, epochs.refused = True, stamp_of(turns.topic)
        held = await turns.sender.send(NAME, b"0", b"k")
        turns.sender.delivery.fail_all(ConnectionLost("for good"))
        assert isinstance(held.exception(), ConnectionLost)
        assert turns.sender.memory.used == 0
        await turns.sender.close()

    story(of)


def test_a_retired_partition_takes_no_record_that_names_it() -> None:
    topic = ResizingLeaders(random.Random(1)).described.topics[NAME]
    retired = replace(topic.partitions[1], retirement_epoch=3)
    topic = replace(topic, partitions={**topic.partitions, 1: retired})
    epochs = TopicEpochs(topic, stamp_of(topic))
    assert epochs.why_not(0) is None
    why = epochs.why_not(1)
    assert why is not None and why.code == ErrorCode.POLICY_VIOLATION
    unknown = epochs.why_not(2)
    assert unknown is not None and unknown.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert TopicEpochs(topic, None).why_not(1) is None
