"""Starting after any end: torn tails are cut, damage is named, leftovers are done with."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import (
    NOW_MS,
    FaultyDisk,
    QuickDisk,
    QuickFile,
    batch,
    new_log,
    offset_for_time,
    open_as_a_server,
    records_of,
    reopen,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import MAGIC_POSITION, Rejected, read_header, walk
from tidelog.records.builder import Producer
from tidelog.runtime.disk import RealFile
from tidelog.storage import names
from tidelog.storage.checkpoints import decode_offsets, encode_offsets
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended, TimeOffset
from tidelog.storage.segments.neighbours import missing_between
from tidelog.storage.segments.segment import Segment
from tidelog.storage.segments.times import largest_timestamp

SMALL = TopicConfigs(segment_bytes=1000, index_interval_bytes=150)


def write(path: Path, batches: int = 30) -> PartitionLog:
    """A log of batches of two records, killed without a stop."""
    log = new_log(path, SMALL)
    for number in range(batches):
        made = batch(2, timestamp=NOW_MS + number, producer=Producer(3, 0, number * 2))
        assert isinstance(log.append_as_leader(made, 0, NOW_MS), Appended)
    log.resources.files.close()
    return log


def test_cut_at_every_byte_of_the_last_two_batches(tmp_path: Path) -> None:
    log = write(tmp_path, 4)
    assert len(log.segments) == 1
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "t-0", saved)
    one = log.size // 4
    name = Path(log.segments[0].log_path).name
    for size in range(2 * one, 4 * one + 1):
        shutil.rmtree(tmp_path / "t-0")
        shutil.copytree(saved, tmp_path / "t-0")
        file = tmp_path / "t-0" / name
        put(file, file.read_bytes()[:size])
        log = reopen(tmp_path, SMALL)
        assert log.damaged is None
        assert log.end_offset == size // one * 2
        assert log.recovered.cut_bytes == size % one
        assert len(records_of(log)) == log.end_offset
        entry = log.producers.entries[3]
        assert entry.last_sequence == log.end_offset - 1
        assert log.append_as_leader(batch(2), 0, NOW_MS).first_offset == log.end_offset - 2  # type: ignore[union-attr]


def test_a_flipped_byte_in_the_last_batch_is_a_torn_tail(tmp_path: Path) -> None:
    log = write(tmp_path, 4)
    path = Path(log.segments[0].log_path)
    content = bytearray(path.read_bytes())
    for position in range(len(content) - len(content) // 4, len(content), 7):
        torn = bytearray(content)
        torn[position] ^= 0x40
        put(path, torn)
        if position % 16 == 0:
            continue
        found = reopen(tmp_path, SMALL)
        offset_or_epoch = (position - 3 * (len(content) // 4)) in (*range(8), *range(12, 16))
        if not offset_or_epoch:  # those two are outside of the CRC
            assert (found.damaged, found.end_offset) == (None, 6), position
        found.resources.files.close()


@pytest.mark.parametrize("where", [100, 700, 1500, 3000])
def test_damage_with_sound_batches_after_it_is_named_and_nothing_is_cut(
    tmp_path: Path, where: int
) -> None:
    write(tmp_path)
    files = sorted((tmp_path / "t-0").glob("*.log"))
    before = {file: file.read_bytes() for file in files}
    for file in files:
        if where < len(before[file]):
            break
        where -= len(before[file])
    spoilt = bytearray(before[file])
    spoilt[where] ^= 1
    put(file, spoilt)
    log = reopen(tmp_path, SMALL)
    assert log.damaged is not None and str(file) in log.damaged
    assert file.read_bytes() == spoilt
    assert [other.read_bytes() for other in files if other != file] == [
        before[other] for other in files if other != file
    ]
    for refused in (log.read(0, 100), log.append_as_leader(batch(), 0, NOW_MS)):
        assert isinstance(refused, Rejected) and refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    # Neither a clean stop nor a second start makes one forget it.
    log.close()
    assert log.synced_end_offset == 0, "the recovery point on record stays below the damage"
    again = reopen(tmp_path, SMALL, ending=Ending(0, 0, 0, clean=True))
    assert again.damaged is not None
    put(file, before[file])
    assert reopen(tmp_path, SMALL).damaged is None, "repaired from a backup, it serves again"


def test_what_was_found_damaged_once_is_no_torn_tail(tmp_path: Path) -> None:
    """A read named it, in the last batch: the next start must not take it for what a kill left."""
    log = write(tmp_path, 4)
    path = Path(log.segments[0].log_path)
    spoilt = bytearray(path.read_bytes())
    spoilt[-1] ^= 1
    path.write_bytes(spoilt)
    marker = tmp_path / "t-0" / names.DAMAGED
    marker.touch()
    found = reopen(tmp_path, SMALL, ending=Ending(0))
    assert found.damaged is not None and str(path) in found.damaged
    assert path.read_bytes() == spoilt
    marker.unlink()
    found = reopen(tmp_path, SMALL, ending=Ending(0))
    assert (found.damaged, found.end_offset) == (None, 6)


def test_an_end_below_the_high_watermark_is_damage_after_a_kill(tmp_path: Path) -> None:
    log = write(tmp_path, 4)
    path = Path(log.segments[0].log_path)
    torn = path.read_bytes()[:-5]
    put(path, torn)
    found = reopen(tmp_path, SMALL, ending=Ending(0, high_watermark=8))
    assert found.damaged is not None and "high watermark 8" in found.damaged
    assert path.read_bytes() == torn, "nothing is cut off that may have been read"
    (tmp_path / "t-0" / names.DAMAGED).unlink()
    lost_power = Ending(0, high_watermark=8, unsynced_may_be_gone=True)
    found = reopen(tmp_path, SMALL, ending=lost_power)
    assert found.damaged is None
    assert (found.end_offset, found.recovered.cut_at, found.high_watermark) == (6, 6, 6)


@pytest.mark.parametrize("left", [1, 2, 3])
def test_whole_batches_that_are_missing_below_the_high_watermark_are_damage_after_a_kill(
    tmp_path: Path, left: int
) -> None:
    """No sync says that they were there, but they may have been read: the watermark fell."""
    log = write(tmp_path, 4)
    path = Path(log.segments[0].log_path)
    whole = path.read_bytes()
    put(path, short := whole[: log.size // 4 * left])
    end = left * 2
    committed = reopen(tmp_path, SMALL, ending=Ending(0, high_watermark=end))
    assert committed.damaged is None, "all that was committed is there"
    assert (committed.end_offset, committed.high_watermark) == (end, end)
    committed.resources.files.close()
    lost_power = Ending(0, high_watermark=8, unsynced_may_be_gone=True)
    found = reopen(tmp_path, SMALL, ending=lost_power)
    assert (found.damaged, found.end_offset, found.high_watermark) == (None, end, end)
    found.resources.files.close()
    for again in range(2):
        found = reopen(tmp_path, SMALL, ending=Ending(0, high_watermark=8))
        assert found.damaged is not None, again
        assert f"ends at offset {end}, below the high watermark 8" in found.damaged
        assert path.read_bytes() == short
        assert found.high_watermark == 8, "the next start is to see it, too"
        found.resources.files.close()
    put(path, whole)
    found = reopen(tmp_path, SMALL, ending=Ending(0, high_watermark=8))
    assert (found.damaged, found.high_watermark) == (None, 8), "repaired from a backup"


def test_a_log_without_files_below_the_high_watermark_is_damage_after_a_kill(
    tmp_path: Path,
) -> None:
    log = write(tmp_path, 4)
    for path in (tmp_path / "t-0").glob("0*"):
        path.unlink()
    assert not Path(log.segments[0].log_path).exists()
    lost_power = Ending(0, high_watermark=8, unsynced_may_be_gone=True)
    assert reopen(tmp_path, SMALL, ending=lost_power).damaged is None
    for path in (tmp_path / "t-0").glob("0*"):
        path.unlink()
    found = reopen(tmp_path, SMALL, ending=Ending(0, high_watermark=8))
    assert found.damaged is not None and "its high watermark is 8" in found.damaged


def test_what_was_deleted_is_not_missed_below_the_high_watermark(tmp_path: Path) -> None:
    """DeleteRecords up to the watermark: nothing is left that could still be read."""
    log = write(tmp_path, 4)
    path = Path(log.segments[0].log_path)
    put(path, path.read_bytes()[: log.size // 4 * 3])
    found = reopen(tmp_path, SMALL, ending=Ending(0, 8, log_start=7))
    assert found.damaged is not None and "below the high watermark 8" in found.damaged
    (tmp_path / "t-0" / names.DAMAGED).unlink()
    found.resources.files.close()
    found = reopen(tmp_path, SMALL, ending=Ending(0, 8, log_start=8))
    assert (found.damaged, found.start_offset, found.end_offset) == (None, 8, 8)


@pytest.mark.parametrize("restart", [False, True])
def test_a_kill_during_a_cut_below_the_high_watermark_is_no_damage(
    tmp_path: Path, restart: bool
) -> None:
    """An unclean leader's follower cuts what was committed once: the checkpoints claim less before
    the first file changes, so the log is a sound one after each of the steps."""
    claimed, ended = [], False
    while not ended:
        path = tmp_path / str(len(claimed))
        write(path, 12)
        log = reopen(path, SMALL, ending=Ending(0, high_watermark=24))
        assert (log.damaged, log.high_watermark) == (None, 24)
        cut = log.restart(4, NOW_MS) if restart else log.truncation(4, NOW_MS)
        for piece in itertools.islice(cut, len(claimed)):
            if piece is not None:
                piece()
        ended = len(claimed) > 0 and log.change is not LogChange.CUT
        # The kill.
        claims = decode_offsets((path / names.HIGH_WATERMARKS).read_bytes())
        claimed.append(claims[log.partition])
        log.resources.files.close()
        found = open_as_a_server(path).logs[log.partition]
        known = max(claimed[-1], found.start_offset)
        assert (found.damaged, found.high_watermark) == (None, known), claimed
    lowered = 0 if restart else 4
    assert claimed[0] == 24 and claimed[-1] == lowered and {*claimed} == {24, lowered}


@pytest.mark.parametrize("tail", ["zeros", "cut in a batch", "cut between batches"])
def test_what_was_removed_and_comes_back_torn_is_no_damage(tmp_path: Path, tail: str) -> None:
    """Retention emptied the log; the power went before the renaming of its files was durable."""
    log = write(tmp_path, 4)
    path = Path(log.segments[0].log_path)
    content = path.read_bytes()
    before = reopen(tmp_path, replace(SMALL, retention_ms=1000, file_delete_delay_ms=0))
    before.high_watermark = before.end_offset
    finish(before.housekeeping(NOW_MS + 2000))
    assert (before.start_offset, before.end_offset) == (8, 8) and len(before.segments) == 1
    before.resources.files.close()
    # Its tail was never synced.
    *_, (last, _) = walk(content)
    torn = {
        "zeros": content[:last] + bytes(len(content) - last),
        "cut in a batch": content[: last + 70],
        "cut between batches": content[:last],
    }
    put(path, torn[tail])
    ending = Ending(8, 8, 8, unsynced_may_be_gone=True)
    found = reopen(tmp_path, SMALL, ending=ending)
    assert len(found.segments) == 2, "it came back"
    assert found.damaged is None
    assert (found.start_offset, found.end_offset) == (8, 8)
    made = batch(2, timestamp=NOW_MS, producer=Producer(3, 0, 8))
    appended = found.append_as_leader(made, 0, NOW_MS)
    assert isinstance(appended, Appended) and appended.first_offset == 8, appended
    assert [record.offset for record in records_of(found)] == [8, 9]
    found.high_watermark = 10
    finish(found.housekeeping(NOW_MS))
    assert found.damaged is None and len(found.segments) == 1


def test_an_end_below_the_recovery_point_is_always_damage(tmp_path: Path) -> None:
    log = write(tmp_path, 4)
    path = Path(log.segments[0].log_path)
    put(path, path.read_bytes()[:-5])
    for ending in (Ending(8), Ending(8, unsynced_may_be_gone=True), Ending(8, clean=True)):
        found = reopen(tmp_path, SMALL, ending=ending)
        assert found.damaged is not None and "recovery point 8" in found.damaged


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("power_lost", [True, False])
def test_whole_batches_that_are_missing_below_the_recovery_point_are_damage(
    tmp_path: Path, left: int, power_lost: bool
) -> None:
    """What is left is sound to its end: only the recovery point knows that there was more."""
    log = write(tmp_path, 4)
    path = Path(log.segments[0].log_path)
    put(path, path.read_bytes()[: log.size // 4 * left])
    found = reopen(tmp_path, SMALL, ending=Ending(8, unsynced_may_be_gone=power_lost))
    assert found.damaged is not None
    assert f"ends at offset {left * 2}, below its recovery point 8" in found.damaged


def test_bytes_after_the_end_of_a_clean_stop_are_not_appended_to(tmp_path: Path) -> None:
    log = write(tmp_path, 4)
    log = reopen(tmp_path, SMALL)
    log.close()
    path = Path(log.segments[0].log_path)
    put(path, path.read_bytes() + bytes(30))
    found = reopen(tmp_path, SMALL, ending=Ending(8, 8, clean=True))
    assert found.damaged is None and found.recovered.cut_bytes == 30
    made = batch(2, timestamp=NOW_MS, producer=Producer(3, 0, 8))
    assert isinstance(found.append_as_leader(made, 0, NOW_MS), Appended)
    assert [record.offset for record in records_of(found)] == list(range(10))


def test_after_a_power_loss_the_log_is_cut_at_the_first_hole(tmp_path: Path) -> None:
    write(tmp_path)
    files = sorted((tmp_path / "t-0").glob("*.log"))
    spoilt = bytearray(files[1].read_bytes())
    spoilt[300:400] = bytes(100)
    files[1].write_bytes(spoilt)
    first_of_second = int(files[1].stem)
    found = reopen(tmp_path, SMALL, ending=Ending(first_of_second, unsynced_may_be_gone=True))
    assert found.damaged is None
    assert found.recovered.lost_sound_batches
    assert found.recovered.cut_at == found.end_offset > first_of_second
    assert len(records_of(found)) == found.end_offset
    assert len(found.segments) == 2


def test_a_lost_tail_before_a_later_segment_is_seen(tmp_path: Path) -> None:
    write(tmp_path)
    files = sorted((tmp_path / "t-0").glob("*.log"))
    content = files[0].read_bytes()
    files[0].write_bytes(content[: len(content) // 2])
    found = reopen(tmp_path, SMALL)
    assert found.damaged is not None and str(files[0]) in found.damaged
    # Ending exactly between two batches, too.
    batch_size = int.from_bytes(content[8:12], "big") + 12
    files[0].write_bytes(content[: len(content) - batch_size])
    found = reopen(tmp_path, SMALL)
    assert found.damaged is not None


def test_an_interrupted_roll(tmp_path: Path) -> None:
    log = write(tmp_path, 4)
    for leftover in ("00000000000000000008.index", "00000000000000000008.timeindex"):
        (tmp_path / "t-0" / leftover).write_bytes(b"")
    assert reopen(tmp_path, SMALL).end_offset == 8
    (tmp_path / "t-0" / "00000000000000000008.log").write_bytes(b"")
    (tmp_path / "t-0" / "00000000000000000008.snapshot").write_bytes(b"\0\1torn")
    log = reopen(tmp_path, SMALL)
    assert (log.damaged, log.end_offset, len(log.segments)) == (None, 8, 2)
    assert log.producers.entries[3].last_sequence == 7


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 64, bytes(800), None])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_torn_or_insane_indexes_are_rebuilt(
    tmp_path: Path, suffix: str, content: bytes | None
) -> None:
    log = write(tmp_path)
    expected = [record.offset for record in records_of(reopen(tmp_path, SMALL))]
    for clean in (False, True):
        log = reopen(tmp_path, SMALL)
        log.close()
        for file in (tmp_path / "t-0").glob(f"*.{suffix}"):
            if content is None:
                file.unlink()
            else:
                put(file, content)
        log = reopen(tmp_path, SMALL, ending=Ending(60, 60, clean=clean))
        assert log.damaged is None
        assert [record.offset for record in records_of(log)] == expected
        for number in range(30):
            found = offset_for_time(log, NOW_MS + number)
            assert found is not None and found.offset == max(0, number * 2 - 1)  # type: ignore[union-attr]


def test_leftovers_of_the_cleaner_and_of_deletion_are_removed(tmp_path: Path) -> None:
    log = write(tmp_path)
    folder = tmp_path / "t-0"
    for name in (
        "00000000000000000000.log.cleaned",
        "00000000000000000000.index.swap",
        "00000000000000000099.log.deleted",
        "leader-epoch-checkpoint.tmp",
    ):
        put(folder / name, b"rest")
    log = reopen(tmp_path, SMALL)
    assert log.end_offset == 60 and len(records_of(log)) == 60
    left = {file.name for file in folder.iterdir()}
    assert not any(name.endswith((".cleaned", ".swap", ".deleted", ".tmp")) for name in left)


@pytest.mark.parametrize("content", [b"", b"junk", b"0\n1\n3 9\n4", b"0\n2\n5 0\n4 8\n", None])
def test_a_lost_epoch_checkpoint_is_rebuilt_from_the_batches(
    tmp_path: Path, content: bytes | None
) -> None:
    log = new_log(tmp_path, SMALL)
    for epoch in (2, 2, 5, 7, 7):
        log.append_as_leader(batch(2), epoch, NOW_MS)
    log.close()
    file = tmp_path / "t-0" / "leader-epoch-checkpoint"
    if content is None:
        file.unlink()
    else:
        put(file, content)
    log = reopen(tmp_path, SMALL, ending=Ending(10, 10, clean=True))
    assert log.epochs.entries == [(2, 0), (5, 4), (7, 6)]


def test_an_epoch_that_only_the_batches_tell_is_on_disk_after_a_clean_stop(tmp_path: Path) -> None:
    """A power loss took the newest checkpoint of the epochs and left the batches."""
    log = new_log(tmp_path, SMALL)
    log.append_as_leader(batch(2), 3, NOW_MS)
    file = tmp_path / "t-0" / "leader-epoch-checkpoint"
    before = file.read_bytes()
    log.append_as_leader(batch(2), 4, NOW_MS)
    log.close()
    put(file, before)
    log = reopen(tmp_path, SMALL, ending=Ending(2, 2, unsynced_may_be_gone=True))
    assert log.epochs.entries == [(3, 0), (4, 2)]
    log.close()
    log = reopen(tmp_path, SMALL, ending=Ending(4, 4, clean=True))
    assert log.epochs.entries == [(3, 0), (4, 2)]


def test_recovery_reads_only_what_follows_the_recovery_point(tmp_path: Path) -> None:
    big = TopicConfigs(index_interval_bytes=1000)
    log = new_log(tmp_path, big)
    for _ in range(2000):
        log.append_as_leader(batch(2, size=100), 0, NOW_MS)
    log.close()
    log = reopen(tmp_path, big, ending=Ending(3900))
    assert log.recovered.scanned_bytes < log.size / 20
    everything = reopen(tmp_path, big)
    assert everything.recovered.scanned_bytes == log.size


def test_deleted_offsets_are_never_given_out_again(tmp_path: Path) -> None:
    write(tmp_path, 4)
    log = reopen(tmp_path, SMALL, ending=Ending(0, 20, log_start=20, unsynced_may_be_gone=True))
    assert (log.start_offset, log.end_offset) == (20, 20)
    assert log.append_as_leader(batch(), 0, NOW_MS).first_offset == 20  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(40))
def test_random_bytes_never_kill_a_start(tmp_path: Path, seed: int) -> None:
    """Any flip, cut or junk in any file: the log opens, or says that it is damaged."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    write(tmp_path)
    reopen(tmp_path, SMALL).close()
    for _ in range(3):
        file = chance.choice(sorted((tmp_path / "t-0").iterdir()))
        content = bytearray(file.read_bytes())
        kind = chance.randrange(3)
        if kind == 0 and content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del content[chance.randrange(len(content) + 1) :]
        else:
            content += chance.randbytes(chance.randrange(200))
        put(file, content)
    ending = Ending(
        chance.choice([0, 20, 60]),
        60,
        clean=chance.random() < 0.3,
        unsynced_may_be_gone=chance.random() < 0.5,
    )
    log = reopen(tmp_path, SMALL, ending=ending)
    if log.damaged is None:
        assert log.append_as_leader(batch(1), 3, NOW_MS)
        offset_for_time(log, NOW_MS + 10)
        log.close()


class DyingDisk(FaultyDisk):
    """Writes one index file, and to the next one nothing more."""

    last_words: list[str] | None = None

    def fault_for(self, path: str) -> int | None:
        if self.last_words is None or not path.endswith((names.INDEX, names.TIME_INDEX)):
            return None
        self.last_words.append(path)
        return errno.EIO if len(self.last_words) > 1 else None


def test_a_kill_between_the_two_index_files_hides_no_time(tmp_path: Path) -> None:
    """Where the times end before the offsets do, nothing tells of a newer record in between."""
    configs = TopicConfigs(index_interval_bytes=1)
    log = new_log(tmp_path, configs)
    for _ in range(3):
        log.append_as_leader(batch(), 0, NOW_MS)
    assert log.close()
    disk = DyingDisk()
    log = reopen(tmp_path, configs, resources(disk), ending=Ending(3, 3, clean=True))
    for time_ms in (NOW_MS + 5000, *[NOW_MS] * 5):
        log.append_as_leader(batch(timestamp=time_ms), 0, NOW_MS)
    log.sync()
    disk.last_words = []
    segment = log.segments[0]
    sizes = {path: os.path.getsize(path) for path in (segment.index_path, segment.time_index_path)}
    assert isinstance(log.roll(NOW_MS), Rejected)
    written, torn = disk.last_words
    os.truncate(torn, sizes[torn])
    assert os.path.getsize(written) > sizes[written]
    log = reopen(tmp_path, configs, ending=Ending(9, 9))
    found = offset_for_time(log, NOW_MS + 1)
    assert isinstance(found, TimeOffset) and found.offset == 3
    assert log.segments[0].newest == (NOW_MS + 5000, 3)


@pytest.mark.parametrize("left", range(4))
def test_times_that_a_power_loss_took_are_noted_again(tmp_path: Path, left: int) -> None:
    """Retention would remove the segment by an older time than that of its newest record."""
    configs = TopicConfigs(index_interval_bytes=1)
    log = new_log(tmp_path, configs)
    for second in (0, 1, 2, 5, 3, 3, 3, 3):
        log.append_as_leader(batch(timestamp=NOW_MS + 1000 * second), 0, NOW_MS)
    assert log.close()
    segment = log.segments[0]
    os.truncate(segment.time_index_path, 12 * left)
    found = reopen(tmp_path, configs, ending=Ending(8, 8, unsynced_may_be_gone=True))
    assert found.segments[0].newest == (NOW_MS + 5000, 3)
    assert largest_timestamp(found.segments[0]) == NOW_MS + 5000
    answer = offset_for_time(found, NOW_MS + 2001)
    assert isinstance(answer, TimeOffset) and answer.offset == 3


def segments_of(path: Path) -> list[Path]:
    return sorted((path / "t-0").glob("*.log"))


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("index", ["whole", "none", "empty", "beyond", "before"])
def test_a_segment_that_is_missing_in_the_middle_is_damage(
    tmp_path: Path, index: str, is_clean: bool
) -> None:
    """S14: after a clean stop nothing was read, and offsets were passed over in silence."""
    log = write(tmp_path)
    log.close()
    end = log.end_offset
    ending = Ending(end, end, clean=is_clean)
    files = segments_of(tmp_path)
    assert len(files) > 3
    for name in files[1].parent.glob(f"{files[1].stem}.*"):
        name.unlink()
    file = files[0].with_suffix(".index")
    if index == "none":
        for name in files[0].parent.glob(f"{files[0].stem}.*index"):
            name.unlink()
    elif index != "whole":
        at = {"empty": b"", "beyond": struct.pack(">ii", 1, 2**31 - 1)}
        put(file, at.get(index, struct.pack(">ii", 1, -1)))
    found = reopen(tmp_path, SMALL, ending=ending)
    assert found.damaged is not None and "one between them is missing" in found.damaged
    assert files[0].name in found.damaged and str(int(files[2].stem)) in found.damaged


def test_a_segment_whose_end_cannot_be_walked_is_not_a_missing_one(tmp_path: Path) -> None:
    """The damage is named when it is read, with its own name and offset."""
    log = write(tmp_path)
    log.close()
    first = segments_of(tmp_path)[0]
    content = bytearray(first.read_bytes())
    *_, (at, _) = walk(content)
    content[at + MAGIC_POSITION] ^= 1
    put(first, content)
    found = reopen(tmp_path, SMALL, ending=Ending(log.end_offset, log.end_offset, clean=True))
    assert found.damaged is None
    offset = 0
    while isinstance(data := found.read(offset, 1), memoryview):
        offset = read_header(data).next_offset
    assert found.damaged is not None and "missing" not in found.damaged


def test_neighbours_are_compared_with_few_reads(tmp_path: Path) -> None:
    """S14: a start after a clean stop must not read what the log holds."""

    class CountingFile(QuickFile):
        def read_at(self, position: int, size: int) -> bytes:
            data = super().read_at(position, size)
            read.append(len(data))
            return data

    class CountingDisk(QuickDisk):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
            plain = super().open(path, create=create, read_only=read_only)
            return CountingFile(plain.path, plain._fd)

    read: list[int] = []
    log = new_log(tmp_path, replace(SMALL, segment_bytes=1_000_000, index_interval_bytes=4096))
    while len(log.segments) < 4:
        log.append_as_leader(batch(20, size=100), 0, NOW_MS)
    log.close()
    shared = resources(CountingDisk())
    segments = [
        Segment(shared, each.directory, each.base_offset, each.size, each.next_offset)
        for each in log.segments
    ]
    assert missing_between(shared, segments, 0, 0) is None
    assert sum(read) < 100_000 < log.size


def test_neighbours_are_compared_from_where_no_cleaner_has_run(tmp_path: Path) -> None:
    """Apache Kafka's cleaner leaves gaps between segments."""
    log = write(tmp_path)
    log.close()
    (middle, third) = segments_of(tmp_path)[1:3]
    ending = Ending(log.end_offset, log.end_offset, clean=True)
    for name in middle.parent.glob(f"{middle.stem}.*"):
        name.unlink()
    checkpoint = encode_offsets({log.partition: int(third.stem)})
    found = reopen(tmp_path, SMALL, ending=ending, cleaned=checkpoint)
    assert found.damaged is None


def test_neighbours_of_a_log_that_our_cleaner_has_compacted_stand_without_a_gap(
    tmp_path: Path,
) -> None:
    configs = replace(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
    log = new_log(tmp_path, configs)
    for number in range(60):
        log.append_as_leader(batch(2, key=b"%d" % (number % 7)), 0, NOW_MS)
    log.high_watermark = log.end_offset
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    assert finish(applying(log, compact(log.resources.disk, plan), NOW_MS)) is not None
    assert log.close()
    found = reopen(tmp_path, configs, ending=Ending(log.end_offset, log.end_offset, clean=True))
    assert found.damaged is None and found.first_dirty_offset == 0
