"""What a log does with a leader's and a follower's batches, and what it gives back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

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
from tidelog.records.batch import TRANSACTIONAL_BIT, Rejected, read_header, seal_batch, walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.compression import Codec
from tidelog.records.control_records import ChangeKind, FenceRecord, change_batch
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log import inspecting
from tidelog.storage.log.inspecting import BatchDemands
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.preparing import prepare
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended, TimeOffset

SMALL = TopicConfigs(segment_bytes=1000, index_interval_bytes=200)


def fetched(base: int, count: int = 2, *, epoch: int = 0, size: int = 20) -> bytes:
    """A batch as a leader's log has it."""
    records = [NewRecord(NOW_MS + base + at, b"k", bytes(size)) for at in range(count)]
    return build_batch(records, base_offset=base, leader_epoch=epoch)


def refusal(got: object) -> ErrorCode:
    assert isinstance(got, Rejected), got
    assert got.reason
    return got.error


# -- a leader's appends


def test_offsets_and_epoch_are_assigned_without_touching_the_senders_buffer(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)
    sent = bytearray(batch(3))
    kept = bytes(sent)
    assert log.append_as_leader(sent, 4, NOW_MS) == Appended(0, 2, -1, 0, False)
    assert log.append_as_leader(memoryview(sent), 5, NOW_MS) == Appended(3, 5, -1, 0, False)
    assert bytes(sent) == kept
    data = log.read(0, 10**6)
    assert isinstance(data, memoryview)
    headers = [header for _, header in walk(data)]
    assert [(h.base_offset, h.leader_epoch) for h in headers] == [(0, 4), (3, 5)]
    assert log.epochs.entries == [(4, 0), (5, 3)]


def test_all_batches_of_a_request_or_none(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    bad = bytearray(batch(2))
    bad[-1] ^= 1
    got = log.append_as_leader(batch(2) + bad, 0, NOW_MS)
    assert refusal(got) is ErrorCode.CORRUPT_MESSAGE
    assert (log.end_offset, log.size) == (0, 0)


def test_the_brokers_time_can_stand_in_for_the_senders(tmp_path: Path) -> None:
    configs = TopicConfigs(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    log = new_log(tmp_path, configs)
    got = log.append_as_leader(batch(2, timestamp=5), 0, NOW_MS)
    assert isinstance(got, Appended) and got.append_time_ms == NOW_MS
    assert {record.timestamp for record in records_of(log)} == {NOW_MS}
    assert offset_for_time(log, NOW_MS) == TimeOffset(NOW_MS, 0, 0)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_topics_compression_replaces_the_senders(tmp_path: Path, codec: str) -> None:
    log = new_log(tmp_path, TopicConfigs(compression_type=codec))
    for sent in range(5):
        assert isinstance(log.append_as_leader(batch(3, codec=sent), 0, NOW_MS), Appended)
    data = log.read(0, 10**6)
    assert isinstance(data, memoryview)
    wanted = ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(codec)
    assert {header.codec for _, header in walk(data)} == {wanted}
    assert len(records_of(log)) == 15


def test_a_payload_that_does_not_decompress_is_refused_where_it_matters(tmp_path: Path) -> None:
    header = read_header(batch(1))
    junk = seal_batch(header._replace(attributes=2), b"no snappy")
    log = new_log(tmp_path / "a", TopicConfigs(compression_type="zstd"))
    assert refusal(log.append_as_leader(junk, 0, NOW_MS)) is ErrorCode.INVALID_RECORD
    log = new_log(tmp_path / "b", TopicConfigs(cleanup_policy=frozenset({"compact"})))
    assert refusal(log.append_as_leader(junk, 0, NOW_MS)) is ErrorCode.INVALID_RECORD


def test_a_compacted_topic_wants_keys(tmp_path: Path) -> None:
    log = new_log(tmp_path, TopicConfigs(cleanup_policy=frozenset({"compact"})))
    got = log.append_as_leader(batch(2, key=None, codec=3), 0, NOW_MS)
    assert refusal(got) is ErrorCode.INVALID_RECORD
    assert isinstance(log.append_as_leader(batch(2, codec=3), 0, NOW_MS), Appended)


def test_clients_write_no_control_batches_and_no_transactions_but_the_server_may(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)
    fence = change_batch(FenceRecord(ChangeKind.FENCE, 1, 8), leader_epoch=0, timestamp_ms=NOW_MS)
    assert refusal(log.append_as_leader(fence, 0, NOW_MS)) is ErrorCode.INVALID_RECORD
    made = batch(1)
    header = read_header(made)._replace(attributes=TRANSACTIONAL_BIT, producer_id=1)
    transactional = seal_batch(header._replace(producer_epoch=0, base_sequence=0), made[61:])
    got = log.append_as_leader(transactional, 0, NOW_MS)
    assert refusal(got) is ErrorCode.INVALID_TXN_STATE
    assert isinstance(log.append_as_leader(fence, 0, NOW_MS, from_client=False), Appended)
    assert log.end_offset == 1


# -- a follower's appends


def test_a_follower_keeps_offsets_epochs_and_gaps(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    pieces = [fetched(0), fetched(2, epoch=3), fetched(7, 3, epoch=3), fetched(20, epoch=4)]
    got = log.append_as_follower(b"".join(pieces), NOW_MS)
    assert got == Appended(0, 21, -1, 0, False)
    assert [record.offset for record in records_of(log)] == [0, 1, 2, 3, 7, 8, 9, 20, 21]
    # Epoch 4 may have begun anywhere in the gap: its start is never reported too high.
    assert log.epochs.entries == [(0, 0), (3, 2), (4, 10)]
    data = log.read(5, 10**6)
    assert isinstance(data, memoryview)
    assert next(walk(data))[1].base_offset == 7
    log.close()
    assert reopen(tmp_path, SMALL, ending=Ending(22, clean=True)).end_offset == 22


def test_a_follower_ignores_the_incomplete_last_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    content = fetched(0) + fetched(2) + fetched(4)[:-1]
    assert isinstance(log.append_as_follower(content, NOW_MS), Appended)
    assert log.end_offset == 4
    assert log.append_as_follower(b"", NOW_MS) == Appended(4, 3, -1, 0, False)
    got = log.append_as_follower(fetched(4)[:40], NOW_MS)
    assert refusal(got) is ErrorCode.CORRUPT_MESSAGE


def test_a_follower_takes_no_bad_crc_and_no_offset_twice(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    log.append_as_follower(fetched(0), NOW_MS)
    torn = bytearray(fetched(2) + fetched(4))
    torn[-1] ^= 1
    assert refusal(log.append_as_follower(torn, NOW_MS)) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(log.append_as_follower(fetched(1), NOW_MS)) is ErrorCode.INVALID_RECORD
    assert log.end_offset == 2


def test_a_followers_segments_need_not_be_the_leaders(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    content = b"".join(fetched(at * 2, size=50) for at in range(40))
    assert len(content) > 3 * SMALL.segment_bytes
    assert isinstance(log.append_as_follower(content, NOW_MS), Appended)
    assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
    assert len(records_of(log)) == 80
    large = fetched(80, 1, size=3000)
    assert isinstance(log.append_as_follower(large, NOW_MS), Appended), "the leader took it"


# -- reading


@pytest.fixture
def ten(tmp_path: Path) -> PartitionLog:
    """Ten batches of two records."""
    log = new_log(tmp_path, SMALL)
    for at in range(10):
        log.append_as_leader(batch(2, timestamp=NOW_MS + at * 10), 0, NOW_MS)
    return log


def offsets(data: memoryview | Rejected) -> list[int]:
    assert isinstance(data, memoryview), data
    return [offset for _, h in walk(data) for offset in range(h.base_offset, h.next_offset)]


def test_a_read_gives_whole_batches_within_its_limits(ten: PartitionLog) -> None:
    size = len(batch(2))
    assert offsets(ten.read(0, size)) == [0, 1]
    assert offsets(ten.read(1, size)) == [0, 1]
    assert offsets(ten.read(0, 3 * size - 1)) == [0, 1, 2, 3]
    assert offsets(ten.read(0, 3 * size)) == [0, 1, 2, 3, 4, 5]
    assert offsets(ten.read(0, 1)) == [0, 1]
    assert offsets(ten.read(0, 1, at_least_one=False)) == []
    assert offsets(ten.read(0, size, at_least_one=False)) == [0, 1]
    assert offsets(ten.read(0, 10**6, up_to_offset=5)) == [0, 1, 2, 3]
    assert offsets(ten.read(0, 10**6, up_to_offset=1)) == []
    assert offsets(ten.read(4, 10**6, up_to_offset=4)) == []
    assert offsets(ten.read(20, 10**6)) == []
    for outside in (-1, 21):
        assert refusal(ten.read(outside, 100)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_two_readers_at_one_place_and_one_after_a_roll(ten: PartitionLog) -> None:
    at_end = offsets(ten.read(18, 10**6))
    assert at_end == [18, 19]
    ten.roll(NOW_MS)
    for _ in range(2):
        assert offsets(ten.read(20, 100)) == []
    ten.append_as_leader(batch(2), 0, NOW_MS)
    for _ in range(2):
        assert offsets(ten.read(20, 100)) == [20, 21]


def test_times_are_found(ten: PartitionLog) -> None:
    assert offset_for_time(ten, 0) == TimeOffset(NOW_MS, 0, 0)
    assert offset_for_time(ten, NOW_MS + 1) == TimeOffset(NOW_MS + 1, 1, 0)
    assert offset_for_time(ten, NOW_MS + 2) == TimeOffset(NOW_MS + 10, 2, 0)
    assert offset_for_time(ten, NOW_MS + 91) == TimeOffset(NOW_MS + 91, 19, 0)
    assert offset_for_time(ten, NOW_MS + 92) is None
    assert newest_record(ten, 20) == TimeOffset(NOW_MS + 91, 19, 0)


def test_the_newest_is_that_of_what_can_be_read(ten: PartitionLog) -> None:
    ten.append_as_leader(batch(3, timestamp=NOW_MS + 1000, step=-100), 0, NOW_MS)
    ten.append_as_leader(batch(2, timestamp=NOW_MS + 5), 0, NOW_MS)
    assert newest_record(ten, 25) == TimeOffset(NOW_MS + 1000, 20, 0)
    # Not committed yet: the newest of what is.
    assert newest_record(ten, 20) == TimeOffset(NOW_MS + 91, 19, 0)
    assert newest_record(ten, 18) == TimeOffset(NOW_MS + 81, 17, 0)
    # Deleted within a batch, and the whole batch: the newest of what is left.
    ten.high_watermark = 25
    ten.advance_start(21)
    assert newest_record(ten, 25) == TimeOffset(NOW_MS + 900, 21, 0)
    ten.advance_start(23)
    assert newest_record(ten, 25) == TimeOffset(NOW_MS + 6, 24, 0)
    assert newest_record(ten, 23) is None


def test_an_empty_log_has_no_times(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert offset_for_time(log, 0) is None and newest_record(log, 1) is None
    log.append_as_leader(batch(1, timestamp=-1, step=0), 0, NOW_MS)
    assert newest_record(log, 1) is None


# -- cutting


def test_truncation_across_segments(ten: PartitionLog) -> None:
    assert len(ten.segments) > 1
    assert finish(ten.truncation(25, NOW_MS)) is None and ten.end_offset == 20
    assert finish(ten.truncation(3, NOW_MS)) is None
    assert (ten.end_offset, len(ten.segments)) == (2, 1)
    assert refusal(ten.read(3, 100)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert ten.append_as_leader(batch(1), 0, NOW_MS).first_offset == 2  # type: ignore[union-attr]
    assert finish(ten.restart(100, NOW_MS)) is None
    assert (ten.start_offset, ten.end_offset, ten.size) == (100, 100, 0)
    assert ten.append_as_leader(batch(1), 0, NOW_MS).first_offset == 100  # type: ignore[union-attr]


# -- leader epochs (KIP-101, KIP-279)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (7, (7, 90)),
        (6, (5, 60)),
        (5, (5, 60)),
        (4, (2, 40)),
        (2, (2, 40)),
        (1, (1, 10)),
        (8, (-1, -1)),
        (-1, (-1, -1)),
    ],
)
def test_the_end_of_an_epoch(asked: int, answer: tuple[int, int]) -> None:
    epochs = LeaderEpochs([(2, 10), (5, 40), (7, 60)])
    assert epochs.end_of(asked, 90) == answer


def test_epochs_rise_and_follow_the_log() -> None:
    epochs = LeaderEpochs()
    assert epochs.end_of(0, 5) == (-1, -1)
    assert epochs.begin(3, 0) and not epochs.begin(3, 5) and not epochs.begin(2, 5)
    assert epochs.begin(4, 10) and epochs.begin(6, 10)
    assert epochs.entries == [(3, 0), (6, 10)], "epoch 4 got no record"
    assert (epochs.epoch_at(9), epochs.epoch_at(10)) == (3, 6)
    assert epochs.truncate_start(12)
    assert epochs.entries == [(6, 12)]
    assert epochs.truncate_end(12) and epochs.latest == -1


def test_settings_of_one_log(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    log.begin_epoch(9)
    assert log.latest_epoch == 9
    assert log.end_offset_for_epoch(9) == (9, 0)
    log.configure(replace(SMALL, max_message_bytes=10))
    assert refusal(log.append_as_leader(batch(1), 9, NOW_MS)) is ErrorCode.MESSAGE_TOO_LARGE


# -- looking into batches


def test_few_bytes_that_decompress_to_many_are_not_looked_into() -> None:
    bomb = batch(1, size=20 * 1024 * 1024, codec=Codec.ZSTD)
    assert len(bomb) < 10_000
    plain = TopicConfigs()
    compacted = replace(plain, cleanup_policy=frozenset({"compact"}))
    changed = replace(plain, compression_type="lz4")
    assert isinstance(prepare(bomb, BatchDemands(plain, NOW_MS)), list)
    for configs in (compacted, changed):
        refused = prepare(bomb, BatchDemands(configs, NOW_MS))
        assert isinstance(refused, Rejected)
        assert refused.error is ErrorCode.MESSAGE_TOO_LARGE
        # The bound is absolute: a client may choose the topic's max.message.bytes (N6).
        larger = replace(configs, max_message_bytes=100 * 1024 * 1024)
        refused = prepare(bomb, BatchDemands(larger, NOW_MS))
        assert isinstance(refused, Rejected) and refused.error is ErrorCode.MESSAGE_TOO_LARGE
        # What is there uncompressed is there: max.message.bytes alone bounds it.
        whole = batch(1, size=20 * 1024 * 1024)
        assert isinstance(prepare(whole, BatchDemands(larger, NOW_MS)), list)


def test_a_batch_of_a_compacted_topic_has_not_any_number_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inspecting, "INSPECTED_RECORDS", 10)
    compacted = replace(TopicConfigs(), cleanup_policy=frozenset({"compact"}))
    assert isinstance(prepare(batch(10), BatchDemands(compacted, NOW_MS)), list)
    refused = prepare(batch(11), BatchDemands(compacted, NOW_MS))
    assert isinstance(refused, Rejected) and refused.error is ErrorCode.MESSAGE_TOO_LARGE
    assert "at most 10 records, not 11" in refused.reason
    assert isinstance(prepare(batch(11), BatchDemands(TopicConfigs(), NOW_MS)), list)
