"""Records that are held while their topic is resized: their deadlines, and where they go then."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any
from uuid import UUID

from tests.support.network_server import until
from tests.support.resizing_leaders import NAME, ResizingCluster
from tests.support.stories import story
from tests.support.turns import LATER_MS, ONE, Turns, key_of, now, refusal_of
from tidelog.client.errors import (
    ConnectionLost,
    GaveUp,
)
from tidelog.client.producing.held_records import HeldRecord, records_of
from tidelog.client.producing.send_queue import BatchResult, SendQueue, SendTally
from tidelog.client.producing.topic_epochs import TopicEpochs
from tidelog.client.stamps import Stamp, stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord
from tidelog.runtime.backoff import steady


def held_until(deadline: float) -> HeldRecord:
    return HeldRecord((1,), NewRecord(0, b"k", b"0", []), 10, deadline)


def hold(turns: Turns, epochs: TopicEpochs, record: HeldRecord) -> None:
    """Hold a record as one that a leader has refused."""
    turns.sender.topics.perform(turns.sender.turning.hold(epochs, record))


def test_the_timer_of_a_turn_is_that_of_the_earliest_deadline() -> None:
    """What a leader refuses in a turn was sent before, and expires before, what is held already."""

    async def of() -> None:
        turns = Turns()
        epochs = turns.sender.topics.epochs_of(turns.topic)
        begun = now()
        hold(turns, epochs, held_until(begun + 300))
        timer = turns.sender.topics.timers[NAME]
        assert timer.at == begun + 300
        hold(turns, epochs, held_until(begun + 400))
        assert timer.at == begun + 300
        hold(turns, epochs, held_until(begun + 200))
        assert timer.at == begun + 200
        turns.sender.topics.failed(GaveUp("end"))
        assert timer.at is None

    story(of)


def test_after_each_expiry_the_timer_is_that_of_the_next_deadline() -> None:
    async def of() -> None:
        turns = Turns()
        epochs = turns.sender.topics.epochs_of(turns.topic)
        begun = now()
        for after in (-1, 300, 200):
            hold(turns, epochs, held_until(begun + after))
        await until(lambda: len(epochs.held) == 2)
        assert [each.deadline for each in epochs.held] == [begun + 300, begun + 200]
        timer = turns.sender.topics.timers[NAME]
        assert timer.at == begun + 200
        hold(turns, epochs, held_until(begun + 100))
        assert timer.at == begun + 100
        turns.sender.topics.failed(GaveUp("end"))

    story(of)


def test_the_end_of_a_turn_ends_its_timer() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        epochs = turns.sender.topics.epochs_of(turns.topic)
        epochs.is_turning, epochs.refused = True, stamp_of(turns.topic)
        await turns.send(b"0", b"k")
        timer = turns.sender.topics.timers[NAME]
        assert timer.at is not None
        await turns.grow()
        assert timer.at is None and not epochs.held
        assert epochs.refused is None and not epochs.is_turning
        await turns.end()

    story(of)


def test_the_broker_that_refused_is_asked_for_metadata() -> None:
    """It knows the newer resize epoch; any other broker may not know it yet."""

    class Asked(ResizingCluster):
        nodes: list[int]

        async def describe(self, _: Any, *, first: int) -> None:
            self.nodes.append(first)
            await self.refresh()

    async def of() -> None:
        turns = Turns(linger_ms=0)
        turns.cluster.__class__ = Asked
        asked = turns.cluster.nodes = []  # type: ignore[attr-defined]
        # A partition that broker 1 leads.
        await turns.send(b"0", key_of(1, 2))
        await until(lambda: any(turns.cluster.waiting.values()))
        ((node_id, ((request, answer),)),) = turns.cluster.waiting.items()
        turns.cluster.waiting.clear()
        answer.set_result(refusal_of(request))
        await until(lambda: len(asked) > 1)
        assert node_id == 1 and set(asked) == {1}, "again and again, until it says something newer"
        assert turns.sender.turning.topics[NAME].is_turning
        turns.leaders.resize_epoch = 1
        await turns.show(resize_epoch=1)
        await until(lambda: any(turns.cluster.waiting.values()))
        assert not turns.sender.turning.topics[NAME].is_turning
        await turns.end()

    story(of)


def test_at_the_end_of_a_turn_queues_of_former_incarnations_are_let_go_when_they_are_empty() -> (
    None
):
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        sender, partitions = turns.sender, turns.topic.partitions
        epochs = sender.topics.epochs_of(turns.topic)
        # By partition and epoch: 0 goes on, 1 is created again, 2 was removed, -1: not ordered.
        lives = [(0, 0), (1, 1), (2, 2), (0, -1), (1, 5)]
        for index, epoch in lives:
            sender.queues.get(TopicPartition(NAME, index), epoch)
        # Its batch may be in the log: it has its numbers, and stays until it has an outcome.
        waits = sender.queues.get(TopicPartition(NAME, 1), 8)
        batch = waits.open(stamp=Stamp(UUID(int=9), 2, 0))
        batch.builder.append(0, b"k", b"v", [])
        assert waits.next(ONE) is batch
        waits.sent(batch)
        waits.answered(batch, BatchResult(ConnectionLost("gone")))
        sender.queues.get(TopicPartition("other", 1), 8)
        reborn = replace(partitions[1], partition_epoch=6)
        await turns.show(partitions={**partitions, 1: reborn}, resize_epoch=1)
        left = {(*queue.partition, queue.partition_epoch) for queue in sender.queues}
        assert left == {(NAME, 0, 0), (NAME, 1, 8), ("other", 1, 8)}
        assert epochs.queues == {}
        waits.waiting.clear()

    story(of)


class Chosen(random.Random):
    """Chooses the last one, or what ``pick`` chooses."""

    pick = max

    def choice(self, seq: Any) -> Any:
        return self.pick(seq)


def test_after_a_turn_records_without_a_key_go_to_a_partition_that_is_chosen_again() -> None:
    async def of() -> None:
        turns = Turns(Chosen(), linger_ms=LATER_MS)
        await turns.send(b"0")
        assert turns.waiting() == {1: [b"0"]}
        await turns.grow()
        assert turns.waiting() == {3: [b"0"]}
        await turns.send(b"1")
        assert turns.waiting() == {3: [b"0", b"1"]}
        await turns.end()

    story(of)


def test_a_full_batch_without_keys_lets_another_partition_be_chosen() -> None:
    async def of() -> None:
        chance = Chosen()
        turns = Turns(chance, linger_ms=LATER_MS, batch_bytes=200)
        await turns.send(b"0" * 100)
        chance.pick = min
        await turns.send(b"1" * 100)
        await turns.send(b"2" * 10)
        assert turns.waiting() == {1: [b"0" * 100, b"1" * 100], 0: [b"2" * 10]}
        await turns.end()

    story(of)


def test_records_that_were_held_do_not_linger() -> None:
    """They have waited."""

    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        epochs = turns.sender.topics.epochs_of(turns.topic)
        await turns.send(b"lingers", b"k")
        times = turns.sender.delivery.times
        (lingers,) = (times.due(batch) for queue in turns.sender.queues for batch in queue.waiting)
        assert lingers - now() > LATER_MS / 1000 - 30
        epochs.is_turning, epochs.refused = True, stamp_of(turns.topic)
        await turns.send(b"held", b"k")
        await turns.grow()
        waiting = [batch for queue in turns.sender.queues for batch in queue.waiting]
        assert waiting and all(0.0 < times.due(batch) <= now() for batch in waiting)
        await until(lambda: any(turns.cluster.waiting.values()))
        await turns.end()

    story(of)


def test_the_memory_of_a_batch_is_shared_out_to_the_byte() -> None:
    queue = SendQueue(TopicPartition(NAME, 0), 5, idempotent=True)
    batch = queue.open(tally=SendTally())
    for number in range(3):
        batch.builder.append(number, b"k", b"v%d" % number, [])
    batch.size = 101
    held = records_of(batch, 7.0)
    assert [record.size for record in held] == [35, 33, 33]
    assert {record.deadline for record in held} == {7.0}
    assert [record.record.value for record in held] == [b"v0", b"v1", b"v2"]


def test_what_was_held_is_hashed_in_the_order_of_send() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        epochs = turns.sender.topics.epochs_of(turns.topic)
        epochs.is_turning, epochs.refused = True, stamp_of(turns.topic)
        ((a,), (b,), (c,)) = (turns.sender.queues.next_number() for _ in range(3))
        for number in ((c,), (a,), (b, 1), (b, 0)):
            record = NewRecord(0, b"k", str(number).encode(), [])
            hold(turns, epochs, HeldRecord(number, record, 10, now() + 300))
        await turns.grow()
        (values,) = turns.waiting().values()
        assert values == [str(each).encode() for each in ((a,), (b, 0), (b, 1), (c,))]
        await turns.end()

    story(of)


def test_a_broker_that_knows_nothing_newer_is_asked_again_after_a_while() -> None:
    class Asked(ResizingCluster):
        nodes: list[int]

        async def describe(self, _: Any, *, first: int) -> None:
            self.nodes.append(first)

    async def of() -> None:
        turns = Turns(linger_ms=0)
        turns.cluster.settings = replace(turns.cluster.settings, backoff=steady(10_000, 40_000))
        turns.cluster.__class__ = Asked
        asked = turns.cluster.nodes = []  # type: ignore[attr-defined]
        await turns.send(b"0", b"k")
        await until(lambda: any(turns.cluster.waiting.values()))
        ((_, ((request, answer),)),) = turns.cluster.waiting.items()
        turns.cluster.waiting.clear()
        answer.set_result(refusal_of(request))
        await until(lambda: asked)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(asked) == 1
        await turns.end()

    story(of)


def test_while_metadata_are_newer_no_broker_is_asked() -> None:
    """The turn waits for the outcome of a batch then, and not for metadata."""

    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        epochs = turns.sender.topics.epochs_of(turns.topic)
        epochs.is_turning, epochs.refused = True, stamp_of(turns.topic)
        queue = turns.sender.queues.get(TopicPartition(NAME, 0), 0)
        batch = queue.open(stamp=epochs.stamp)
        batch.builder.append(0, b"k", b"v", [])
        assert queue.next(ONE) is batch
        queue.sent(batch)
        await turns.grow()
        assert epochs.is_turning
        assert turns.sender.delivery.work.task(("resized", NAME)) is None
        queue.answered(batch, BatchResult(None, 0))
        turns.sender.delivery.drain()
        assert not epochs.is_turning
        await turns.sender.close()

    story(of)


def test_metadata_that_do_not_know_the_topic_begin_no_turn() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        await turns.send(b"0", key_of(1, 2))
        epochs, seen = turns.sender.turning.topics[NAME], turns.topic
        await turns.show(error=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), partitions={})
        assert not epochs.is_turning and epochs.seen is seen
        assert turns.waiting() == {1: [b"0"]}
        await turns.end()

    story(of)


def test_records_of_two_tallies_are_in_two_batches() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        epochs = turns.sender.topics.epochs_of(turns.topic)
        record = NewRecord(0, b"k", b"v", [])
        first, second = SendTally(), SendTally()
        batches = [
            turns.sender.turning.append(epochs, 0, record, tally=tally)[0]
            for tally in (first, first, second, None)
        ]
        assert batches[0] is batches[1] and len(set(map(id, batches))) == 3
        await turns.end()

    story(of)


def test_what_was_written_to_a_partition_with_ancestors_is_noted() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        await turns.grow()
        turns.sender.topics.epochs_of(turns.topic)
        noted: list[int] = []
        turns.sender.tombstones.note = lambda where, *_: noted.append(where.partition)  # type: ignore[assignment, method-assign, func-returns-value]
        for index in range(4):
            queue = turns.sender.queues.get(TopicPartition(NAME, index), index)
            batch = queue.open(stamp=stamp_of(turns.topic))
            batch.builder.append(0, b"k", None, [])
            turns.sender.topics.acknowledged(queue, batch)
            queue.waiting.clear()
        assert noted == [2, 3]
        await turns.sender.close()

    story(of)
