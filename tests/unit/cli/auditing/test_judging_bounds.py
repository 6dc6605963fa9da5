"""An audit at its bounds: ends within a batch, limits, clocks, and two homes in one epoch."""

from __future__ import annotations

import pytest

from tests.support.audited_logs import (
    BORN,
    INITIAL,
    MOVES,
    NONE,
    STAYS,
    grown,
    judged,
    key_of,
    topic_of,
    two,
)
from tidelog.cli.auditing.key_order import LastOfKeys, Remembered, TooManyKeys
from tidelog.cli.auditing.producer_order import ProducersOfPartition
from tidelog.cli.auditing.words import as_json, as_text, rows, verdict
from tidelog.partitioning.audit_rules import EXAMPLES, Kind
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.records.batch import BatchHeader, read_header
from tidelog.records.builder import NewRecord, Producer, build_batch

PRODUCER = Producer(7, 0, 0)
HALF = 2**30


# Where the reading begins and ends


def test_a_log_may_begin_within_a_batch() -> None:
    """DeleteRecords: what lies below is not judged, and no offset runs backwards."""
    logs = two()
    logs[0].add_all(key_of(1, 2), STAYS, STAYS)
    judge = judged(topic_of(*logs, bounds={0: (1, 3)}), *logs)
    assert judge.findings.counts == {}
    assert judge.partitions[0].records == 2


@pytest.mark.parametrize("end", [1, 2, 3])
def test_what_lies_above_the_end_is_not_judged(end: int) -> None:
    """The log has grown since the start of the audit; its end may lie within a batch."""
    logs = two()
    logs[0].add_all(STAYS, STAYS)
    logs[0].add(STAYS, producer=PRODUCER)
    logs[0].add(STAYS, producer=PRODUCER)
    judge = judged(topic_of(*logs, bounds={0: (0, end)}), *logs)
    assert judge.findings.counts == {}
    assert (judge.partitions[0].records, judge.partitions[0].aborted) == (end, 0)


@pytest.mark.parametrize(
    ("bounds", "audited"),
    [
        # The fence was written after the end was looked up.
        ((0, 1), (0, 1)),
        ((0, 2), (0, 2)),
        ((0, 5), (0, 2)),
        # Retention has removed what came before it.
        ((4, 5), (4, 4)),
    ],
)
def test_a_resize_that_is_not_published_ends_what_is_read(
    bounds: tuple[int, int], audited: tuple[int, int]
) -> None:
    logs = two()
    logs[0].add_all(STAYS, STAYS)
    logs[0].fence(1, 4)
    logs[0].add_all(MOVES, MOVES)
    found = topic_of(*logs, bounds={0: bounds}).partitions[0]
    assert (found.begin, found.end) == audited
    assert [span.resize_epoch for span in found.spans()] == [0] * (audited[0] < audited[1])


def test_a_fence_at_the_end_is_of_no_record_that_is_read() -> None:
    logs = two()
    logs[0].add(STAYS)
    logs[0].fence(1, 2)
    (kept,) = topic_of(*logs, epoch=1, bounds={0: (0, 2)}).partitions[0].fences
    assert kept.fence.offset == 1
    assert topic_of(*logs, epoch=1, bounds={0: (0, 1)}).partitions[0].fences == ()


def test_a_resize_that_is_not_published_says_nothing_of_the_epochs_before() -> None:
    """Its count is that of epoch 0: only a published one says that no order was promised then."""
    logs = two()
    logs[1].add(STAYS)
    for log in logs:
        log.fence(1, 2)
    assert judged(topic_of(*logs), *logs).findings.counts == {Kind.HOME: 1}


def test_offsets_that_retention_passed_are_never_fewer_than_none() -> None:
    """After an unclean election a reading may go back."""
    logs = two()
    judge = judged(topic_of(*logs), *logs)
    judge.skipped(0, 5, 3)
    assert judge.partitions[0].lost == 0
    judge.skipped(0, 3, 5)
    assert judge.partitions[0].lost == 2


def test_every_batch_below_the_highest_offset_runs_backwards() -> None:
    logs = two()
    for offset in (0, 5, 3, 4):
        logs[0].add(STAYS, offset=offset)
    judge = judged(topic_of(*logs), *logs)
    assert [each.offset for each in judge.findings.examples[Kind.OFFSET]] == [3, 4]


# Limits


def test_few_examples_of_each_kind_are_kept() -> None:
    logs = two()
    for _ in range(EXAMPLES + 3):
        logs[0].add(STAYS, producer=PRODUCER)
    audited = topic_of(*logs)
    judge = judged(audited, *logs)
    assert judge.findings.counts == {Kind.PRODUCER: EXAMPLES + 2}
    assert len(judge.findings.examples[Kind.PRODUCER]) == EXAMPLES
    assert verdict(audited, judge, None).startswith(f"FAULTS: {EXAMPLES + 2} found in ")


def test_as_many_keys_as_may_be_remembered() -> None:
    last = LastOfKeys(2)
    for key in (b"a", b"b", b"a"):
        last.step_back(key, Remembered(1, 0, 0, 0))
    assert len(last) == 2
    with pytest.raises(TooManyKeys):
        last.step_back(b"c", Remembered(1, 0, 0, 0))


def header_of(producer: int, sequence: int) -> BatchHeader:
    made = build_batch([NewRecord(1, b"k", b"v")], producer=Producer(producer, 0, sequence))
    return read_header(made)


def test_as_many_producers_as_may_be_remembered() -> None:
    producers = ProducersOfPartition(most=2)
    for producer, sequence in ((1, 0), (2, 0), (1, 1)):
        assert producers.step_back(header_of(producer, sequence)) is None
    with pytest.raises(TooManyKeys, match="more than 2 idempotent producers"):
        producers.step_back(header_of(3, 0))


@pytest.mark.parametrize(
    ("first", "is_back"),
    [(1, False), (HALF, False), (HALF + 1, True), (2**31 - 1, True), (0, True)],
)
def test_a_sequence_number_too_far_ahead_lies_before(first: int, is_back: bool) -> None:
    producers = ProducersOfPartition()
    producers.step_back(header_of(7, 0))
    assert (producers.step_back(header_of(7, first)) is not None) == is_back


# The order of keys


def test_two_partitions_of_one_epoch_have_no_order() -> None:
    last = LastOfKeys(9)
    assert last.step_back(b"k", Remembered(5, 0, 1, 0)) is None
    assert last.step_back(b"k", Remembered(4, 2, 1, 0)) is None
    before = last.step_back(b"k", Remembered(3, 2, 1, 1))
    assert before == Remembered(4, 2, 1, 0)
    assert last.step_back(b"k", Remembered(3, 2, 1, 2)) is None
    assert last.step_back(b"k", Remembered(2, 0, 2, 0)) == Remembered(3, 2, 1, 2)


def test_a_record_without_a_time_is_not_compared_and_one_of_1970_is() -> None:
    logs = two()
    for time_ms in (1000, -1, 1000, 0):
        logs[0].add(STAYS, time_ms=time_ms, producer=Producer(7, 0, logs[0].end))
    judge = judged(topic_of(*logs), *logs)
    (example,) = judge.findings.examples[Kind.TIMESTAMP]
    assert (example.offset, example.text) == (
        3,
        "created 1000 ms before partition 0 offset 2 by producer 7",
    )
    assert judge.timed == 3


def test_a_plain_producer_keeps_its_clock_over_its_epochs() -> None:
    """Only a transactional one may be another process then."""
    logs = two()
    logs[0].add(STAYS, time_ms=2000, producer=PRODUCER)
    logs[0].add(STAYS, time_ms=1000, producer=Producer(7, 1, 0))
    assert judged(topic_of(*logs), *logs).findings.counts == {Kind.TIMESTAMP: 1}


def test_the_verdict_says_how_many_records_were_compared_by_time() -> None:
    logs = two()
    for sequence in range(2):
        logs[0].add(STAYS, producer=Producer(7, 0, sequence))
    logs[0].add(STAYS)
    audited = topic_of(*logs)
    assert verdict(audited, judged(audited, *logs), None).endswith(
        "; 2 records in the order of their time"
    )


# Homes


def test_where_a_growth_may_have_been_undone_both_homes_are_named() -> None:
    logs = two()
    for log in logs:
        log.fence(1, 4)
    logs[1].add(MOVES)
    for log in logs:
        log.fence(2, 2)
    (example,) = judged(topic_of(*logs, epoch=2), *logs).findings.examples[Kind.HOME]
    assert example.text == "belongs in partition 0 or 2 in resize epoch 1"


def test_a_record_without_a_key_needs_no_order() -> None:
    logs = two()
    logs[1].add(STAYS)
    logs[1].add(None)
    for log in logs:
        log.fence(1, 2)
    facts = judged(topic_of(*logs, epoch=1), *logs).partitions[1]
    assert (facts.unjudged, facts.unkeyed) == (1, 1)


def test_without_counts_keys_are_judged_by_the_partitions_that_are_listed() -> None:
    """Apache Kafka, and tidelog below level 1.5."""
    logs = grown()
    for log in logs:
        log.fences.clear()
    audited = topic_of(logs[0], logs[1], logs[2], logs[3], is_counted=False)
    assert (audited.counts.initial, audited.is_counted) == (4, False)
    judge = judged(audited, *logs)
    assert judge.partitions[0].misplaced == 1, "of the two that were written before"
    assert as_json(audited, judge, NONE, None, "id")["resize_epoch"] == 0
    said = as_text(audited, judge, NONE, None)
    assert any("says no partition counts of the topic" in line for line in said)


# What is shown


def test_retired_partitions_are_shown_as_such() -> None:
    logs = grown()
    for log in logs:
        log.fence(2, 2, seal=log.index >= 2)
    audited = topic_of(*logs, births=BORN, epoch=2, retired={2: 2, 3: 2})
    judge = judged(audited, *logs)
    assert judge.findings.counts == {}
    assert [row[-1] for row in rows(audited, judge)] == ["", "", "retired", "retired"]
    shown = as_json(audited, judge, NONE, None, "id")
    assert [each["retired"] for each in shown["partitions"]] == [False, False, True, True]
    assert (shown["partition_count"], shown["resize_epoch"]) == (2, 2)


def test_a_key_is_shown_by_its_beginning_and_keys_are_counted_with_a_field_only() -> None:
    logs = two()
    keys = (b"%d" % number * 90 for number in range(99))
    long = next(key for key in keys if partition_of(hash_of_key(key), INITIAL, INITIAL) == 1)
    logs[0].add(long, value=b'{"n": 1}')
    audited = topic_of(*logs)
    judge = judged(audited, *logs)
    shown = as_json(audited, judge, NONE, None, "id")
    assert shown["keys_in_sequence"] is None
    assert shown["findings"][0]["examples"][0]["key"] == long[:60].decode()
    assert any("docs/operating/resize.md" in line for line in as_text(audited, judge, NONE, None))
    logs[1].add(long, value=b'{"n": 1}')
    judge = judged(audited_again := topic_of(*logs), *logs, field="n")
    assert as_json(audited_again, judge, NONE, "n", "id")["keys_in_sequence"] == 1
