"""An audit's comparison of lake and log, over Arrow batches that are made here."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tidelog.partitioning.audit_rules import TopicCounts
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.pipeline.audit.comparing import ComparisonCounts, compare
from tidelog.pipeline.audit.homes import away_from_home, hashes_of
from tidelog.pipeline.audit.lake_side import CONTENT
from tidelog.pipeline.schema import arrow_schema

SCHEMA = arrow_schema(CONTENT)
EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

Row = dict[str, object]


def row(offset: int, **more: object) -> Row:
    made: Row = {
        "key": b"k%d" % (offset % 3),
        "value": b"v%d" % offset,
        "offset": offset,
        "timestamp": EPOCH,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}] if offset % 2 else None,
        "epoch": 0,
    }
    return {**made, **more}


def batches(rows: Sequence[Row], size: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(list(rows[at : at + size]), schema=SCHEMA)


def in_lake(rows: Sequence[Row]) -> list[Row]:
    """As the archive writes them: no headers are an empty list."""
    return [{**each, "headers": each["headers"] or []} for each in rows]


def compared(
    lake: Sequence[Row], log: Sequence[Row], lake_size: int = 3, log_size: int = 4
) -> ComparisonCounts:
    return compare(batches(in_lake(lake), lake_size), batches(log, log_size))


def found(counts: ComparisonCounts) -> dict[str, object]:
    return {
        "log": counts.log_rows,
        "matched": counts.matched,
        "differing": counts.differing,
        "missing": (counts.missing, counts.missing_first, counts.missing_last),
        "unmatched": [each for part in counts.unmatched or () for each in part.tolist()],
    }


@pytest.mark.parametrize("sizes", [(1, 1), (3, 4), (4, 3), (100, 7), (7, 100)])
def test_equal_records_are_found_equal_however_they_are_cut(sizes: tuple[int, int]) -> None:
    rows = [row(offset) for offset in range(5, 25)]
    assert found(compared(rows, rows, *sizes)) == {
        "log": 20,
        "matched": 20,
        "differing": 0,
        "missing": (0, -1, -1),
        "unmatched": [],
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"key": None},
        {"key": b""},
        {"value": None},
        {"value": b"v7 "},
        {"timestamp": EPOCH + datetime.timedelta(milliseconds=1)},
        {"timestampType": 1},
        {"epoch": 1},
        {"headers": []},
        {"headers": [{"key": "h", "value": None}]},
        {"headers": [{"key": "H", "value": b"1"}]},
        {"headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": b"1"}]},
    ],
)
def test_one_record_that_differs(changed: Row) -> None:
    log = [row(offset) for offset in range(10)]
    lake = [*log[:7], {**log[7], **changed}, *log[8:]]
    counts = compared(lake, log)
    assert (counts.differing, counts.matched, counts.missing) == (1, 10, 0)


def test_null_and_empty_headers_are_the_same_and_null_and_empty_values_are_not() -> None:
    log = [row(0, headers=None, value=None), row(1, headers=None, value=b"")]
    assert compared(log, log).differing == 0
    assert compared([log[0], {**log[1], "value": None}], log).differing == 1
    # All nulls on one side alone.
    assert compared([{**each, "value": b""} for each in log], log).differing == 1


def test_holes_doubles_and_what_only_one_side_has() -> None:
    log = [row(offset) for offset in (2, 3, 5, 6, 9, 10, 11)]
    lake = [row(offset) for offset in (0, 1, 3, 3, 4, 5, 9, 11, 11, 12, 13)]
    assert found(compared(lake, log)) == {
        "log": 7,
        "matched": 4,
        "differing": 0,
        "missing": (3, 2, 10),
        "unmatched": [0, 1, 4, 12, 13],
    }
    counts = compared(lake, log)
    assert [counts.unmatched_from(start) for start in (0, 4, 13, 14)] == [5, 3, 1, 0]


def test_one_side_is_empty() -> None:
    rows = [row(offset) for offset in range(4)]
    assert found(compared([], rows))["missing"] == (4, 0, 3)
    assert found(compared(rows, []))["unmatched"] == [0, 1, 2, 3]


def test_it_agrees_with_a_comparison_by_dictionaries() -> None:
    rng = random.Random(12)
    for _ in range(200):
        log = [row(offset) for offset in sorted(rng.sample(range(40), rng.randrange(25)))]
        kept = [each for each in log if rng.random() < 0.8]
        changed = [{**each, "value": b"x"} if rng.random() < 0.2 else each for each in kept]
        more = [row(offset) for offset in rng.sample(range(45), rng.randrange(4))]
        lake = sorted([*changed, *more], key=lambda each: int(str(each["offset"])))
        counts = compared(lake, log, rng.randrange(1, 9), rng.randrange(1, 9))
        first = {}
        for each in lake:
            first.setdefault(each["offset"], each)
        theirs = {each["offset"]: each for each in log}
        assert counts.missing == len(set(theirs) - set(first))
        assert counts.unmatched_rows == len(set(first) - set(theirs))
        assert counts.differing == sum(
            first[offset]["value"] != theirs[offset]["value"] for offset in set(first) & set(theirs)
        )


def test_keys_are_hashed_as_the_partitioner_does() -> None:
    rng = random.Random(3)
    keys = [rng.randbytes(rng.randrange(23)) for _ in range(300)] + [b""]
    column = pa.array([b"in front", *keys], pa.binary()).slice(1)
    assert hashes_of(column).tolist() == [hash_of_key(key) for key in keys]
    assert hashes_of(pa.array([], pa.binary())).tolist() == []


def test_keys_away_from_home() -> None:
    keys = [b"key-%d" % n for n in range(50)]
    column = pa.array([*keys, None], pa.binary())
    away = away_from_home(column, 1, (4, 4))
    wanted = [partition_of(hash_of_key(key), 4, 4) != 1 for key in keys]
    assert away.tolist() == [*wanted, False]
    # The topic had four partitions once and has six now: both put keys into partition 1.
    both = away_from_home(column, 1, (4, 6))
    assert both.sum() < np.array(wanted).sum()
    assert not (both & ~away).any()


def test_a_key_of_a_resized_topic_has_its_home_at_the_count_of_its_epoch() -> None:
    """2 -> 5 -> 3: five partitions are no multiple of two by a power of two."""
    resized = TopicCounts(2, {1: (5,), 2: (3,), 3: (3, 4), 4: ()})
    keys = [b"key-%d" % n for n in range(200)]
    column = pa.array(keys, pa.binary())

    def away(partition: int, epoch: int) -> list[bool]:
        epochs = pa.array([epoch] * len(keys), pa.int32())
        return away_from_home(column, partition, (2, 5), epochs, resized).tolist()

    for epoch, count in ((0, 2), (1, 5), (2, 3)):
        for partition in range(5):
            homes = [partition_of(hash_of_key(key), 2, count) for key in keys]
            assert away(partition, epoch) == [home != partition for home in homes], (epoch, count)
    assert not any(away(4, 7)), "nothing is known of the count of that epoch"
    for partition in range(5):
        hashes = [hash_of_key(key) for key in keys]
        nowhere = [partition not in {partition_of(x, 2, 3), partition_of(x, 2, 4)} for x in hashes]
        assert away(partition, 3) == nowhere, "a growth that may have been undone"
    assert not any(away(1, 4)), "no order was promised"
    later = TopicCounts.of(2, {1: 2, 2: 4}, births={2})
    unordered = away_from_home(column, 1, (2, 4), pa.array([0] * 200, pa.int32()), later)
    assert not unordered.any(), "ordered delivery was switched on in epoch 1"
    mixed = pa.array([0, 1] * 100, pa.int32())
    both = away_from_home(column, 1, (2, 5), mixed, resized).tolist()
    assert both == [
        one if n % 2 else zero
        for n, (zero, one) in enumerate(zip(away(1, 0), away(1, 1), strict=True))
    ]


def test_counts_start_empty() -> None:
    assert replace(ComparisonCounts()).unmatched_from(0) == 0
