"""What an audit finds in the batches of a topic: places of keys, and their order."""

from __future__ import annotations

import json

import pytest

from tests.support.audited_logs import (
    BORN,
    INITIAL,
    MOVES,
    NONE,
    STAYS,
    Log,
    grown,
    judged,
    key_of,
    topic_of,
    two,
)
from tidelog.cli.auditing.key_order import TooManyKeys
from tidelog.cli.auditing.reading import ChangesMeanwhile
from tidelog.cli.auditing.words import as_json, as_text, rows, why_unproven
from tidelog.partitioning.audit_rules import EXAMPLES, Kind
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.records.batch import LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT
from tidelog.records.builder import NO_PRODUCER, Producer
from tidelog.records.record import CorruptRecords


def test_keys_at_home_in_each_epoch_are_right() -> None:
    logs = grown()
    logs[0].add(STAYS)
    logs[2].add(MOVES)
    logs[1].add(None)
    audited = topic_of(*logs, births=BORN, epoch=1)
    judge = judged(audited, *logs)
    assert judge.findings.counts == {}
    facts = judge.partitions
    assert (facts[0].records, facts[0].control, facts[1].unkeyed) == (3, 1, 1)
    said = as_text(audited, judge, NONE, None)
    assert said == [
        "RIGHT: 5 records in 4 partitions: keys where murmur2 puts them; 1 record without a key"
    ]


@pytest.mark.parametrize(("index", "key"), [(0, MOVES), (2, STAYS), (1, STAYS)])
def test_a_record_in_a_partition_of_another_count_is_misplaced(index: int, key: bytes) -> None:
    logs = grown()
    logs[index].add(key)
    audited = topic_of(*logs, births=BORN, epoch=1)
    judge = judged(audited, *logs)
    assert judge.findings.counts == {Kind.HOME: 1}
    assert judge.partitions[index].misplaced == 1
    home = partition_of(hash_of_key(key), INITIAL, 4)
    (example,) = judge.findings.examples[Kind.HOME]
    assert (example.partition, example.key) == (index, key)
    assert example.offset == logs[index].end - 1
    assert example.text == f"belongs in partition {home} in resize epoch 1"
    text = "\n".join(as_text(audited, judge, NONE, None))
    assert f"partition {index} offset {example.offset} key {key.decode()}: belongs in" in text
    assert text.splitlines()[-1] == "FAULTS: 1 found in 3 records in 4 partitions: home"


def test_a_record_before_the_fence_lies_by_the_former_count() -> None:
    logs = Log(0), Log(1), Log(2), Log(3)
    logs[1].add(MOVES)
    for log in logs:
        log.fence(1, 4)
    judge = judged(topic_of(*logs, births=BORN, epoch=1), *logs)
    (example,) = judge.findings.examples[Kind.HOME]
    assert example.text == "belongs in partition 0 in resize epoch 0"


def test_a_record_after_a_seal_is_misplaced() -> None:
    logs = grown()
    logs[2].fence(2, 2, seal=True)
    logs[2].add(MOVES)
    logs[0].fence(2, 2)
    judge = judged(topic_of(*logs, births=BORN, epoch=2), *logs)
    assert [each.partition for each in judge.findings.examples[Kind.HOME]] == [2]


def test_a_growth_that_may_have_been_undone_moves_no_key() -> None:
    logs = two()
    logs[0].fence(1, 4)
    logs[0].add(MOVES)
    for log in logs:
        log.fence(2, 2)
    assert judged(topic_of(*logs, epoch=2), *logs).findings.counts == {}


def test_each_partition_has_its_own_few_examples() -> None:
    logs = two()
    for _ in range(EXAMPLES + 3):
        logs[0].add(key_of(1, 2))
        logs[1].add(STAYS)
    judge = judged(topic_of(*logs), *logs)
    assert judge.findings.counts == {Kind.HOME: 2 * (EXAMPLES + 3)}
    places = [each.partition for each in judge.findings.examples[Kind.HOME]]
    assert (places.count(0), places.count(1)) == (EXAMPLES, EXAMPLES)


PRODUCER = Producer(7, 0, 0)


def test_a_record_of_a_child_that_was_created_before_one_of_its_parent() -> None:
    logs = Log(0), Log(1), Log(2), Log(3)
    logs[0].add(MOVES, time_ms=2000, producer=PRODUCER)
    for log in logs:
        log.fence(1, 4)
    logs[2].add(MOVES, time_ms=1990, producer=PRODUCER)
    audited = topic_of(*logs, births=BORN, epoch=1)
    # The child is read first here: phases put the parent before it all the same.
    judge = judged(audited, *reversed(logs))
    (example,) = judge.findings.examples[Kind.TIMESTAMP]
    assert (example.partition, example.offset) == (2, 1)
    assert example.text == "created 10 ms before partition 0 offset 0 by producer 7"
    assert judged(audited, *logs, by_time=False).findings.counts == {}
    assert judged(audited, *logs, by_order=False).findings.counts == {}


def test_a_survivor_comes_after_what_retired() -> None:
    logs = Log(0), Log(1), Log(2), Log(3)
    for log in logs:
        log.fence(1, 4)
    logs[2].add(MOVES, time_ms=2000, producer=PRODUCER)
    for log in logs:
        log.fence(2, 2, seal=log.index >= 2)
    logs[0].add(MOVES, time_ms=1999, producer=PRODUCER)
    judge = judged(topic_of(*logs, births=BORN, epoch=2), *logs)
    assert judge.findings.counts == {Kind.TIMESTAMP: 1}


@pytest.mark.parametrize(
    ("producer", "bits"),
    [
        (NO_PRODUCER, 0),
        (Producer(8, 0, 0), 0),
        (Producer(7, 0, 1), LOG_APPEND_TIME_BIT),
        # Another process may have the next epoch of a transactional producer.
        (Producer(7, 1, 0), TRANSACTIONAL_BIT),
    ],
)
def test_timestamps_of_several_clocks_are_not_compared(producer: Producer, bits: int) -> None:
    logs = two()
    logs[0].add(STAYS, time_ms=2000, producer=PRODUCER, bits=bits & TRANSACTIONAL_BIT)
    logs[0].add(STAYS, time_ms=1000, producer=producer, bits=bits)
    assert judged(topic_of(*logs), *logs).findings.counts == {}


def test_a_misplaced_record_is_no_part_of_the_order_of_its_key() -> None:
    logs = two()
    logs[1].add(STAYS, time_ms=9000, producer=PRODUCER)
    logs[0].add(STAYS, time_ms=1000, producer=PRODUCER)
    assert judged(topic_of(*logs), *logs[::-1]).findings.counts == {Kind.HOME: 1}


def test_a_field_that_runs_backwards_is_found_whoever_writes_it() -> None:
    def value(number: object) -> bytes:
        return json.dumps({"n": number}).encode()

    logs = Log(0), Log(1), Log(2), Log(3)
    logs[0].add(MOVES, value=value(4))
    for log in logs:
        log.fence(1, 4)
    # What has no number does not hide the step back after it.
    for other in (None, b"no JSON", b"[4]", value("4"), value(True)):
        logs[2].add(MOVES, value=other)
    logs[2].add(MOVES, value=value(3))
    logs[2].add(MOVES, value=value(3))
    audited = topic_of(*logs, births=BORN, epoch=1)
    judge = judged(audited, *logs, field="n")
    (example,) = judge.findings.examples[Kind.SEQUENCE]
    assert example.text == "n=3 after 4 in partition 0 offset 0"
    assert judge.keys == 1
    lines = as_text(audited, judge, NONE, "n")
    assert "sequence: 1 records run backwards in n" in lines
    assert "note: 5 records with a key without a number in the JSON field 'n'" in lines


def test_a_field_that_no_value_has_proves_nothing() -> None:
    logs = two()
    audited = topic_of(*logs)
    assert why_unproven(judged(audited, *logs, field="n"), "n") is None, "an empty topic"
    logs[0].add(STAYS, value=b'{"m": 1}')
    logs[0].add(None, value=b'{"m": 1}')
    audited = topic_of(*logs)
    judge = judged(audited, *logs, field="n")
    said = why_unproven(judge, "n")
    assert said is not None and said.startswith("none of 1 record with a key has a number in the")
    assert why_unproven(judged(audited, *logs), None) is None
    assert why_unproven(judged(audited, *logs, field="m"), "m") is None


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ([(0, 0), (0, 1), (0, 5)], None),
        ([(0, 5), (1, 0)], None),
        ([(0, 2**31 - 1), (0, 0)], None),
        ([(0, 0), (0, 0)], "sequence 0 of producer 7 after its 0"),
        ([(0, 5), (0, 3)], "sequence 3 of producer 7 after its 5"),
        ([(1, 0), (0, 1)], "epoch 0 of producer 7 after its epoch 1"),
    ],
)
def test_sequence_numbers_of_a_producer(steps: list[tuple[int, int]], wrong: str | None) -> None:
    logs = two()
    for epoch, first in steps:
        logs[0].add(STAYS, producer=Producer(7, epoch, first))
    judge = judged(topic_of(*logs), *logs)
    found = [each.text for each in judge.findings.examples.get(Kind.PRODUCER, [])]
    assert found == ([] if wrong is None else [wrong])


def test_a_child_begins_again_with_the_sequence_of_each_producer() -> None:
    logs = grown()
    logs[0].add(STAYS, producer=Producer(7, 0, 4))
    logs[2].add(MOVES, producer=Producer(7, 0, 0))
    assert judged(topic_of(*logs, births=BORN, epoch=1), *logs).findings.counts == {}


def test_offsets_that_run_backwards() -> None:
    logs = two()
    logs[0].add(STAYS)
    logs[0].add(STAYS, offset=5)
    logs[0].add(STAYS, offset=3)
    judge = judged(topic_of(*logs), *logs)
    (example,) = judge.findings.examples[Kind.OFFSET]
    assert (example.offset, example.text) == (3, "offsets to 3 after 5")


def test_a_fence_that_its_leader_does_not_name() -> None:
    logs = two()
    for log in logs:
        log.fence(1, 2)
    logs[0].fence(1, 4, named=False)
    judge = judged(topic_of(*logs, epoch=1), *logs)
    (example,) = judge.findings.examples[Kind.FENCE]
    assert example.text == "a fence of resize epoch 1, not named by its leader"


def test_what_was_aborted_is_counted_and_not_judged() -> None:
    logs = two()
    logs[1].add(STAYS, producer=PRODUCER, bits=TRANSACTIONAL_BIT)
    logs[1].abort(7, 0)
    audited = topic_of(*logs)
    judge = judged(audited, *logs)
    assert judge.findings.counts == {}
    assert (judge.partitions[1].aborted, judge.partitions[1].control) == (1, 1)
    said = as_text(audited, judge, NONE, None)
    assert "note: 1 record of aborted transactions not judged" in said


def test_where_no_order_was_promised_nothing_is_judged() -> None:
    """enable.ordered.delivery was switched on in epoch 1, which repeats the count."""
    logs = two()
    logs[1].add(STAYS)
    for log in logs:
        log.fence(1, 2)
    audited = topic_of(*logs, epoch=1)
    judge = judged(audited, *logs)
    assert judge.findings.counts == {}
    assert judge.partitions[1].unjudged == 1
    assert any("no order was promised" in line for line in as_text(audited, judge, NONE, None))


def test_a_resize_that_clients_do_not_see_yet_ends_what_is_judged() -> None:
    logs = two()
    logs[0].add(STAYS)
    logs[0].fence(1, 4)
    logs[0].add(MOVES)
    audited = topic_of(*logs)
    assert (audited.partitions[0].end, audited.partitions[0].fences) == (1, ())
    assert judged(audited, *logs).partitions[0].records == 1


def test_more_keys_than_may_be_remembered() -> None:
    logs = two()
    for number in range(3):
        logs[0].add(key_of(0, 2) if number else STAYS, producer=Producer(number, 0, 0))
    with pytest.raises(TooManyKeys, match=r"more than 2 keys .*--most-keys.*--placement-only"):
        judged(topic_of(*logs), *logs, most=2)
    assert judged(topic_of(*logs), *logs, most=2, by_order=False).findings.counts == {}


def test_a_damaged_batch_is_no_finding() -> None:
    logs = two()
    logs[0].add(STAYS)
    logs[0].bytes = logs[0].bytes[:-1] + bytes([logs[0].bytes[-1] ^ 1])
    with pytest.raises(CorruptRecords, match="t-0: the batch at offset 0 has a wrong CRC"):
        judged(topic_of(*logs), *logs)


def test_what_a_script_sees() -> None:
    logs = two()
    logs[0].add(STAYS)
    logs[1].add(STAYS)
    audited = topic_of(*logs)
    judge = judged(audited, *logs)
    judge.skipped(0, 0, 3)
    shown = as_json(audited, judge, ChangesMeanwhile({1}, 2), None, "id")
    assert (shown["verdict"], shown["topic_id"], shown["misplaced"]) == ("FAULTS", "id", 1)
    assert (shown["lost"], shown["sequence"]) == (3, None)
    assert [(x["partition"], x["misplaced"]) for x in shown["partitions"]] == [(0, 0), (1, 1)]
    (found,) = shown["findings"]
    assert (found["kind"], found["count"]) == ("home", 1)
    assert found["examples"] == [
        {
            "partition": 1,
            "offset": 0,
            "key": STAYS.decode(),
            "what": "belongs in partition 0 in resize epoch 0",
        }
    ]
    assert shown["remarks"] == [
        "retention removed 3 offsets before they were read",
        "removed while the audit ran, and not read to the end: partition 1",
        "the topic was resized while the audit ran (resize epoch 0 -> 2): it is judged up to the "
        "ends at the start",
    ]
    assert json.loads(json.dumps(shown)) == shown
    assert rows(audited, judge)[1] == (1, 0, 1, 1, 0, 1, "")
