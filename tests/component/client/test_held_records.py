"""Records that are held while their topic is resized: their deadlines, and where they go then."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from uuid import UUID

from tests.support.network_server import until
from tests.support.resizing_leaders import NAME, ResizingCluster
from tests.support.turns import LATER_MS, ONE, Turns, key_of, now, refusal_of, story
from tidelog.client.errors import ConnectionLost, GaveUp
from tidelog.client.producing.send_queue import BatchResult, SendQueue, SendTally
from tidelog.client.producing.turning import HeldRecord, records_of
from tidelog.client.stamps import Stamp, stamp_of
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord


def held_until(deadline: float) -> HeldRecord:
    return HeldRecord((1,), NewRecord(0, b"k", b"0", []), 10, deadline)


def test_the_timer_of_a_turn_is_that_of_the_earliest_deadline() -> None:
    """What a leader refuses in a turn was sent before, and expires before, what is held already."""

    async def of() -> None:
        turns = Turns()
        epochs = turns.sender._epochs_of(turns.topic)
        begun = now()
        turns.sender._hold(epochs, held_until(begun + 300))
        first = epochs.timer
        assert first is not None and first.when() == begun + 300
        turns.sender._hold(epochs, held_until(begun + 400))
        assert epochs.timer is first
        turns.sender._hold(epochs, held_until(begun + 200))
        assert first.cancelled()
        assert epochs.timer is not None and epochs.timer.when() == begun + 200
        turns.sender._fail_held(GaveUp("end"))
        assert epochs.timer is None

    story(of)


def test_after_each_expiry_the_timer_is_that_of_the_next_deadline() -> None:
    async def of() -> None:
        turns = Turns()
        epochs = turns.sender._epochs_of(turns.topic)
        begun = now()
        for after in (-1, 300, 200):
            turns.sender._hold(epochs, held_until(begun + after))
        turns.sender._expire_held(epochs)
        assert [each.deadline for each in epochs.held] == [begun + 300, begun + 200]
        assert epochs.timer is not None and epochs.timer.when() == begun + 200
        turns.sender._hold(epochs, held_until(begun + 100))
        assert epochs.timer.when() == begun + 100
        turns.sender._fail_held(GaveUp("end"))

    story(of)


def test_the_end_of_a_turn_ends_its_timer() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        epochs = turns.sender._epochs_of(turns.topic)
        epochs.is_turning, epochs.refused = True, stamp_of(turns.topic)
        await turns.send(b"0", b"k")
        timer = epochs.timer
        assert timer is not None and not timer.cancelled()
        await turns.grow()
        assert timer.cancelled() and epochs.timer is None and not epochs.held
        assert epochs.refused is None and not epochs.is_turning
        await turns.end()

    story(of)


def test_the_broker_that_refused_is_asked_for_metadata() -> None:
    """It knows the newer resize epoch; any other broker may not know it yet."""

    class Asked(ResizingCluster):
        nodes: list[int]

        async def describe(self, _: Any, *, node_id: int) -> None:
            self.nodes.append(node_id)
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
        assert turns.sender._topics[NAME].is_turning
        turns.leaders.resize_epoch = 1
        await turns.show(resize_epoch=1)
        await until(lambda: any(turns.cluster.waiting.values()))
        assert not turns.sender._topics[NAME].is_turning
        await turns.end()

    story(of)


def test_at_the_end_of_a_turn_queues_of_former_lives_are_let_go_when_they_are_empty() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        sender, partitions = turns.sender, turns.topic.partitions
        epochs = sender._epochs_of(turns.topic)
        # By partition and epoch: 0 goes on, 1 is created again, 2 was removed, -1: not ordered.
        lives = [(0, 0), (1, 1), (2, 2), (0, -1), (1, 5)]
        for index, epoch in lives:
            sender._queue(TopicPartition(NAME, index), epoch)
        # Its batch may be in the log: it has its numbers, and stays until it has an outcome.
        waits = sender._queue(TopicPartition(NAME, 1), 8)
        batch = waits.open(stamp=Stamp(UUID(int=9), 2, 0))
        batch.builder.append(0, b"k", b"v", [])
        assert waits.next(ONE) is batch
        waits.sent(batch, 1)
        waits.answered(batch, BatchResult(ConnectionLost("gone")))
        sender._queue(TopicPartition("other", 1), 8)
        reborn = replace(partitions[1], partition_epoch=6)
        await turns.show(partitions={**partitions, 1: reborn}, resize_epoch=1)
        left = {(where.topic, where.partition, epoch) for where, epoch in sender._queues}
        assert left == {(NAME, 0, 0), (NAME, 0, -1), (NAME, 1, 8), ("other", 1, 8)}
        assert epochs.queues == {}
        waits.waiting.clear()

    story(of)


class Last(random.Random):
    """Chooses the last one."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def test_after_a_turn_records_without_a_key_go_to_a_partition_that_is_chosen_again() -> None:
    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        turns.sender._chooser._random = Last()
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
        turns = Turns(linger_ms=LATER_MS, batch_bytes=200)
        turns.sender._chooser._random = Last()
        await turns.send(b"0" * 100)
        turns.sender._chooser._random = random.Random(0)
        turns.sender._chooser._random.choice = min  # type: ignore[assignment]
        await turns.send(b"1" * 100)
        await turns.send(b"2" * 10)
        assert turns.waiting() == {1: [b"0" * 100, b"1" * 100], 0: [b"2" * 10]}
        await turns.end()

    story(of)


def test_records_that_were_held_do_not_linger() -> None:
    """They have waited."""

    async def of() -> None:
        turns = Turns(linger_ms=LATER_MS)
        epochs = turns.sender._epochs_of(turns.topic)
        await turns.send(b"lingers", b"k")
        (lingers,) = turns.sender._due.values()
        assert lingers - now() > LATER_MS / 1000 - 30
        turns.sender._begin_turn(epochs)
        epochs.refused = stamp_of(turns.topic)
        await turns.send(b"held", b"k")
        await turns.grow()
        assert turns.sender._due and all(due <= now() for due in turns.sender._due.values())
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
