"""Lag of a group without the control records among what it has not read."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from tidelog.client.groups.lag import data_begin, has_children, lag_without
from tidelog.client.metadata import Partition, Topic
from tidelog.records.batch import assign
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.control_records import AncestorTombstone, change_batch


@pytest.mark.parametrize(
    ("span", "controls", "expected"),
    [
        ((5, 5), [], 0),
        ((5, 9), [], 4),
        ((5, 9), [4, 9], 4),
        ((5, 9), [5, 8], 2),
        ((5, 6), [5], 0),
        ((9, 5), [], 0),
    ],
)
def test_fences_in_the_unread_part_are_no_lag(
    span: tuple[int, int], controls: Sequence[int], expected: int
) -> None:
    assert lag_without(span, controls) == expected


@pytest.mark.parametrize(("partition", "expected"), [(0, True), (1, True), (2, False), (3, False)])
def test_only_a_partition_that_was_split_has_tombstones_of_its_children(
    partition: int, expected: bool
) -> None:
    listed = {index: Partition(index, 1, 0, (1,), (1,), ()) for index in range(4)}
    topic = Topic("t", UUID(int=1), False, listed, 0, 2, 4, 1)
    assert has_children(topic, partition) is expected


def test_a_topic_without_counts_has_no_children() -> None:
    listed = {0: Partition(0, 1, 0, (1,), (1,), ())}
    assert not has_children(Topic("t", UUID(int=1), False, listed), 0)


def control(offset: int) -> bytes:
    made = bytearray(change_batch(AncestorTombstone(b"k"), leader_epoch=0, timestamp_ms=1))
    assign(made, offset, 0)
    return bytes(made)


def data(offset: int, count: int = 2) -> bytes:
    return build_batch([NewRecord(1, b"k", b"v")] * count, base_offset=offset)


@pytest.mark.parametrize(
    ("batches", "start", "expected"),
    [
        ([], 7, (7, False)),
        ([control(7), control(8)], 7, (9, False)),
        # Compaction leaves gaps.
        ([control(7), control(10), data(12)], 7, (12, True)),
        ([data(7)], 7, (7, True)),
        # A position in the middle of a batch.
        ([data(6)], 7, (7, True)),
        ([control(7), control(8)[:-1]], 7, (8, False)),
    ],
)
def test_data_begin_after_the_control_records_in_front(
    batches: Sequence[bytes], start: int, expected: tuple[int, bool]
) -> None:
    assert data_begin(b"".join(batches), start) == expected
