"""A client's bytes that are well-formed and lie: what a log and its copies make of them.

The kind of S3: nothing raises, what is refused leaves nothing in the file, honest batches go on,
readers reach the end, and a start after a kill finds a sound log. ``tests/support/lying_batches``
makes the lies.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.lying_batches import changed, family, honest
from tests.support.storage_logs import (
    NOW_MS,
    batch,
    new_log,
    newest_record,
    offset_for_time,
    records_of,
    reopen,
)
from tidelog.model.configs.topic import TimestampType, TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import (
    MAX_INT32,
    MAX_INT64,
    MOST_COMPRESSED_RECORDS,
    Rejected,
    assign,
    read_header,
    walk,
)
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.reader import read_batch
from tidelog.records.record import Record, encode_record
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended, TimeOffset

SEEDS = range(6)
PER_SEED = 90

CONFIGS = {
    "plain": TopicConfigs(segment_bytes=1_048_576),
    "compacted": TopicConfigs(segment_bytes=1_048_576, cleanup_policy=frozenset({"compact"})),
    "recompressed": TopicConfigs(segment_bytes=1_048_576, compression_type="lz4"),
    "stamped": TopicConfigs(
        segment_bytes=1_048_576, message_timestamp_type=TimestampType.LOG_APPEND_TIME
    ),
}


def claiming(count: int, size: int = 1, *, codec: int = 0) -> bytes:
    """A batch of one record that claims ``count``."""
    return changed(
        batch(1, size=size, codec=codec), record_count=count, last_offset_delta=count - 1
    )


def refusal(result: Appended | Rejected) -> ErrorCode:
    assert isinstance(result, Rejected), result
    return result.error


def walked_to_the_end(log: PartitionLog) -> int:
    """Read a log by its batches as a consumer does that skips what it cannot decode."""
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, 4096)
        assert isinstance(data, memoryview), data
        last = max(header.last_offset for _, header in walk(data))
        assert last >= offset, f"nothing at {offset} of {log.end_offset}"
        offset = last + 1
    return offset


# -- each by itself


def test_a_batch_claims_at_most_as_many_records_as_its_bytes_can_hold(tmp_path: Path) -> None:
    """S3: offsets are given out by the count; seven bytes are the least that a record takes."""
    log = new_log(tmp_path)
    for count, size in ((MAX_INT32, 1), (MAX_INT32, 5000), (6, 20), (6000, 41_000)):
        got = log.append_as_leader(claiming(count, size), 0, NOW_MS)
        assert refusal(got) is ErrorCode.INVALID_RECORD and str(count) in got.reason
    assert log.end_offset == 0 and log.segments[-1].size == 0
    # It is not checked whether they are there: what could be there passes.
    assert isinstance(log.append_as_leader(claiming(4, 20), 0, NOW_MS), Appended)
    assert log.end_offset == 4


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_compressed_batch_claims_what_its_readers_would_decompress(
    tmp_path: Path, codec: int
) -> None:
    """S3: nothing is decompressed on the way in, and the claims of many fill many segments."""
    log = new_log(tmp_path)
    most = claiming(MOST_COMPRESSED_RECORDS, codec=codec)
    more = claiming(MOST_COMPRESSED_RECORDS + 1, codec=codec)
    assert refusal(log.append_as_leader(more, 0, NOW_MS)) is ErrorCode.INVALID_RECORD
    for _ in range(120):
        assert isinstance(log.append_as_leader(most, 0, NOW_MS), Appended)
    assert log.end_offset == 120 * MOST_COMPRESSED_RECORDS > 2 * MAX_INT32
    for segment in log.segments:
        assert segment.next_offset - 1 - segment.base_offset <= MAX_INT32
    assert walked_to_the_end(log) == log.end_offset
    many = most * 57
    got = log.append_as_leader(many, 0, NOW_MS)
    assert refusal(got) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.end_offset == 120 * MOST_COMPRESSED_RECORDS


def test_a_follower_takes_what_an_older_leader_took(tmp_path: Path) -> None:
    """S3: a leader of an older version holds two batches of 2^31 - 1 claimed records; its follower
    copies them, does not freeze, and is sound after a kill."""
    log = new_log(tmp_path)
    data, offset = b"", 0
    for each in (claiming(MAX_INT32), claiming(MAX_INT32, 5000), claiming(MAX_INT32), batch(2)):
        placed = bytearray(each)
        assign(placed, offset, 0)
        data += placed
        offset = read_header(placed).next_offset
    assert log.append_as_follower(data, NOW_MS) == Appended(0, offset - 1, -1, 0)
    assert len(log.segments) == 4
    assert isinstance(log.append_as_leader(batch(2), 0, NOW_MS), Appended)
    assert walked_to_the_end(log) == offset + 2
    again = reopen(tmp_path, ending=Ending(recovery_point=offset, high_watermark=offset))
    assert again.damaged is None and again.end_offset == offset + 2
    assert len(records_of(again, offset)) == 2


def test_a_follower_refuses_offsets_that_no_segment_can_hold(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for base in (MAX_INT32, 2**40, 2**63 - 2):
        placed = bytearray(batch(3))
        assign(placed, base, 0)
        assert refusal(log.append_as_follower(placed, NOW_MS)) is ErrorCode.INVALID_RECORD
    assert log.end_offset == 0 and log.segments[-1].size == 0


def test_a_follower_refuses_a_batch_that_ends_before_it_begins(tmp_path: Path) -> None:
    """The end of the log would go back, and offsets be given out again."""
    log = new_log(tmp_path)
    log.append_as_leader(batch(3), 0, NOW_MS)
    for delta in (-1, -3, -MAX_INT32):
        placed = bytearray(changed(batch(1), last_offset_delta=delta))
        assign(placed, 3, 0)
        assert refusal(log.append_as_follower(placed, NOW_MS)) is ErrorCode.INVALID_RECORD
    assert log.end_offset == 3 and len(records_of(log)) == 3


def test_a_segment_ends_at_the_last_offset_that_its_indexes_can_say(tmp_path: Path) -> None:
    """Also within the room that an append before it was given."""
    log = new_log(tmp_path)
    for _ in range(2):
        log.append_as_leader(batch(1), 0, NOW_MS)
    placed = bytearray(claiming(MAX_INT32 - 1))
    assign(placed, 2, 0)
    assert log.append_as_follower(placed, NOW_MS) == Appended(2, MAX_INT32, -1, 0)
    assert len(log.segments) == 1
    assert isinstance(log.append_as_leader(batch(1), 0, NOW_MS), Appended)
    assert [each.base_offset for each in log.segments] == [0, MAX_INT32 + 1]


def test_a_follower_refuses_offsets_beyond_those_that_there_are(tmp_path: Path) -> None:
    """An offset has 63 bits: the end of a log that has the last one could not be said."""
    log = new_log(tmp_path)
    end = MAX_INT64 - 2
    assert finish(log.restart(end, NOW_MS)) is None
    for count, taken in ((3, False), (2, True)):
        placed = bytearray(batch(count))
        assign(placed, end, 0)
        got = log.append_as_follower(placed, NOW_MS)
        assert isinstance(got, Appended) is taken, got
    assert log.end_offset == MAX_INT64


def test_what_an_append_needs_is_read_before_its_bytes_are_written(tmp_path: Path) -> None:
    """S3: an index that cannot be read refuses the append; the file has no bytes of it."""
    log = new_log(tmp_path)
    for _ in range(3):
        log.append_as_leader(batch(2), 0, NOW_MS)
    finish(log.truncation(2, NOW_MS))
    segment = log.segments[-1]
    segment._newest = None  # as in a segment that must read its newest time
    assert segment.first_timestamp is not None, "of what is read that alone is known"
    size = segment.size

    def fails(*_: object) -> bytes:
        raise OSError(5, "a fault of the test")

    whole = segment.read_bytes
    segment.read_bytes = fails  # type: ignore[method-assign]
    segment.open_log().read_at = fails  # type: ignore[method-assign]
    assert refusal(log.append_as_leader(batch(2), 0, NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
    segment.read_bytes = whole  # type: ignore[method-assign]
    assert log.resources.disk.size(segment.log_path) == size


# -- the family


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_is_sent_lies(tmp_path: Path, seed: int, kind: str) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    log = new_log(tmp_path, CONFIGS[kind])
    taken = 0
    for lie in family(seed, NOW_MS, PER_SEED):
        end, size = log.end_offset, log.segments[-1].size
        got = log.append_as_leader(lie.batch, 0, NOW_MS, resumes=True)
        if isinstance(got, Rejected):
            assert (log.end_offset, log.segments[-1].size) == (end, size), lie.claim
        else:
            taken += not got.duplicate
        now = log.append_as_leader(honest(dice, NOW_MS), 0, NOW_MS)
        assert isinstance(now, Appended), f"after {lie.claim}: {now}"
    assert taken > PER_SEED / 12, "the lies that pass are what this is about"
    _is_sound(log, tmp_path, CONFIGS[kind])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_copies_lies(tmp_path: Path, seed: int) -> None:
    """What a leader of an older version accepted: any count that its last offset delta fits."""
    print(f"seed {seed}")
    dice = random.Random(seed)
    log = new_log(tmp_path, CONFIGS["plain"])
    data, end = b"", 0
    for lie in family(seed, NOW_MS, PER_SEED):
        for content in (lie.batch, honest(dice, NOW_MS)):
            placed = bytearray(content)
            assign(placed, end, 0)
            header = read_header(placed)
            if header.last_offset_delta < 0 or header.record_count != header.last_offset_delta + 1:
                continue
            data, end = data + placed, header.next_offset
        if dice.random() < 0.3:
            assert isinstance(log.append_as_follower(data, NOW_MS), Appended), lie.claim
            data = b""
    assert isinstance(log.append_as_follower(data, NOW_MS), Appended)
    assert log.end_offset == end
    _is_sound(log, tmp_path, CONFIGS["plain"])


@pytest.mark.parametrize("seed", SEEDS)
def test_lies_are_compacted_around(tmp_path: Path, seed: int) -> None:
    """A topic becomes compacted when it holds lies: a run ends well, a batch that cannot be taken
    apart stays as it is, and the newest honest record of each key stays, too."""
    print(f"seed {seed}")
    log = new_log(tmp_path, CONFIGS["plain"])
    for lie in family(seed, NOW_MS, PER_SEED):
        log.append_as_leader(lie.batch, 0, NOW_MS)
    newest: dict[bytes, bytes] = {}
    for at in range(40):
        key, value = b"key-%d" % (at % 7), b"value %d" % at
        record = NewRecord(NOW_MS, key, value)
        assert isinstance(log.append_as_leader(build_batch([record]), 0, NOW_MS), Appended)
        newest[key] = value
        if at % 10 == 5:
            log.roll(NOW_MS)
    before = log.end_offset
    log.roll(NOW_MS)
    log.high_watermark = before
    log.sync()
    log.configure(replace(CONFIGS["compacted"], min_cleanable_dirty_ratio=0.0))
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    result = compact(log.resources.disk, plan)
    assert finish(applying(log, result, NOW_MS)) is not None
    assert result.clean_end_offset == before and log.size < result.bytes_read
    assert walked_to_the_end(log) == log.end_offset == before
    found = {}
    for record in records_of_honest(log, before - 40):
        found[record.key] = record.value
    assert found == newest


def records_of_honest(log: PartitionLog, from_offset: int) -> list[Record]:
    """The records from an offset on, which are all honest."""
    found: list[Record] = []
    offset = from_offset
    while offset < log.end_offset:
        data = log.read(offset, 1)
        assert isinstance(data, memoryview)
        found += [record for record in read_batch(data) if record.offset >= from_offset]
        offset = read_header(data).next_offset
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_times_are_looked_up_among_lies(tmp_path: Path, seed: int) -> None:
    """Each look-up ends, and none answers after the first honest record that is new enough."""
    print(f"seed {seed}")
    log = new_log(tmp_path, CONFIGS["plain"])
    placed: list[tuple[int, int]] = []
    for at, lie in enumerate(family(seed, NOW_MS, PER_SEED)):
        log.append_as_leader(lie.batch, 0, NOW_MS)
        time = NOW_MS + 10 * at
        got = log.append_as_leader(batch(1, timestamp=time), 0, NOW_MS + 10 * at)
        assert isinstance(got, Appended)
        placed.append((time, got.first_offset))
    for time, offset in placed:
        found = offset_for_time(log, time)
        assert isinstance(found, TimeOffset) and found.offset <= offset
        assert time <= found.timestamp <= MAX_INT64
    for limit in (placed[0][1], placed[-1][1], log.end_offset):
        newest = newest_record(log, limit)
        assert newest is None or (isinstance(newest, TimeOffset) and newest.offset < limit)


def test_an_offset_that_a_batch_does_not_have_removes_no_newer_record(tmp_path: Path) -> None:
    """A record that claimed offset 2^40 was the newest of its key for ever."""
    log = new_log(tmp_path, CONFIGS["plain"])
    liar = encode_record(2**40, 0, b"k", b"a lie")
    log.append_as_leader(changed(batch(1), liar), 0, NOW_MS)
    for at in range(3):
        record = NewRecord(NOW_MS, b"k", b"%d" % at)
        log.append_as_leader(build_batch([record]), 0, NOW_MS)
    log.roll(NOW_MS)
    log.high_watermark = 4
    log.sync()
    log.configure(replace(CONFIGS["compacted"], min_cleanable_dirty_ratio=0.0))
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    assert finish(applying(log, compact(log.resources.disk, plan), NOW_MS)) is not None
    assert [record.value for record in records_of_honest(log, 1)] == [b"2"]
    # As a compacted topic such a batch would not have been taken.
    got = log.append_as_leader(changed(batch(1), liar), 0, NOW_MS)
    assert isinstance(got, Rejected) and got.error is ErrorCode.INVALID_RECORD


def _is_sound(log: PartitionLog, path: Path, configs: TopicConfigs) -> None:
    """Readers get to the end, times are found, and a start after a kill finds the same log."""
    log.high_watermark = end = log.end_offset
    assert walked_to_the_end(log) == end
    log.sync()
    again = reopen(path, configs, ending=Ending(recovery_point=end, high_watermark=end))
    assert again.damaged is None and again.end_offset == end
    assert again.recovered.cut_bytes == 0
    assert walked_to_the_end(again) == end
    assert isinstance(again.append_as_leader(batch(1), 9, NOW_MS), Appended)
