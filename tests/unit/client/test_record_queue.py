"""Records at hand: order, limits, pauses, positions, and records that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.client.errors import RecordUnreadable
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.consumer_record import ConsumerRecord, decoded
from tidelog.client.fetching.record_queue import QueuePlace, RecordQueue
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.reader import FastReader

A, B = TopicPartition("a", 0), TopicPartition("b", 3)


def batch(first: int, *values: bytes | None, epoch: int = 4) -> bytes:
    records = [NewRecord(1_000 + place, b"k", each) for place, each in enumerate(values)]
    return build_batch(records, base_offset=first, leader_epoch=epoch)


def piece(where: TopicPartition, offset: int, *batches: bytes, end: int) -> Fetched:
    records = memoryview(b"".join(batches))
    return Fetched(where, offset, end, records, end, end, 0, None, 4)


def queue_of(*pieces: Fetched, **options: Any) -> RecordQueue:
    queue = RecordQueue(lambda fetched: decoded(fetched, FastReader(), **options))
    queue.add(pieces)
    return queue


def values(found: dict[TopicPartition, list[ConsumerRecord]]) -> dict[TopicPartition, list[Any]]:
    return {where: [each.value for each in records] for where, records in found.items()}


def test_records_come_in_order_up_to_the_limit_with_positions_between() -> None:
    queue = queue_of(
        piece(A, 0, batch(0, b"0", b"1"), batch(2, b"2"), end=3), piece(B, 5, batch(5, b"5"), end=6)
    )
    assert queue.positions() == {A: QueuePlace(0), B: QueuePlace(5)}
    assert values(queue.take(1)) == {A: [b"0"]}
    assert queue.positions() == {A: QueuePlace(1, 4), B: QueuePlace(5)}
    assert values(queue.take(9)) == {A: [b"1", b"2"], B: [b"5"]}
    assert queue.positions() == {} and not queue.has()
    assert queue.epoch_before(A, 3) == 4 and queue.epoch_before(A, 2) == -1


def test_positions_between_two_batches_and_two_pieces_are_after_what_was_returned() -> None:
    queue = queue_of(
        piece(A, 0, batch(0, b"0", b"1"), batch(4, b"4"), end=5), piece(A, 5, batch(5, b"5"), end=6)
    )
    assert values(queue.take(2)) == {A: [b"0", b"1"]}
    assert queue.epoch_before(A, 2) == 4 and queue.epoch_before(A, 1) == -1
    assert queue.positions() == {A: QueuePlace(2, 4)}, "not 4: what is left out there may come yet"
    assert values(queue.take(1)) == {A: [b"4"]}
    assert queue.positions() == {A: QueuePlace(5)}


def test_a_record_has_what_the_wire_says() -> None:
    queue = queue_of(piece(B, 5, batch(5, b"five", None), end=7))
    first, second = queue.take(2)[B]
    assert (first.topic, first.partition, first.offset, first.timestamp) == ("b", 3, 5, 1_000)
    assert (first.key, first.value, first.headers, first.leader_epoch) == (b"k", b"five", (), 4)
    assert (first.serialized_key_size, first.serialized_value_size) == (1, 4)
    assert (second.value, second.serialized_value_size) == (None, -1)


def test_records_below_the_position_are_skipped() -> None:
    queue = queue_of(piece(A, 1, batch(0, b"0", b"1", b"2"), end=3))
    assert values(queue.take(9)) == {A: [b"1", b"2"]}


def test_one_at_a_time() -> None:
    queue = queue_of(piece(A, 0, batch(0, b"0", b"1"), end=2))
    taken = [queue.take_one(), queue.take_one(), queue.take_one()]
    assert [None if each is None else each.value for each in taken] == [b"0", b"1", None]
    assert queue.epoch_before(A, 2) == 4


def test_paused_and_unwanted_partitions_stay_in_order() -> None:
    queue = queue_of(
        piece(A, 0, batch(0, b"0"), end=1),
        piece(B, 0, batch(0, b"x"), end=1),
        piece(A, 1, batch(1, b"1"), end=2),
    )
    queue.paused = {A}
    assert queue.has([B]) and not queue.has([A])
    assert values(queue.take(9)) == {B: [b"x"]}
    assert queue.take_one() is None
    queue.paused = set()
    assert values(queue.take(9, [B])) == {}
    assert values(queue.take(9, [A])) == {A: [b"0", b"1"]}


def test_dropped_partitions_are_gone() -> None:
    queue = queue_of(piece(A, 0, batch(0, b"0"), end=1), piece(B, 0, batch(0, b"x"), end=1))
    queue.drop([A])
    assert values(queue.take(9)) == {B: [b"x"]}
    queue.add([piece(A, 0, batch(0, b"0"), end=1)])
    queue.drop()
    assert not len(queue)


def test_a_deserializer_that_raises_stops_its_partition_at_the_record() -> None:
    def read(data: bytes) -> int:
        return int(data)

    queue = queue_of(
        piece(A, 0, batch(0, b"0", b"no", b"2"), end=3),
        piece(B, 0, batch(0, b"7"), end=1),
        value=read,
    )
    assert values(queue.take(9)) == {A: [0], B: [7]}
    assert queue.has() and queue.has([A]) and not queue.has([B]), "its error is to be raised"
    for _ in range(2):
        with pytest.raises(RecordUnreadable, match=r"a-0 at offset 1.*deserializer"):
            queue.take(9)
    assert queue.positions() == {A: QueuePlace(1, 4)}


def test_of_two_unreadable_records_the_first_one_is_the_error() -> None:
    queue = queue_of(
        piece(A, 0, batch(0, b"no"), end=1), piece(B, 0, batch(0, b"no"), end=1), value=int
    )
    with pytest.raises(RecordUnreadable, match="a-0 at offset 0"):
        queue.take(9)


def test_what_is_decoded_of_a_paused_partition_is_not_taken() -> None:
    queue = queue_of(piece(A, 0, batch(0, b"0", b"1"), end=2))
    assert queue.take_one() is not None
    queue.paused = {A}
    assert queue.take_one() is None and not queue.has()
    queue.paused = set()
    assert queue.take_one() is not None


def test_deserializers_get_keys_and_values_and_no_null() -> None:
    queue = queue_of(
        piece(A, 0, batch(0, b"0", None), end=2),
        key=lambda data: ("key", data),
        value=lambda data: ("value", data),
    )
    first, second = queue.take(2)[A]
    assert (first.key, first.value) == (("key", b"k"), ("value", b"0"))
    assert second.value is None and second.serialized_value_size == -1
    no_key = build_batch([NewRecord(1, None, b"x")], base_offset=0, leader_epoch=4)
    (record,) = queue_of(piece(A, 0, no_key, end=1), key=len).take(1)[A]
    assert record.key is None


def test_a_damaged_batch_is_an_error_unless_it_is_not_checked() -> None:
    data = bytearray(batch(0, b"value"))
    data[-2] ^= 1
    with pytest.raises(RecordUnreadable, match="wrong CRC"):
        queue_of(piece(A, 0, bytes(data), end=1)).take(1)
    with pytest.raises(RecordUnreadable) as raised:
        queue_of(piece(A, 7, batch(7, b"7") + bytes(data), end=9)).take_one()
        queue_of(piece(A, 7, bytes(data), end=9)).take(1)
    assert raised.value.offset == 7
    unchecked = queue_of(piece(A, 0, bytes(data), end=1), check_crcs=False)
    assert len(unchecked.take(1)[A]) == 1
