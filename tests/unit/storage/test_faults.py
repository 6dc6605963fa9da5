"""A full disk, failing writes and failing fsyncs (promises 25 and 28); group commit."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import (
    BOOT,
    NOW_MS,
    PARTITION,
    FaultyDisk,
    batch,
    new_log,
    offset_for_time,
    open_as_a_server,
    records_of,
    remove_due,
    reopen,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.records.batch import Rejected
from tidelog.records.builder import Producer
from tidelog.runtime.disk import Directory, RealFile
from tidelog.storage.checkpoints import encode_offsets
from tidelog.storage.log.epoch_file import PendingEpochs
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended
from tidelog.storage.log.syncing import PendingSync, run_all, write_all_epochs

SMALL = TopicConfigs(segment_bytes=800)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def log(tmp_path: Path, disk: FaultyDisk) -> PartitionLog:
    made = new_log(tmp_path, SMALL, resources(disk))
    disk.syncs.clear()  # of the directory's own files
    return made


def append(log: PartitionLog, count: int = 2) -> Appended | Rejected:
    return log.append_as_leader(batch(count), 0, NOW_MS)


@pytest.mark.parametrize("failing", [".log", ".index"])
def test_a_full_disk_refuses_appends_serves_reads_and_heals(
    log: PartitionLog, disk: FaultyDisk, failing: str
) -> None:
    for _ in range(6):
        append(log)
    disk.failing = (failing,)
    disk.fill_up()
    seen = set()
    told: list[str] = []
    log.resources.on_refused = told.append
    for _ in range(20):
        end, size = log.end_offset, log.size
        got = append(log)
        if isinstance(got, Rejected):
            seen.add(got.error)
            assert "full" in got.reason
            assert told.pop() == "the disk is full"
            assert (log.end_offset, log.size) == (end, size)
        assert len(records_of(log)) == log.end_offset
    assert failing == ".index" or seen == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert log.failed is None
    disk.fault = None
    end = log.end_offset
    for _ in range(20):
        assert isinstance(append(log), Appended)
    assert len(records_of(log)) == log.end_offset == end + 40
    log.close()
    assert log.failed is None


def test_a_refused_append_of_an_idempotent_producer_can_be_sent_again(
    log: PartitionLog, disk: FaultyDisk
) -> None:
    made = batch(2, producer=Producer(1, 0, 0))
    disk.fill_up()
    assert isinstance(log.append_as_leader(made, 0, NOW_MS), Rejected)
    disk.fault = None
    got = log.append_as_leader(made, 0, NOW_MS)
    assert isinstance(got, Appended) and not got.duplicate


def test_any_other_failed_write_is_final_for_the_directory(tmp_path: Path) -> None:
    disk = FaultyDisk()
    shared = resources(disk)
    told = []
    shared.on_failure = told.append
    log = new_log(tmp_path / "one", SMALL, shared)
    other = new_log(tmp_path / "two", SMALL, shared)
    append(log)
    disk.fault = errno.EIO
    got = append(log)
    assert isinstance(got, Rejected) and got.error is ErrorCode.KAFKA_STORAGE_ERROR
    disk.fault = None
    for one in (log, other):
        assert one.failed is not None
        assert isinstance(append(one), Rejected)
    assert len(records_of(log)) == 2
    assert len(told) == 1


def test_a_failed_fsync_is_final_and_not_tried_again(log: PartitionLog, disk: FaultyDisk) -> None:
    append(log)
    disk.sync_fault = errno.EIO
    pending = log.unsynced()
    assert pending is not None
    pending.run()
    log.synced(pending)
    assert log.failed is not None and "fsync" in log.failed
    assert log.synced_end_offset == 0
    disk.sync_fault = None
    syncs = len(disk.syncs)
    assert isinstance(append(log), Rejected)
    log.close()
    assert len(disk.syncs) == syncs


class Synced:
    """A file that counts its syncs, and may fail them."""

    path = "x.log"

    def __init__(self, fault: int = 0) -> None:
        self.fault = fault
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        if self.fault:
            raise OSError(self.fault, "a fault of the test", self.path)


def test_after_a_failed_fsync_nothing_more_of_its_directory_is_synced() -> None:
    """The others of a trip were not failed themselves: their directory was (promise 25)."""
    files = [Synced(), Synced(errno.EIO), Synced(), Synced()]
    directories = ("one", "one", "one", "other")
    trip = [
        PendingSync(directory, [file], [], 0, 1, 0)  # type: ignore[list-item]
        for directory, file in zip(directories, files, strict=True)
    ]
    run_all(trip)
    assert [file.syncs for file in files] == [1, 1, 0, 1]
    assert [each.error is not None for each in trip] == [False, True, True, False]


def epochs_of(tmp_path: Path, disk: FaultyDisk, *names: str) -> list[PendingEpochs]:
    """Writes of leader epochs; the first one's temporary files end in .0.tmp."""
    shared = resources(disk)
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    return [PendingEpochs(shared, f"{tmp_path}/{name}", b"0\n0\n", None) for name in names]


def test_after_a_failed_fsync_no_epochs_of_its_directory_are_written(tmp_path: Path) -> None:
    """They have syncs of their own, in the same trip to a thread (promise 25)."""
    disk = FaultyDisk()
    epochs = epochs_of(tmp_path, disk, "one/t-0", "other/t-1")
    bad = Synced(errno.EIO)
    failed = PendingSync(f"{tmp_path}/one", [bad], [], 0, 1, 0)  # type: ignore[list-item]
    run_all([failed])
    write_all_epochs(epochs, [failed])
    assert [each.is_written for each in epochs] == [False, True]
    assert epochs[0].error is failed.error
    assert disk.syncs and all("/other/" in path for path in disk.syncs)


def test_after_failed_epochs_no_others_of_their_directory_are_written(tmp_path: Path) -> None:
    disk = FaultyDisk()
    epochs = epochs_of(tmp_path, disk, "one/t-0", "one/t-1")
    disk.failing, disk.fault = (".0.tmp",), errno.EIO
    write_all_epochs(epochs)
    assert [each.is_written for each in epochs] == [False, False]
    assert epochs[1].error is epochs[0].error


def test_epochs_that_a_full_disk_refuses_are_no_failure_of_the_others(tmp_path: Path) -> None:
    disk = FaultyDisk()
    epochs = epochs_of(tmp_path, disk, "one/t-0", "one/t-1")
    disk.failing, disk.fault = (".0.tmp",), errno.ENOSPC
    write_all_epochs(epochs)
    assert [each.is_written for each in epochs] == [False, True]


def test_epochs_of_a_deleted_log_are_no_failure_of_the_others(tmp_path: Path) -> None:
    """CI, 2026-11-27: a topic was deleted right after a resize, and the broker served nothing."""
    epochs = epochs_of(tmp_path, FaultyDisk(), "one/t-0", "one/t-1", "one/t-2")
    epochs[0].call_off()
    (tmp_path / "one/t-0").rename(tmp_path / "one/t-0.deleted")
    write_all_epochs(epochs)
    assert [each.is_written for each in epochs] == [False, True, True]
    assert epochs[0].overtaken and epochs[1].error is None


def test_the_recovery_point_moves_only_when_a_sync_is_handed_back(
    log: PartitionLog, disk: FaultyDisk
) -> None:
    append(log)
    first = log.unsynced()
    append(log)
    second = log.unsynced()
    assert first is not None and second is not None
    assert log.synced_end_offset == 0 and not disk.syncs
    second.run()
    first.run()
    log.synced(second)
    assert log.synced_end_offset == 4
    log.synced(first)
    assert log.synced_end_offset == 4
    assert log.unsynced() is None


def test_nothing_is_synced_at_append_and_a_roll_leaves_the_closed_segment(
    log: PartitionLog, disk: FaultyDisk
) -> None:
    while len(log.segments) < 3:
        append(log)
    assert not disk.syncs
    pending = log.unsynced(closed_only=True)
    assert pending is not None
    pending.run()
    log.synced(pending)
    assert log.synced_end_offset == log.segments[-1].base_offset
    assert log.segments[-1].log_path not in disk.syncs
    assert {segment.log_path for segment in log.segments[:-1]} <= set(disk.syncs)
    assert log.unsynced(closed_only=True) is None


def test_the_indexes_of_a_segment_that_was_rolled_beside_its_sync_are_synced_too(
    log: PartitionLog, disk: FaultyDisk
) -> None:
    """S16: the sync under way covers its bytes; below the recovery point no start looks again."""
    append(log)
    pending = log.unsynced()
    assert pending is not None
    log.roll(NOW_MS)
    pending.run()
    log.synced(pending)
    assert log.synced_end_offset == log.end_offset
    disk.syncs.clear()
    log.sync()
    closed = log.segments[0]
    assert {*closed.index_paths} <= set(disk.syncs)
    # What no sync has covered yet is synced with its indexes, each file once.
    append(log)
    log.roll(NOW_MS)
    disk.syncs.clear()
    log.sync()
    closed = log.segments[1]
    assert {closed.log_path, *closed.index_paths} <= set(disk.syncs)
    assert len(disk.syncs) == len(set(disk.syncs))


def test_a_sync_that_was_under_way_claims_nothing_after_a_truncation(log: PartitionLog) -> None:
    append(log, 5)
    pending = log.unsynced()
    assert pending is not None
    pending.run()
    finish(log.truncation(0, NOW_MS))
    append(log, 5)
    log.synced(pending)
    assert log.synced_end_offset == 0


def test_fewer_files_than_promised_are_lived_with(tmp_path: Path) -> None:
    class FewFiles(FaultyDisk):
        left = 12

        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
            if self.left == 0:
                raise OSError(errno.EMFILE, "too many open files", path)
            self.left -= 1
            file = super().open(path, create=create, read_only=read_only)
            close = file.close

            def count() -> None:
                if file._fd >= 0:
                    self.left += 1
                close()

            file.close = count  # type: ignore[method-assign]
            return file

    shared = resources(FewFiles(), open_files=1000)
    log = new_log(tmp_path, SMALL, shared)
    for _ in range(100):
        assert isinstance(append(log), Appended)
    assert len(records_of(log)) == 200
    assert 2 <= len(shared.files) <= 12


def test_segments_may_be_deleted_while_they_are_synced(log: PartitionLog) -> None:
    while len(log.segments) < 4:
        append(log)
    pending = log.unsynced()
    assert pending is not None
    log.configure(TopicConfigs(segment_bytes=800, retention_bytes=0, file_delete_delay_ms=0))
    log.high_watermark = log.end_offset
    assert finish(log.housekeeping(NOW_MS))
    assert len(log.segments) == 1
    pending.run()
    log.synced(pending)
    assert log.failed is None
    log.sync()
    assert remove_due(log, NOW_MS)
    assert not list(Path(log.path).glob("*.deleted"))


class FewFiles(FaultyDisk):
    """A disk that opens only so many files more."""

    left = 1_000_000

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        if self.left <= 0:
            raise OSError(errno.EMFILE, "a fault of the test", path)
        self.left -= 1
        return super().open(path, create=create, read_only=read_only)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_what_cannot_be_opened_for_a_sync_is_synced_later(tmp_path: Path, left: int) -> None:
    disk = FewFiles()
    shared = resources(disk, open_files=1)
    log = new_log(tmp_path, SMALL, shared)
    log.begin_epoch(3)
    for _ in range(20):
        append(log)
    disk.left = left
    with pytest.raises(OSError, match="a fault of the test"):
        log.unsynced()
    log.sync()
    assert log.failed is None and log.synced_end_offset == 0
    disk.left = 1_000_000
    disk.syncs.clear()
    log.sync()
    assert log.synced_end_offset == log.end_offset
    synced = {Path(path).name for path in disk.syncs}
    assert "leader-epoch-checkpoint" in synced
    assert f"{0:020d}.log" in synced and Path(log.segments[-1].log_path).name in synced
    assert not shared.files._pins
    assert remove_due(log, NOW_MS) == 0 and log.close()


@pytest.mark.parametrize("heals", ["before a sync", "before the stop", "never"])
def test_an_epoch_that_a_full_disk_refused_is_not_forgotten(
    tmp_path: Path, disk: FaultyDisk, heals: str
) -> None:
    log = new_log(tmp_path, SMALL, resources(disk))
    log.begin_epoch(1)
    assert isinstance(log.append_as_leader(batch(2), 1, NOW_MS), Appended)
    log.sync()
    disk.failing = ("leader-epoch-checkpoint.tmp",)
    disk.fill_up()
    log.begin_epoch(2)
    assert isinstance(log.append_as_leader(batch(2), 2, NOW_MS), Appended)
    log.sync()
    assert log.failed is None
    assert log.synced_end_offset == 2, "the file does not know of epoch 2 yet"
    if heals == "before a sync":
        disk.fault = None
        log.sync()
        assert log.synced_end_offset == 4
    elif heals == "before the stop":
        disk.fault = None
    assert log.close() is (heals != "never")
    disk.fault = None
    ending = Ending(clean=heals != "never", recovery_point=log.synced_end_offset)
    again = reopen(tmp_path, SMALL, resources(disk), ending=ending)
    assert again.epochs.entries == [(1, 0), (2, 2)]


def test_a_snapshot_without_room_is_written_by_a_later_sync(
    log: PartitionLog, disk: FaultyDisk, tmp_path: Path
) -> None:
    disk.failing = (".snapshot.tmp",)
    disk.fill_up()
    for _ in range(20):
        assert isinstance(append(log), Appended)
    assert len(log.segments) > 2
    log.sync()
    assert log.failed is None and log.synced_end_offset == 40, "the records are synced all the same"
    assert not list((tmp_path / "t-0").glob("*.snapshot"))
    disk.fault = None
    log.sync()
    assert list((tmp_path / "t-0").glob("*.snapshot"))
    assert log.unsynced() is None


def test_retention_makes_room_on_a_full_disk(tmp_path: Path, disk: FaultyDisk) -> None:
    configs = TopicConfigs(segment_bytes=800, retention_ms=1000, file_delete_delay_ms=0)
    log = new_log(tmp_path, configs, resources(disk))
    for at in range(20):
        sent = batch(2, producer=Producer(7, 0, 2 * at))
        assert isinstance(log.append_as_leader(sent, 0, NOW_MS), Appended)
    log.high_watermark = log.end_offset
    log.sync()
    disk.failing = (".tmp", ".log")
    disk.fill_up()
    later = NOW_MS + 10_000
    assert finish(log.housekeeping(later)) is not None
    assert len(log.segments) == 2 and log.failed is None
    assert finish(log.housekeeping(later)) is None, "its producer would not be known after a crash"
    assert log.start_offset < log.end_offset
    disk.fault = None
    assert finish(log.housekeeping(later)) is not None
    assert log.start_offset == log.end_offset == 40


class Descriptors(FaultyDisk):
    """Has no file descriptor left for one operation, the one that ``left`` others precede."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def _count(self, path: str) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise OSError(errno.EMFILE, "a fault of the test", path)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        self._count(path)
        return super().open(path, create=create, read_only=read_only)

    def list(self, path: str) -> list[str]:
        self._count(path)
        return super().list(path)

    def read(self, path: str) -> bytes:
        self._count(path)
        return super().read(path)

    def open_directory(self, path: str) -> Directory:
        self._count(path)
        return super().open_directory(path)


@pytest.mark.parametrize("left", range(12))
def test_a_removal_that_stops_half_way_is_seen_by_readers(tmp_path: Path, left: int) -> None:
    disk = Descriptors()
    configs = TopicConfigs(segment_bytes=800, retention_ms=1000, file_delete_delay_ms=0)
    log = new_log(tmp_path, configs, resources(disk, open_files=2))
    for _ in range(20):
        append(log)
    log.high_watermark = log.end_offset
    log.sync()
    disk.left = left
    finish(log.housekeeping(NOW_MS + 10_000))
    disk.left = None
    assert log.failed is None
    assert log.start_offset >= log.segments[0].base_offset, "offsets without records"
    assert isinstance(append(log), Appended)
    assert len(records_of(log)) == log.end_offset - log.start_offset
    found = reopen(tmp_path, configs, ending=Ending(log.synced_end_offset, 40, log.start_offset))
    assert (found.damaged, found.start_offset, found.end_offset) == (None, log.start_offset, 42)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("failing", [".index", ".timeindex"])
def test_readers_are_served_while_a_lost_index_cannot_be_written(
    log: PartitionLog, disk: FaultyDisk, failing: str, fault: int
) -> None:
    for _ in range(10):
        append(log)
    assert log.roll(NOW_MS) is None
    for segment in log.segments[:-1]:
        segment.drop_indexes()
        log.resources.files.forget(segment.index_path)
        Path(segment.index_path).unlink()
    disk.failing, disk.fault = (failing,), fault
    assert len(records_of(log)) == 20
    assert offset_for_time(log, NOW_MS) is not None
    assert log.failed is None
    disk.fault = None
    assert log.close()
    ending = Ending(log.end_offset, log.end_offset, clean=True)
    assert len(records_of(reopen(Path(log.path).parent, SMALL, ending=ending))) == 20


@pytest.mark.parametrize("left", range(10))
def test_a_read_that_no_descriptor_is_left_for_can_be_tried_again(
    tmp_path: Path, left: int
) -> None:
    disk = Descriptors()
    log = new_log(tmp_path, SMALL, resources(disk, open_files=2))
    for _ in range(10):
        append(log)
    assert log.roll(NOW_MS) is None
    for segment in log.segments[:-1]:
        segment.drop_indexes()
        Path(segment.index_path).unlink()
    log.resources.files.close()
    ends = [segment.next_offset for segment in log.segments]
    disk.left = left
    refused = log.read(6, 1)
    assert not isinstance(refused, Rejected) or refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    disk.left = None
    assert log.failed is None
    assert [segment.next_offset for segment in log.segments] == ends
    assert len(records_of(log)) == 20
    assert [segment.newest[0] for segment in log.segments[:-1]] == [NOW_MS + 1] * (len(ends) - 1)


@pytest.mark.parametrize("open_files", [2, 64])
@pytest.mark.parametrize("cut_to", [5, 9, 17])
def test_a_cut_that_is_not_finished_lets_nothing_be_appended(
    tmp_path: Path, cut_to: int, open_files: int
) -> None:
    refused = 0
    for left in range(40):
        disk = Descriptors()
        log = new_log(tmp_path / str(left), SMALL, resources(disk, open_files))
        for number in range(20):
            made = batch(1, producer=Producer(1, 0, number))
            assert isinstance(log.append_as_leader(made, 0, NOW_MS), Appended)
        disk.left = left
        got = finish(log.truncation(cut_to, NOW_MS))
        was_struck = disk.left is None
        disk.left = None
        refused += got is not None
        if got is not None and log.failed is None:
            # Nothing was cut: it can be tried again.
            assert finish(log.truncation(cut_to, NOW_MS)) is None
        retried = log.append_as_leader(batch(1, producer=Producer(1, 0, cut_to)), 1, NOW_MS)
        if log.failed is None:
            # It was not there any more, so it is no duplicate.
            assert retried == Appended(cut_to, cut_to, -1, 0)
            assert [offset for offset, *_ in records_of(log)] == list(range(cut_to + 1))
            log.close()
        else:
            assert isinstance(retried, Rejected)
        again = reopen(tmp_path / str(left), SMALL)
        assert again.damaged is None
        offsets = [offset for offset, *_ in records_of(again)]
        assert offsets == list(range(len(offsets)))
        if not was_struck:
            break  # it opens only that many: later ones would not be struck either
    assert refused and not was_struck


def test_a_cut_that_the_disk_refuses_half_way_is_the_error_of_the_log(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        append(log)
    log.high_watermark = 4

    truncate = RealFile.truncate

    def refuse(file: RealFile, size: int) -> None:
        if file.path.endswith(".log"):
            raise OSError(errno.ENOSPC, "a fault of the test", file.path)
        truncate(file, size)  # of the checkpoints that are lowered before

    monkeypatch.setattr(RealFile, "truncate", refuse)
    assert isinstance(finish(log.truncation(2, NOW_MS)), Rejected)
    assert log.failed is not None and f"a cut of {log.path} was not finished" in log.failed
    assert isinstance(append(log), Rejected)


@pytest.mark.parametrize("synced", [False, True])
def test_recovery_lives_with_two_open_files(tmp_path: Path, synced: bool) -> None:
    log = new_log(tmp_path, TopicConfigs(index_interval_bytes=100))
    for _ in range(10):
        append(log)
    if synced:
        log.sync()
    log.close()
    torn = Path(log.segments[-1].log_path)
    put(torn, torn.read_bytes() + batch(2)[:-1])
    ending = Ending(recovery_point=log.synced_end_offset if synced else 0)
    again = reopen(tmp_path, TopicConfigs(), resources(open_files=2), ending=ending)
    assert (again.damaged, again.recovered.cut_at, again.end_offset) == (None, 20, 20)
    assert len(records_of(again)) == 20


@pytest.mark.parametrize("want", [errno.ENOSPC, errno.EMFILE])
def test_what_a_crash_left_unsynced_waits_for_room(
    tmp_path: Path, disk: FaultyDisk, want: int
) -> None:
    """A start with log.durability=sync writes it once more: without room for that, or without file
    descriptors, it took the log directory out of service for good."""
    shared = resources(disk)
    log = new_log(tmp_path, SMALL, shared)
    append(log)
    log.sync()
    synced = log.end_offset
    for _ in range(20):
        append(log)
    assert len(log.segments) > 2
    (tmp_path / "tidelog.life").write_text(f"boot.id={BOOT}\nlog.durability=sync\n")
    offsets = encode_offsets({PARTITION: synced})
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        put(tmp_path / name, offsets)

    disk.fault = want
    shared = resources(disk)
    again = open_as_a_server(tmp_path, shared).logs[PARTITION]
    assert (again.failed, again.end_offset) == (None, log.end_offset)
    assert again.synced_end_offset == synced, "nothing above counts as stored"
    assert len(records_of(again)) == again.end_offset
    for _ in range(2):
        with pytest.raises(OSError, match="a fault of the test"):
            again.unsynced()
        assert (again.failed, again.synced_end_offset) == (None, synced)
    disk.syncs.clear()

    disk.fault = None
    written: list[tuple[str, int]] = []
    disk.written = lambda path, position: written.append((path, position))
    append(again)
    del written[:]
    again.sync()
    assert (again.failed, again.synced_end_offset) == (None, again.end_offset)
    bases = [segment.base_offset for segment in again.segments if segment.next_offset > synced]
    rewritten = {path for path, _ in written if path.endswith(".log")}
    assert {Path(path).name for path in rewritten} == {f"{base:020}.log" for base in bases}
    assert rewritten <= set(disk.syncs), "rewritten, and synced then"
    del written[:]
    append(again)
    del written[:]
    again.sync()
    assert not [path for path, _ in written if path.endswith(".log")], "once is enough"

    # What does not heal is final, as it was.
    disk.fault = errno.EIO
    (tmp_path / "tidelog.life").write_text(f"boot.id={BOOT}\nlog.durability=sync\n")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        put(tmp_path / name, offsets)
    last = open_as_a_server(tmp_path, resources(disk)).logs[PARTITION]
    assert last.failed is not None and "a write to" in last.failed
