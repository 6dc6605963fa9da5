"""Idempotent producers: duplicates, gaps, epochs, wrap-around, expiry, snapshots, restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.storage_logs import NOW_MS, batch, new_log, records_of, reopen
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import MAX_INT32, Rejected, read_header
from tidelog.records.builder import Producer
from tidelog.storage.checkpoints import DamagedFile
from tidelog.storage.log import syncing
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import (
    RESUMES,
    KnownBatch,
    ProducerEntry,
    ProducerState,
    encode,
)
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended

DAY_MS = 86_400_000


def send(
    log: PartitionLog, sequence: int, *, epoch: int = 0, count: int = 1, now_ms: int = NOW_MS
) -> Appended | Rejected:
    made = batch(count, timestamp=now_ms, producer=Producer(7, epoch, sequence))
    return log.append_as_leader(made, 0, now_ms, resumes=True)


def sent(log: PartitionLog, sequence: int, **more: int) -> Appended:
    got = send(log, sequence, **more)
    assert isinstance(got, Appended), got
    return got


OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("before", "epoch", "sequence", "expected"),
    [
        ([], 0, 0, "appended"),
        ([], 3, 0, "appended"),
        ([(0, 0)], 0, 1, "appended"),
        ([(0, 0)], 0, 2, OUT_OF_ORDER),
        ([(0, 0)], 0, 0, "duplicate"),
        ([(0, at) for at in range(7)], 0, 2, "duplicate"),
        ([(0, at) for at in range(7)], 0, 1, OUT_OF_ORDER),  # only five are remembered
        ([(3, 0)], 2, 1, FENCED),
        ([(3, 0)], 2, 0, FENCED),
        ([(3, 0)], 4, 0, "appended"),
        ([(3, 0)], 4, 1, OUT_OF_ORDER),
        ([(0, MAX_INT32)], 0, 0, "appended"),
        ([(0, MAX_INT32)], 0, MAX_INT32, "duplicate"),
    ],
)
def test_the_table_of_sequences(
    tmp_path: Path,
    before: list[tuple[int, int]],
    epoch: int,
    sequence: int,
    expected: str | ErrorCode,
) -> None:
    log = new_log(tmp_path)
    for old_epoch, old_sequence in before:
        sent(log, old_sequence, epoch=old_epoch)
    end = log.end_offset
    got = send(log, sequence, epoch=epoch)
    if isinstance(expected, ErrorCode):
        assert isinstance(got, Rejected) and got.error is expected
        assert "producer 7" in got.reason
        assert log.end_offset == end
    else:
        assert isinstance(got, Appended)
        assert got.duplicate is (expected == "duplicate")
        assert log.end_offset == end + (expected == "appended")


@pytest.mark.parametrize("count", [1, 2])
def test_an_unknown_producer_goes_on_only_as_its_caller_allows(tmp_path: Path, count: int) -> None:
    log = new_log(tmp_path)
    made = b"".join(batch(1, producer=Producer(7, 2, 5 + at)) for at in range(count))
    assert log.append_as_leader(made, 0, NOW_MS) is RESUMES
    assert (log.end_offset, log.producers.entries) == (0, {})
    assert isinstance(log.append_as_leader(made, 0, NOW_MS, resumes=True), Appended)
    assert log.producers.entries[7].last_sequence == 4 + count
    assert isinstance(send(log, 5 + count, epoch=2), Appended)
    gap = batch(1, producer=Producer(7, 2, 50))
    refused = log.append_as_leader(gap, 0, NOW_MS, resumes=True)
    assert isinstance(refused, Rejected) and refused.error is OUT_OF_ORDER, "it is known"


def test_a_newer_epoch_goes_on_and_fences_the_former(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for at in range(3):
        sent(log, at)
    assert sent(log, 0, epoch=1).first_offset == 3
    refused = send(log, 3)
    assert isinstance(refused, Rejected) and refused.error is FENCED
    assert sent(log, 1, epoch=1).first_offset == 4
    again = sent(log, 0, epoch=1)
    assert (again.duplicate, again.first_offset) == (True, 3)
    refused = send(log, 2, epoch=0)
    assert isinstance(refused, Rejected) and refused.error is FENCED


def test_a_batch_across_the_wrap(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    sent(log, MAX_INT32 - 1, count=4)  # 2^31 - 2, 2^31 - 1, 0, 1
    assert sent(log, 2).first_offset == 4
    again = sent(log, MAX_INT32 - 1, count=4)
    assert (again.duplicate, again.first_offset, again.last_offset) == (True, 0, 3)


@pytest.mark.parametrize("others", [1, 3])
def test_a_retry_of_another_length_is_no_duplicate(tmp_path: Path, others: int) -> None:
    log = new_log(tmp_path)
    sent(log, 0, count=2)
    sent(log, 2, count=2)
    for first in (0, 2):
        refused = send(log, first, count=others)
        assert isinstance(refused, Rejected) and refused.error is OUT_OF_ORDER
        assert sent(log, first, count=2).duplicate
    assert log.end_offset == 4


def test_several_batches_in_one_request_follow_each_other(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    one, two = (batch(2, producer=Producer(7, 0, sequence)) for sequence in (0, 2))
    got = log.append_as_leader(one + two, 0, NOW_MS)
    assert isinstance(got, Appended) and (got.first_offset, got.last_offset) == (0, 3)
    assert [record.offset for record in records_of(log)] == [0, 1, 2, 3]
    gap = batch(2, producer=Producer(7, 0, 4)) + batch(2, producer=Producer(7, 0, 8))
    refused = log.append_as_leader(gap, 0, NOW_MS)
    assert isinstance(refused, Rejected) and refused.error is OUT_OF_ORDER
    assert log.end_offset == 4
    # Nor is the first of them remembered: if it is sent again, it is no duplicate.
    assert (sent(log, 4, count=2).duplicate, log.end_offset) == (False, 6)


@pytest.mark.parametrize("clean", [True, False])
def test_all_five_batches_are_known_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = new_log(tmp_path)
    for at in range(8):
        sent(log, at * 3, count=3)
    if clean:
        log.close()
    log = reopen(tmp_path, ending=Ending(24 if clean else 0, clean=clean))
    for at in range(3, 8):
        again = sent(log, at * 3, count=3)
        assert (again.duplicate, again.first_offset) == (True, at * 3)
    assert isinstance(send(log, 6, count=3), Rejected)
    assert sent(log, 24).first_offset == 24


def test_a_silent_producer_is_forgotten_a_day_after_its_last_append(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    # The timestamp of the records does not matter: these are ten years old.
    old = batch(1, timestamp=NOW_MS - 3650 * DAY_MS, producer=Producer(7, 0, 0))
    assert isinstance(log.append_as_leader(old, 0, NOW_MS), Appended)
    log.configs = log.configs.__class__(retention_ms=-1)
    finish(log.housekeeping(NOW_MS + DAY_MS - 1))
    assert 7 in log.producers.entries
    finish(log.housekeeping(NOW_MS + DAY_MS))
    assert not log.producers.entries
    assert sent(log, 99).first_offset == 1


def test_truncation_takes_the_producers_back(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for at in range(6):
        sent(log, at)
    assert finish(log.truncation(4, NOW_MS)) is None
    assert log.producers.entries[7].last_sequence == 3
    assert not sent(log, 4).duplicate
    assert finish(log.restart(50, NOW_MS)) is None
    assert not log.producers.entries


def told(entry: ProducerEntry) -> tuple[int, list[KnownBatch], int]:
    return entry.epoch, entry.batches, entry.last_ms


def test_snapshots_survive_a_round_trip_and_show_every_damage() -> None:
    state = ProducerState()
    for pid in (1, 2**40):
        for at in range(7):
            header = read_header(batch(3, producer=Producer(pid, 2, at * 3)))
            state.note(header, 100 + at * 3, NOW_MS + at)
    content = encode(state.copied())
    found = ProducerState.decode(content)
    assert {pid: told(entry) for pid, entry in found.entries.items()} == {
        pid: told(entry) for pid, entry in state.entries.items()
    }
    assert found.entries[1].batches[-1] == KnownBatch(18, 20, 118, 120, NOW_MS + 6)
    for position in range(len(content)):
        torn = bytearray(content)
        torn[position] ^= 0x10
        with pytest.raises(DamagedFile):
            ProducerState.decode(bytes(torn))
        with pytest.raises(DamagedFile):
            ProducerState.decode(content[:position])


def test_a_sync_writes_a_snapshot_after_enough_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "SNAPSHOT_INTERVAL_BYTES", 1000)
    log = new_log(tmp_path)
    for at in range(40):
        sent(log, at)
        if at in (3, 35):
            log.sync()
    names = sorted(file.name for file in (tmp_path / "t-0").glob("*.snapshot"))
    assert names == ["00000000000000000036.snapshot"]
    log = reopen(tmp_path)
    assert log.producers.entries[7].last_sequence == 39
    assert finish(log.truncation(20, NOW_MS)) is None
    assert log.producers.entries[7].last_sequence == 19
    assert not list((tmp_path / "t-0").glob("*36.snapshot"))


def test_a_torn_snapshot_falls_back_to_an_older_one(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for at in range(4):
        sent(log, at)
    log.roll(NOW_MS)
    for at in range(4, 6):
        sent(log, at)
    log.close()
    newest = tmp_path / "t-0" / "00000000000000000006.snapshot"
    newest.write_bytes(newest.read_bytes()[:-1])
    log = reopen(tmp_path, ending=Ending(6, 6, clean=True))
    assert [batch.first_sequence for batch in log.producers.entries[7].batches] == [1, 2, 3, 4, 5]
    assert not newest.exists()
