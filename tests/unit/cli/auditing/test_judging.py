"""What an audit finds in the batches of a topic: places of keys, and their order."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from tidelog.cli.auditing.facts import EXAMPLES, AuditedTopic, Kind
from tidelog.cli.auditing.judging import TopicJudge
from tidelog.cli.auditing.key_order import TooManyKeys
from tidelog.cli.auditing.reading import Changes
from tidelog.cli.auditing.snapshot import audited_of
from tidelog.cli.auditing.words import as_json, as_text, rows
from tidelog.client.fences import DescribedFence, FenceList
from tidelog.client.fetching.batches import Fetched, whole_batches
from tidelog.client.metadata import Partition, Topic
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import Fence
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    seal_batch,
)
from tidelog.records.builder import NO_PRODUCER, NewRecord, Producer, build_batch
from tidelog.records.control_records import (
    ABORT,
    ChangeKind,
    change_batch,
    control_key,
)
from tidelog.records.control_records import Fence as FenceRecord
from tidelog.records.record import CorruptRecords, encode_record

INITIAL = 2
NONE = Changes()


def key_of(home: int, count: int, before: int | None = None, at: int = 2) -> bytes:
    """A key that lies in a partition at a count, and in another one at the count ``at``."""
    keys = (b"k%d" % number for number in range(10_000))
    return next(
        key
        for key in keys
        if partition_of(hash_of_key(key), INITIAL, count) == home
        and (before is None or partition_of(hash_of_key(key), INITIAL, at) == before)
    )


STAYS = key_of(0, 4, before=0)
MOVES = key_of(2, 4, before=0)
"""At home in partition 0 of two partitions, and in 2 of four."""


class Log:
    """The log of one partition, as its leader would send it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.bytes = b""
        self.end = 0
        self.fences: list[DescribedFence] = []
        self.aborted: list[tuple[int, int]] = []

    def add(
        self,
        key: bytes | None,
        *,
        time_ms: int = 1000,
        producer: Producer = NO_PRODUCER,
        value: bytes | None = b"v",
        bits: int = 0,
        offset: int | None = None,
    ) -> None:
        at = self.end if offset is None else offset
        made = build_batch([NewRecord(time_ms, key, value)], base_offset=at, producer=producer)
        header = read_header(made)
        attributes = header.attributes | bits
        self.bytes += seal_batch(header._replace(attributes=attributes), made[HEADER_SIZE:])
        self.end = max(self.end, at + 1)

    def fence(self, epoch: int, count: int, *, seal: bool = False, named: bool = True) -> None:
        kind = ChangeKind.SEAL if seal else ChangeKind.FENCE
        made = change_batch(FenceRecord(kind, epoch, count), leader_epoch=0, timestamp_ms=1)
        self.bytes += seal_batch(
            read_header(made)._replace(base_offset=self.end), made[HEADER_SIZE:]
        )
        if named:
            self.fences.append(DescribedFence(Fence(epoch, self.end, self.end), count, seal))
        self.end += 1

    def abort(self, producer_id: int, first: int) -> None:
        record = encode_record(0, 0, control_key(ABORT), b"\0" * 6)
        bits = CONTROL_BIT | TRANSACTIONAL_BIT
        header = BatchHeader(self.end, 0, 0, 2, 0, bits, 0, 1, 1, producer_id, 0, -1, 1)
        self.bytes += seal_batch(header, record)
        self.aborted.append((producer_id, first))
        self.end += 1

    def fetched(self, begin: int = 0) -> Fetched:
        view, next_offset, _ = whole_batches(memoryview(self.bytes), 0)
        where = TopicPartition("t", self.index)
        return Fetched(where, begin, next_offset, view, self.end, self.end, 0, self.aborted)


def topic_of(*logs: Log, births: dict[int, int] | None = None, epoch: int = 0) -> AuditedTopic:
    """What metadata and leaders say of a topic with these logs."""
    listed = {
        log.index: Partition(
            log.index, 1, 0, (1,), (1,), (),
            partition_epoch=log.index, birth_epoch=(births or {}).get(log.index, 0),
        )
        for log in logs
    }  # fmt: skip
    topic = Topic("t", UUID(int=7), False, listed, 0, INITIAL, len(logs), epoch, 9)
    fences: dict[int, FenceList] = {log.index: tuple(log.fences) for log in logs}
    return audited_of(topic, {log.index: (0, log.end) for log in logs}, fences)


def judged(
    audited: AuditedTopic,
    *logs: Log,
    most: int = 100,
    by_time: bool = True,
    by_order: bool = True,
    field: str | None = None,
) -> TopicJudge:
    """Read all logs, phase by phase."""
    judge = TopicJudge(audited, most, by_time=by_time, by_order=by_order, field=field)
    for phase in audited.phases():
        for log in logs:
            if log.index in phase:
                judge.take(log.fetched(phase[log.index].begin), phase[log.index])
    return judge


def two() -> tuple[Log, Log]:
    return Log(0), Log(1)


def grown() -> tuple[Log, Log, Log, Log]:
    """A topic of two partitions that has just grown to four."""
    logs = Log(0), Log(1), Log(2), Log(3)
    logs[0].add(STAYS)
    logs[0].add(MOVES)
    for log in logs:
        log.fence(1, 4)
    return logs


BORN = {2: 1, 3: 1}


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
    assert "sequence: 1 records run backwards in n" in as_text(audited, judge, NONE, "n")


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
    shown = as_json(audited, judge, Changes({1}, 2), None, "id")
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
