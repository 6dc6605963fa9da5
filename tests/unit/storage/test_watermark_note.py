"""The note of a high watermark: exact after a kill, and never above what is there after a cut."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import NOW_MS, FaultyDisk, batch, new_log, reopen, resources
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import Rejected
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.watermark_note import FILE, NOTHING, WatermarkNote


def filled(folder: Path) -> PartitionLog:
    """Ten records of epoch 1, of which eight are committed and noted."""
    log = new_log(folder)
    for _ in range(10):
        log.append_as_leader(batch(), 1, NOW_MS)
    log.high_watermark = 8
    log.watermark_note.write(8)
    return log


def opened(folder: Path, checkpoint: int) -> PartitionLog:
    """The log after a kill; ``checkpoint``: the high watermark that was written before."""
    return reopen(folder, ending=Ending(high_watermark=checkpoint))


def test_it_is_known_again_after_a_kill(tmp_path: Path) -> None:
    log = filled(tmp_path)
    # The checkpoint of before says 3.
    assert opened(tmp_path, 3).high_watermark == 8
    # A later checkpoint counts too, and the end of the log limits both.
    assert opened(tmp_path, 9).high_watermark == 9
    log.watermark_note.write(10)
    assert opened(tmp_path, 3).high_watermark == 10


def test_a_cut_lowers_it_before_records_go(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert finish(log.truncation(5, NOW_MS)) is None
    assert WatermarkNote(log.resources, log.path).read() == 5
    for _ in range(5):
        log.append_as_leader(batch(), 2, NOW_MS)
    # What was appended since is not committed.
    assert opened(tmp_path, 0).high_watermark == 5


@pytest.mark.parametrize("refused", ["checkpoint", "note", "sync of the note"])
def test_a_cut_that_a_full_disk_refuses_leaves_all_as_it_was(tmp_path: Path, refused: str) -> None:
    disk = FaultyDisk()
    shared = resources(disk)
    log = new_log(tmp_path, shared=shared)
    for _ in range(10):
        log.append_as_leader(batch(), 1, NOW_MS)
    log.sync()
    log.high_watermark = 8
    log.watermark_note.write(8)
    log.watermark_note.known = 8

    def claims() -> tuple[int, ...]:
        note = log.watermark_note
        watermarks = (log.high_watermark, note.offset, note.known)
        return *watermarks, log.synced_end_offset, log.end_offset, log.generation

    less = 5

    def checkpoint() -> Iterator[None]:
        yield None
        assert log.high_watermark == log.synced_end_offset == less, "the files say less before"
        if refused == "checkpoint":
            raise OSError(errno.ENOSPC, "a fault of the test")

    shared.before_cut = checkpoint
    before = claims()
    assert before == (8, 8, 8, 10, 10, 0)
    disk.failing = (FILE,)
    if refused == "note":
        disk.fault = errno.ENOSPC
    elif refused == "sync of the note":
        disk.sync_fault = errno.ENOSPC
    for _ in range(2):
        got = finish(log.truncation(5, NOW_MS))
        assert isinstance(got, Rejected) and got.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert claims() == before and log.failed is None
        if refused != "checkpoint":
            continue
        less = log.start_offset  # of a restart a crash may leave any part
        assert isinstance(finish(log.restart(5, NOW_MS)), Rejected)
        assert claims() == before
        less = 5
    disk.fault = disk.sync_fault = shared.before_cut = None
    assert finish(log.truncation(5, NOW_MS)) is None
    assert claims() == (5, 5, 5, 5, 5, 1)
    assert f"{log.path}/{FILE}" in disk.syncs


def test_a_tail_that_is_gone_lowers_it_for_good(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.watermark_note.write(100)
    again = opened(tmp_path, 0)
    assert again.high_watermark == 10
    assert again.watermark_note.known == 100, "what went is known"
    assert WatermarkNote(again.resources, again.path).read() == 10


def test_what_went_is_known_until_it_is_on_record(tmp_path: Path) -> None:
    """However often it is killed before: the checkpoint, too, claims at most what the log has."""
    filled(tmp_path).watermark_note.write(100)
    for _ in range(3):
        log = opened(tmp_path, 0)
        assert (log.high_watermark, log.watermark_note.known) == (10, 100)
        # What comes in its place is not committed for that, nor forgotten for what is noted.
        log.append_as_leader(batch(), 2, NOW_MS)
        log.watermark_note.write(9)
        log.watermark_note.write(10)
    log = opened(tmp_path, 0)
    log.watermark_note.on_record()
    assert log.watermark_note.known == NOTHING
    assert opened(tmp_path, 0).watermark_note.known == 10


@pytest.mark.parametrize("how", ["committed again", "there again", "cut"])
def test_what_went_is_not_lost_any_more(tmp_path: Path, how: str) -> None:
    filled(tmp_path).watermark_note.write(12)
    log = opened(tmp_path, 0)
    assert log.watermark_note.known == 12
    if how == "cut":
        assert finish(log.truncation(5, NOW_MS)) is None
    else:
        for _ in range(2):
            log.append_as_leader(batch(), 2, NOW_MS)
    if how == "committed again":
        log.watermark_note.write(12)
    log = opened(tmp_path, 0)
    # A power loss that takes its end once more is compared with what was committed since.
    assert log.watermark_note.known <= log.end_offset
    note = WatermarkNote(log.resources, log.path)
    note.begin(note.read(), 3)
    assert note.known == (12 if how == "committed again" else 10 if how == "there again" else 5)


def test_a_full_disk_keeps_no_log_from_being_opened(tmp_path: Path) -> None:
    disk = FaultyDisk()
    note = WatermarkNote(resources(disk), str(tmp_path))
    note.write(7)
    disk.failing = (FILE,)
    disk.fault = errno.ENOSPC
    note.begin(9, 8)
    assert (note.offset, note.known) == (7, 9)
    with pytest.raises(OSError):
        # It would claim what is not there.
        note.begin(9, 6)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 16, b"\0" * 15, b"\xff" * 16, b"x" * 16, b"\0" * 17]
)
def test_a_damaged_note_says_nothing(tmp_path: Path, content: bytes) -> None:
    put(tmp_path / FILE, content)
    assert WatermarkNote(resources(), str(tmp_path)).read() == NOTHING


def test_each_flipped_bit_is_noticed(tmp_path: Path) -> None:
    note = WatermarkNote(resources(), str(tmp_path))
    note.write(123_456_789)
    sound = (tmp_path / FILE).read_bytes()
    for bit in range(8 * len(sound)):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        put(tmp_path / FILE, flipped)
        assert WatermarkNote(resources(), str(tmp_path)).read() == NOTHING


def test_a_full_disk_keeps_the_older_note_and_another_fault_is_final(tmp_path: Path) -> None:
    disk = FaultyDisk()
    shared = resources(disk)
    note = WatermarkNote(shared, str(tmp_path))
    note.write(1)
    disk.failing = (FILE,)
    disk.fault = errno.ENOSPC
    note.write(2)
    assert shared.failed is None
    assert note.offset == 1
    disk.fault = errno.EIO
    note.write(3)
    assert shared.failed is not None
    # Closed, it writes nothing: its directory may have another name by now.
    closed = WatermarkNote(resources(), str(tmp_path / "gone"))
    closed.close()
    closed.write(4)
    assert closed.offset == NOTHING
