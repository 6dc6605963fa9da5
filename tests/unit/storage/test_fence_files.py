"""Fences of a log on a disk: noted at appends, kept by all that removes batches, and damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    FaultyDisk,
    batch,
    new_log,
    open_as_a_server,
    reopen,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.batch import Rejected, pack_prefix, read_header, seal_batch
from tidelog.records.control_records import (
    COMMIT,
    ChangeKind,
    FenceRecord,
    change_batch,
    control_key,
)
from tidelog.records.record import encode_record
from tidelog.storage.checkpoints import (
    PartitionMetadata,
    decode_offsets,
    encode_offsets,
    encode_uuid,
)
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log.fences import FenceEntry, Fences, decode_fences, encode_fences
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.names import FENCE_CHECKPOINT, FIRST_FENCES, RECOVERY_POINTS

SMALL = TopicConfigs(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0)
COMPACTED = replace(
    SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=1024
)
FENCE = ChangeKind.FENCE
SEAL = ChangeKind.SEAL


def control(kind: ChangeKind, epoch: int, leader_epoch: int = 0) -> bytes:
    said = FenceRecord(kind, epoch, 4 + epoch)
    return change_batch(said, leader_epoch=leader_epoch, timestamp_ms=NOW_MS)


def data(log: PartitionLog, records: int = 1) -> None:
    answer = log.append_as_leader(batch(records), 0, NOW_MS)
    assert not isinstance(answer, Rejected), answer


def fence(log: PartitionLog, epoch: int, kind: ChangeKind = FENCE) -> None:
    answer = log.append_as_leader(control(kind, epoch), 0, NOW_MS, from_client=False)
    assert not isinstance(answer, Rejected), answer


def marker(log: PartitionLog) -> None:
    """Append the marker of a transaction that has ended."""
    made = bytearray(control(FENCE, 1))
    header = read_header(made)
    record = encode_record(0, 0, control_key(COMMIT), b"\0" * 6)
    answer = log.append_as_leader(seal_batch(header, record), 0, NOW_MS, from_client=False)
    assert not isinstance(answer, Rejected), answer


def placed(made: bytes, offset: int, epoch: int = 0) -> bytes:
    """A batch as the leader has it."""
    header = read_header(made)
    return pack_prefix(offset, header.length, epoch) + made[16:]


def at(epoch: int, offset: int, data_end: int, kind: ChangeKind = FENCE) -> FenceEntry:
    return FenceEntry(epoch, 4 + epoch, kind, offset, data_end)


def on_disk(tmp_path: Path) -> Fences:
    return decode_fences((tmp_path / "t-0" / FENCE_CHECKPOINT).read_bytes())


def test_a_fence_is_noted_when_it_is_appended_and_written_with_the_next_sync(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path, SMALL)
    data(log, 3)
    fence(log, 1)
    assert log.fences.entries == (at(1, 3, 3),)
    assert not (tmp_path / "t-0" / FENCE_CHECKPOINT).exists()
    log.sync()
    assert on_disk(tmp_path) == log.fences
    assert log.first_unwritten_fence is None


def test_a_log_without_fences_has_no_file(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    data(log)
    marker(log)
    log.sync()
    assert log.fences == Fences() and log.close()
    assert not (tmp_path / "t-0" / FENCE_CHECKPOINT).exists()


def test_the_data_before_a_fence_ends_below_control_records(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    data(log, 2)
    marker(log)
    fence(log, 1)
    marker(log)
    fence(log, 2, SEAL)
    assert log.fences.entries == (at(1, 3, 2), at(2, 5, 2, SEAL))


def test_a_follower_reads_fences_from_what_it_appends(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    fetched = [
        placed(batch(2), 0),
        placed(control(FENCE, 1), 2),
        placed(control(SEAL, 2), 3, epoch=1),
        placed(batch(1), 4, epoch=1),
        # The leader's compaction has removed offsets 5 to 8: they were data.
        placed(control(FENCE, 3), 9, epoch=2),
    ]
    assert not isinstance(log.append_as_follower(b"".join(fetched), NOW_MS), Rejected)
    assert log.fences.entries == (at(1, 2, 2), at(2, 3, 2, SEAL), at(3, 9, 9))


def test_the_second_fence_of_an_epoch_does_not_count(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    fence(log, 2)
    fence(log, 2)
    fence(log, 1)
    assert log.fences.entries == (at(2, 0, 0),)
    log.sync()
    assert reopen(tmp_path, ending=Ending(3, 3, clean=False)).fences.entries == (at(2, 0, 0),)


def test_retention_and_compaction_leave_fences_alone(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACTED)
    for number in range(1, 40):
        data(log)
        if number % 10 == 0:
            fence(log, number)
    known, log.high_watermark = log.fences, log.end_offset
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    assert finish(applying(log, compact(log.resources.disk, plan), NOW_MS)) is not None
    assert log.fences == known
    for entry in known.entries:
        header = log.segments.header_at(entry.offset)
        assert header is not None and header.control and header.base_offset == entry.offset
    log.configure(replace(SMALL, retention_bytes=0, segment_bytes=1024))
    assert finish(log.housekeeping(NOW_MS))
    assert log.fences == known and log.start_offset == log.end_offset
    assert log.close()
    assert reopen(tmp_path, ending=Ending(log.end_offset, log.end_offset, log.end_offset)).fences


def test_a_cut_takes_fences_along_and_a_restart_keeps_those_below(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    data(log)
    fence(log, 1)
    data(log)
    fence(log, 2)
    log.sync()
    assert finish(log.truncation(3, NOW_MS)) is None
    assert log.fences.entries == (at(1, 1, 1),) == on_disk(tmp_path).entries
    assert finish(log.restart(50, NOW_MS)) is None
    assert log.fences.entries == (at(1, 1, 1),)
    assert finish(log.truncation(1, NOW_MS)) is None
    assert log.fences == Fences() == on_disk(tmp_path)


def test_a_log_that_begins_again_takes_the_leaders_fences(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    fence(log, 1)
    leaders = Fences((at(2, 20, 18), at(3, 50, 50), at(4, 90, 90)))
    assert finish(log.restart(60, NOW_MS, fences=leaders)) is None
    assert log.fences.entries == leaders.entries[:2] == on_disk(tmp_path).entries
    fetched = placed(control(FENCE, 4), 90)
    assert not isinstance(log.append_as_follower(fetched, NOW_MS), Rejected)
    assert log.fences.entries[-1] == at(4, 90, 90)


def damaged(content: bytes) -> bytes:
    return content.replace(b"1 5 ", b"1 6 ")


def test_a_damaged_file_is_made_again_from_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    data(log)
    fence(log, 1)
    data(log)
    known = log.fences
    assert log.close()
    path = tmp_path / "t-0" / FENCE_CHECKPOINT
    put(path, damaged(path.read_bytes()))
    log = reopen(tmp_path, ending=Ending(3, 3, clean=True))
    assert log.damaged is None and log.fences == known
    assert any(FENCE_CHECKPOINT in each for each in log.recovered.mended)
    log.sync()
    assert on_disk(tmp_path) == known


@pytest.mark.parametrize("clean", [True, False])
def test_without_its_file_a_log_that_lost_batches_is_damaged(tmp_path: Path, clean: bool) -> None:
    log = new_log(tmp_path, SMALL)
    fence(log, 1)
    for _ in range(20):
        data(log)
    log.high_watermark = log.end_offset
    log.configure(replace(SMALL, retention_bytes=300))
    assert finish(log.housekeeping(NOW_MS))
    end, start = log.end_offset, log.start_offset
    assert log.close()
    path = tmp_path / "t-0" / FENCE_CHECKPOINT
    put(path, damaged(path.read_bytes()))
    log = reopen(tmp_path, ending=Ending(end, end, start, clean=clean))
    assert log.damaged is not None and FENCE_CHECKPOINT in log.damaged


def test_a_file_that_the_batches_contradict_is_damage(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    data(log)
    fence(log, 1)
    data(log)
    known = log.fences
    assert log.close()
    path = tmp_path / "t-0" / FENCE_CHECKPOINT
    for wrong in ((at(1, 0, 0),), (at(2, 1, 1),), (at(1, 1, 1, SEAL),)):
        put(path, encode_fences(wrong))
        log = reopen(tmp_path, ending=Ending(3, 3, clean=True))
        assert log.fences == known and log.recovered.mended


def test_what_is_above_the_recovery_point_comes_from_the_batches(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    data(log, 2)
    fence(log, 1)
    log.sync()
    data(log)
    fence(log, 2)
    log.resources.files.close()
    path = tmp_path / "t-0" / FENCE_CHECKPOINT
    # A sync that did not end wrote a fence that the log has lost since, and got again elsewhere.
    put(path, encode_fences((at(1, 2, 2), at(2, 3, 3))))
    log = reopen(tmp_path, ending=Ending(3, 3))
    assert log.damaged is None
    assert log.fences.entries == (at(1, 2, 2), at(2, 4, 4))
    assert log.recovered.mended == [], "the file is as a kill may leave it"


# A file that is gone (docs/decisions/0157) -------------------------------------------------------

RECORDED = TopicPartition(encode_uuid(TOPIC_ID), 0)


def resized(tmp_path: Path, retention_bytes: int = -1) -> tuple[LogDirectory, Fences]:
    """A log directory whose only log has two fences, as a checkpoint has it; retention may have
    removed the first one."""
    directory = open_as_a_server(tmp_path)
    log = directory.create(PARTITION, SMALL, PartitionMetadata(TOPIC_ID, 0))
    data(log, 2)
    fence(log, 1)
    for _ in range(20):
        data(log)
    fence(log, 2)
    log.sync()
    log.high_watermark = log.end_offset
    if retention_bytes >= 0:
        log.configure(replace(SMALL, retention_bytes=retention_bytes))
        assert finish(log.housekeeping(NOW_MS))
        assert log.segments[0].base_offset > 2
    finish(directory.writing_checkpoint())
    return directory, log.fences


@pytest.mark.parametrize("clean", [True, False])
def test_fences_whose_file_is_gone_are_taken_from_the_log(tmp_path: Path, clean: bool) -> None:
    directory, known = resized(tmp_path)
    if clean:
        assert directory.close()
    (tmp_path / "t-0" / FENCE_CHECKPOINT).unlink()
    log = open_as_a_server(tmp_path).logs[PARTITION]
    assert log.damaged is None and log.fences == known
    (line,) = log.recovered.mended
    assert FENCE_CHECKPOINT in line and "missing" in line
    log.sync()
    assert on_disk(tmp_path) == known


def test_without_its_file_a_log_that_lost_its_first_fence_waits_for_a_copy(tmp_path: Path) -> None:
    directory, known = resized(tmp_path, retention_bytes=300)
    assert directory.close()
    path = tmp_path / "t-0" / FENCE_CHECKPOINT
    copy = path.read_bytes()
    path.unlink()
    for _ in range(2):
        directory = open_as_a_server(tmp_path)
        damage = directory.logs[PARTITION].damaged
        assert damage is not None and damage.endswith(
            f"{FENCE_CHECKPOINT}: the file is missing; the one at 2 was removed: put a copy of the "
            "file back"
        )
        directory.close()
    put(path, copy)
    directory = open_as_a_server(tmp_path)
    log = directory.logs[PARTITION]
    assert log.damaged is None and log.fences == known
    # The way out without a copy (docs/operating/recover.md).
    assert directory.close()
    path.unlink()
    directory = open_as_a_server(tmp_path)
    assert directory.logs[PARTITION].damaged is not None
    directory.close()
    (tmp_path / FIRST_FENCES).unlink()
    log = open_as_a_server(tmp_path).logs[PARTITION]
    assert log.damaged is None and known.entries[0] not in log.fences.entries


def test_an_unreadable_file_is_no_damage_where_the_first_fence_is_in_the_log(
    tmp_path: Path,
) -> None:
    directory, known = resized(tmp_path, retention_bytes=300)
    log = directory.logs[PARTITION]
    assert log.close()
    path = tmp_path / "t-0" / FENCE_CHECKPOINT
    put(path, damaged(encode_fences(known.entries)) + b"!")
    put(tmp_path / FIRST_FENCES, encode_offsets({RECORDED: known.entries[1].offset}))
    ending = Ending(log.end_offset, log.end_offset, log.start_offset, clean=True)
    log = reopen(tmp_path, ending=ending)
    assert log.damaged is None
    assert [each.offset for each in log.fences.entries] == [known.entries[1].offset]


def test_a_first_fence_on_record_that_a_cut_took_counts_as_none(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    data(log, 3)
    assert log.close()
    put(tmp_path / FIRST_FENCES, encode_offsets({RECORDED: 3}))
    log = reopen(tmp_path, ending=Ending(3, 3, clean=True))
    assert log.fences == Fences() and log.recovered.mended == [] and log.damaged is None


def test_the_first_fences_on_record_are_those_of_the_present_logs(tmp_path: Path) -> None:
    directory, known = resized(tmp_path)
    path = tmp_path / FIRST_FENCES
    assert decode_offsets(path.read_bytes()) == {RECORDED: 2} and len(known.entries) == 2
    other = TopicPartition(PARTITION.topic, 1)
    directory.create(other, SMALL, PartitionMetadata(TOPIC_ID, 0))
    finish(directory.writing_checkpoint())
    assert decode_offsets(path.read_bytes()) == {RECORDED: 2}, "a log without fences is not named"
    assert finish(directory.logs[PARTITION].truncation(2, NOW_MS)) is None
    finish(directory.writing_checkpoint())
    assert decode_offsets(path.read_bytes()) == {}
    fence(directory.logs[PARTITION], 3)
    directory.logs[PARTITION].sync()
    finish(directory.writing_checkpoint())
    assert decode_offsets(path.read_bytes()) == {RECORDED: 2}
    directory.delete(PARTITION)
    directory.create(PARTITION, SMALL, PartitionMetadata(TOPIC_ID, 1))
    assert decode_offsets(path.read_bytes()) == {}, "the next replica of a name begins without"


def test_the_record_of_another_topic_of_the_same_name_does_not_count(tmp_path: Path) -> None:
    """A version that does not know the record leaves it as it is."""
    log = new_log(tmp_path, SMALL)
    for _ in range(20):
        data(log)
    log.high_watermark = log.end_offset
    log.configure(replace(SMALL, retention_bytes=300))
    assert finish(log.housekeeping(NOW_MS))
    ending = Ending(log.end_offset, log.end_offset, log.start_offset, clean=True)
    assert log.close() and log.start_offset > 2
    former = TopicPartition(encode_uuid(UUID(int=8)), 0)
    put(tmp_path / FIRST_FENCES, encode_offsets({former: 2}))
    log = reopen(tmp_path, ending=ending)
    assert log.damaged is None and log.recovered.mended == []


def test_the_first_fence_is_on_record_before_the_recovery_point_passes_it(tmp_path: Path) -> None:
    disk = FaultyDisk()
    directory = open_as_a_server(tmp_path, resources(disk))
    log = directory.create(PARTITION, SMALL, PartitionMetadata(TOPIC_ID, 0))
    fence(log, 1)
    log.sync()
    disk.failing = (f"{RECOVERY_POINTS}.tmp", RECOVERY_POINTS)
    disk.fill_up()
    with pytest.raises(OSError):
        finish(directory.writing_checkpoint())
    assert decode_offsets((tmp_path / FIRST_FENCES).read_bytes()) == {RECORDED: 0}
