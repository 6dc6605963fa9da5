"""Offsets in columns: the bytes of their records, and which of them are in flight."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from tidelog.groups.offset_columns import (
    OffsetColumns,
    OffsetRecords,
    columns_of,
    one_by_one,
    payload_of,
)
from tidelog.groups.offsets_in_flight import OffsetsInFlight
from tidelog.groups.records import CommittedOffset, FirstSight, FirstSightRecord, encode
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord, build_batch, build_encoded

TOPIC_ID = UUID(int=7)
SEEDS = range(20)


def some(chance: random.Random, group: str, count: int) -> OffsetRecords:
    """Offsets of one topic: partitions, offsets and epochs of any size, perhaps with metadata."""
    texts = [chance.choice(("", "m", "ü" * 40)) for _ in range(count)]
    columns = OffsetColumns(
        "t" * chance.choice((1, 60, 249)),
        TOPIC_ID,
        [chance.randrange(2**31) for _ in range(count)],
        [chance.randrange(-1, 2**63) for _ in range(count)],
        [chance.randrange(-1, 2**31) for _ in range(count)],
        chance.choice((None, None, texts)),
    )
    return OffsetRecords(
        group, columns, chance.randrange(2**41), chance.choice((-1, -1, 2**63 - 1))
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_records_of_a_write_in_one_go_are_those_that_are_encoded_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    group = "g" * chance.choice((1, 70, 300))
    sight = FirstSightRecord(group, "t", FirstSight(TOPIC_ID, 0, -1))
    # The offset delta takes a byte more from 64, and is not kept from 1,024.
    counts = chance.choices((1, 2, 63, 64, 65, 130, 500, 600), k=3)
    written = [some(chance, group, counts[0]), sight, *(some(chance, group, n) for n in counts[1:])]
    slowly = [NewRecord(1_000, *encode(record)) for record in one_by_one(written)]
    payload, count = payload_of(written)
    assert count == len(slowly) == sum(counts) + 1
    assert build_encoded(payload, count, 1_000) == build_batch(slowly), f"seed {seed}"


def test_positions_become_columns_of_each_run_of_a_topic() -> None:
    other = UUID(int=8)
    positions = [
        (TopicPartition("t", 3), CommittedOffset(1, 2, topic_id=TOPIC_ID)),
        (TopicPartition("t", 1), CommittedOffset(3, -1, topic_id=TOPIC_ID)),
        (TopicPartition("u", 0), CommittedOffset(4, -1, "", topic_id=other)),
        (TopicPartition("u", 0), CommittedOffset(5, -1, "m", topic_id=other)),
        (TopicPartition("t", 3), CommittedOffset(6, -1, topic_id=TOPIC_ID)),
        (TopicPartition("t", 3), CommittedOffset(7, 0, topic_id=other)),
    ]
    assert columns_of(positions) == (
        OffsetColumns("t", TOPIC_ID, [3, 1], [1, 3], [2, -1]),
        OffsetColumns("u", other, [0, 0], [4, 5], [-1, -1], ["", "m"]),
        OffsetColumns("t", TOPIC_ID, [3], [6], [-1]),
        OffsetColumns("t", other, [3], [7], [0]),
    )
    assert columns_of([]) == ()


@pytest.mark.parametrize("texts", [None, ["", "a", "b"]])
def test_some_rows_of_columns(texts: list[str] | None) -> None:
    columns = OffsetColumns("t", TOPIC_ID, [5, 6, 7], [10, 20, 30], [1, 2, -1], texts)
    some_texts = None if texts is None else ["b", ""]
    expected = OffsetColumns("t", TOPIC_ID, [7, 5], [30, 10], [-1, 1], some_texts)
    assert columns.only([2, 0]) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_what_each_partition_has_in_flight_whenever_it_is_asked(seed: int) -> None:
    """Against a list of what was written and has not ended."""
    chance = random.Random(seed)
    flying = OffsetsInFlight()
    written: list[tuple[str, list[int], UUID]] = []
    for _ in range(300):
        if not written or chance.random() < 0.5:
            one = (
                chance.choice("tu"),
                [chance.randrange(5) for _ in range(chance.randrange(1, 6))],
                UUID(int=chance.randrange(3)),
            )
            written.append(one)
            flying.add(*one)
        else:
            oldest = chance.random() < 0.7
            topic, _, _ = written.pop(0 if oldest else -1)
            flying.end(topic, oldest=oldest)
        assert flying.count == sum(len(partitions) for _, partitions, _ in written)
        if chance.random() < 0.3:
            expected: dict[TopicPartition, list[UUID]] = {}
            for topic, partitions, topic_id in written:
                for partition in partitions:
                    expected.setdefault(TopicPartition(topic, partition), []).append(topic_id)
            assert flying.by_partition() == expected, f"seed {seed}"
