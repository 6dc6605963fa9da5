"""One partition that does not answer, and a resize: only records that may have its keys wait."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.network_server import until
from tests.support.resizing_leaders import NAME
from tests.support.stories import story
from tests.support.turns import LATER_MS, Turns, key_of, refusal_of
from tidelog.client.producing.send_queue import SendQueue, SendTally
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.builder import Columns
from tidelog.records.reader import read_batch

Waiting = tuple[messages.ProduceRequest, asyncio.Future[Any]]


class Stuck(Turns):
    """A topic of two or more partitions; each partition has a record that is on its way."""

    def taken(self) -> dict[int, Waiting]:
        """Take the requests that wait for an answer, by partition."""
        found: dict[int, Waiting] = {}
        for waiting in self.cluster.waiting.values():
            for request, answer in waiting:
                for part in request.topic_data[0].partition_data:
                    found[part.index] = request, answer
            waiting.clear()
        return found

    def values(self) -> dict[int, list[bytes | None]]:
        """What is on its way or waits to be sent, by partition."""
        found: dict[int, list[bytes | None]] = {}
        for queue in self.sender.queues:
            for batch in (*queue.in_flight, *queue.waiting):
                values = [record.value for record in read_batch(batch.encode())]
                found.setdefault(queue.partition.partition, []).extend(values)
        return found

    async def on_its_way(self, partition: int) -> Waiting:
        """Send a record to a partition, and return its request: nothing answers it."""
        count = self.topic.count
        await self.send(b"stuck", key_of(partition, count))
        await until(lambda: any(self.cluster.waiting.values()))
        return self.taken()[partition]

    async def send_to_all(self, count: int) -> None:
        """Send a record with a key of each partition."""
        for place in range(count):
            await self.send(b"%d" % place, key_of(place, count))

    @property
    def shut(self) -> list[int]:
        """The partitions for which records are held."""
        return sorted(self.sender.turning.topics[NAME].gated)


def acknowledged(request: messages.ProduceRequest) -> messages.ProduceResponse:
    return refusal_of(request, 0)  # type: ignore[arg-type]


def test_after_a_growth_only_the_line_of_the_stuck_partition_waits() -> None:
    """Every record of the topic waited: 28 s for all keys where one leader was frozen."""

    async def of() -> None:
        turns = Stuck(linger_ms=0)
        request, answer = await turns.on_its_way(0)
        await turns.grow()
        await turns.grow()
        await turns.send_to_all(8)
        assert turns.shut == [0, 2, 4, 6]
        sent = turns.values()
        assert {1: [b"1"], 3: [b"3"], 5: [b"5"], 7: [b"7"]}.items() <= sent.items()
        answer.set_result(acknowledged(request))
        await until(lambda: not turns.shut)
        assert set(turns.values()) == set(range(8))
        assert not turns.sender.turning.topics[NAME].is_turning
        await turns.end()

    story(of)


def test_after_a_shrink_the_survivor_waits_for_the_stuck_retiree() -> None:
    async def of() -> None:
        turns = Stuck(linger_ms=0)
        await turns.grow()
        await turns.grow()
        request, answer = await turns.on_its_way(6)
        listed = dict(turns.topic.partitions)
        for place in range(4, 8):
            listed[place] = replace(listed[place], retirement_epoch=3)
        await turns.show(partitions=listed, undeleted_partition_count=4, resize_epoch=3)
        await turns.send_to_all(4)
        assert turns.shut == [2]
        # It is certainly not in the log: it goes first.
        answer.set_result(refusal_of(request))
        await until(lambda: not turns.shut)
        assert turns.values()[2] == [b"stuck", b"2"]
        await turns.end()

    story(of)


def test_after_an_undo_the_stuck_partition_waits_alone() -> None:
    async def of() -> None:
        turns = Stuck(linger_ms=0)
        await turns.grow()
        await turns.on_its_way(1)
        await turns.show(resize_epoch=turns.topic.resize_epoch + 2)
        await turns.send_to_all(4)
        assert turns.shut == [1]
        await turns.end()

    story(of)


def test_a_partition_that_was_named_holds_up_itself_alone() -> None:
    async def of() -> None:
        turns = Stuck(linger_ms=0)
        turns.sent.append(await turns.sender.send(NAME, b"named", b"k", partition=0))
        await until(lambda: any(turns.cluster.waiting.values()))
        turns.taken()
        await turns.grow()
        await turns.send_to_all(4)
        assert turns.shut == [0]
        await turns.end()

    story(of)


def test_a_topic_without_order_waits_for_nothing() -> None:
    async def of() -> None:
        turns = Stuck(linger_ms=0)
        await turns.show(undeleted_partition_count=-1)
        await turns.on_its_way(0)
        epochs = turns.sender.turning.topics[NAME]
        grown = Stuck()
        await grown.grow()
        await turns.show(partitions=grown.topic.partitions, max_partition_epoch=3)
        await turns.send_to_all(4)
        assert turns.values().keys() == {0, 1, 2, 3}
        assert not epochs.is_turning and not turns.shut
        await turns.end()

    story(of)


def test_each_older_epoch_holds_up_its_own_line() -> None:
    async def of() -> None:
        turns = Stuck(linger_ms=0)
        first = await turns.on_its_way(0)
        await turns.grow()
        second = await turns.on_its_way(3)
        await turns.grow()
        await turns.send_to_all(8)
        assert turns.shut == [0, 2, 3, 4, 6, 7]
        second[1].set_result(acknowledged(second[0]))
        await until(lambda: turns.shut == [0, 2, 4, 6])
        first[1].set_result(acknowledged(first[0]))
        await until(lambda: not turns.shut)
        await turns.end()

    story(of)


@pytest.mark.parametrize("seed", range(5))
def test_records_without_a_key_go_where_nothing_is_stuck(seed: int) -> None:
    async def of() -> None:
        turns = Stuck(random.Random(seed), linger_ms=0)
        await turns.on_its_way(0)
        await turns.grow()
        for _ in range(20):
            await turns.send(b"keyless")
            turns.sender.chooser.batch_filled(NAME)
        assert turns.shut == []
        assert set(turns.values()) <= {0, 1, 3}
        await turns.end()

    story(of)


@pytest.mark.parametrize("keys", [True, False])
def test_columns_of_records_wait_where_their_keys_do(keys: bool) -> None:
    async def of() -> None:
        turns = Stuck(linger_ms=0)
        await turns.on_its_way(0)
        await turns.grow()
        tally = SendTally()
        some = [key_of(place, 4) for place in (0, 1, 2, 3, 2, 1)]
        records = Columns([b"%d" % n for n in range(6)], some if keys else None)
        await turns.bulk.send_many(NAME, records, tally)
        assert tally.taken == 6
        assert turns.shut == ([0, 2] if keys else [])
        held = [record.record.value for record in turns.sender.turning.topics[NAME].all_held()]
        assert sorted(map(str, held)) == (["b'0'", "b'2'", "b'4'"] if keys else [])
        assert all(
            record.partition is None for record in turns.sender.turning.topics[NAME].all_held()
        )
        named = SendTally()
        await turns.bulk.send_many(NAME, Columns([b"7"]), named, partition=2)
        assert named.taken == 1 and 2 in turns.shut
        await turns.end()

    story(of)


def test_a_flush_waits_for_what_came_late_to_a_partition() -> None:
    """A record that was taken back comes after later ones where it is hashed now."""
    queue = SendQueue(TopicPartition(NAME, 0), 5, idempotent=True)
    later = queue.open()
    late = queue.open(held=(0,))
    assert later.number < late.number, "sequence numbers follow the order of the queue"
    assert queue.has_before((1,)) and not queue.has_before((0,))
    queue.waiting.remove(late)
    late.done = True
    assert not queue.has_before((1,))


def test_the_memory_of_what_is_stuck_is_shared_by_all() -> None:
    """As Kafka's ``buffer.memory``; the error says what waits."""

    async def of() -> None:
        turns = Stuck(linger_ms=0, buffer_bytes=600, max_block_ms=20)
        await turns.on_its_way(0)
        await turns.grow()
        await turns.send(b"x" * 200, key_of(2, 4))
        with pytest.raises(Exception, match="wait for the end of a resize"):
            await turns.send(b"y" * 200, key_of(1, 4))
        await turns.end()

    story(of)


def test_one_record_of_a_stuck_partition_costs_the_others_no_linger() -> None:
    """Those that go while the topic turns are batched as always."""

    async def of() -> None:
        turns = Stuck(linger_ms=0)
        await turns.on_its_way(0)
        turns.sender.delivery.settings = replace(turns.sender.settings, linger_ms=LATER_MS)
        await turns.grow()
        for number in range(3):
            await turns.send(b"%d" % number, key_of(1, 4))
        assert turns.waiting() == {1: [b"0", b"1", b"2"]}
        (queue,) = (q for q in turns.sender.queues if q.partition.partition == 1)
        assert len(queue.waiting) == 1
        await turns.end()

    story(of)
