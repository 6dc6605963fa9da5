"""Group commit: what one trip to a thread syncs, and what happens when a file cannot be opened."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.lone_broker import LoneBroker, until
from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import QuickDisk
from tests.support.watched_disk import WatchedDisk
from tidelog.broker.partitions import group_commit
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.disk import RealFile
from tidelog.runtime.seams import Seams
from tidelog.storage.log import epoch_file, syncing
from tidelog.storage.log.epoch_file import PendingEpochs
from tidelog.storage.log.snapshots import PendingSnapshot
from tidelog.storage.log.syncing import PendingSync
from tidelog.storage.names import EPOCH_CHECKPOINT, EPOCH_CHECKSUM


class Shy(QuickDisk):
    """A disk that opens no log file while ``fault`` is set."""

    fault = 0

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        if self.fault and path.endswith(".log"):
            raise OSError(self.fault, "a fault of the test", path)
        return super().open(path, create=create, read_only=read_only)


def append(hosted: HostedPartition) -> None:
    result = hosted.append(build_batch([NewRecord(-1, b"k", b"v")]), 1)
    assert hasattr(result, "first_offset"), result


async def two_logs(tmp_path: Path, disk: QuickDisk) -> tuple[LoneBroker, list[HostedPartition]]:
    lone = LoneBroker(tmp_path, {"log.durability": "sync"}, Seams(disk=disk))
    await lone.start()
    lone.lead("t", 2)
    hosted = [lone.broker.partitions.get("t", index) for index in range(2)]
    return lone, [each for each in hosted if each is not None]


def test_logs_wait_for_file_descriptors_and_are_synced_then(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Shy()
        lone, logs = await two_logs(tmp_path, disk)
        for each in logs:
            append(each)
        logs[1].log.resources.files.close()
        append(logs[0])  # opens its file again
        disk.fault = errno.EMFILE
        await until(lambda: logs[0].high_watermark == 2)
        assert logs[1].high_watermark == 0 and logs[1].offline_reason is None
        disk.fault = 0
        await until(lambda: logs[1].high_watermark == 1)
        assert await closes_cleanly(lone)

    asyncio.run(main())


def test_a_file_that_cannot_be_opened_takes_the_directory_offline(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Shy()
        lone, logs = await two_logs(tmp_path, disk)
        append(logs[0])
        logs[0].log.resources.files.close()
        disk.fault = errno.EIO
        await until(lambda: logs[0].offline_reason is not None)
        assert logs[0].high_watermark == 0
        await lone.broker.commit.settled()
        disk.fault = 0
        await lone.stop()

    asyncio.run(main())


def test_one_trip_takes_so_many_logs_and_the_others_go_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MOST_PER_TRIP", 2)
    trips: list[int] = []

    def run_all(pendings: Sequence[PendingSync]) -> None:
        trips.append(len(pendings))
        syncing.run_all(pendings)

    monkeypatch.setattr(group_commit, "run_all", run_all)

    async def main() -> None:
        lone = LoneBroker(tmp_path, {"log.durability": "sync"})
        await lone.start()
        lone.lead("t", 5)
        logs = list(lone.broker.partitions.all())
        for each in logs:
            append(each)
        await until(lambda: all(each.high_watermark == 1 for each in logs))
        assert await closes_cleanly(lone)

    asyncio.run(main())
    assert sum(trips) >= 5
    assert max(trips) == 2


def test_a_log_that_is_deleted_while_its_epochs_are_written_fails_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, deleted = threading.Event(), threading.Event()

    def held(epochs: Sequence[PendingEpochs], synced: Sequence[PendingSync] = ()) -> None:
        if len(epochs) > 1:
            begun.set()
            assert deleted.wait(DEADLINE_S)
        syncing.write_all_epochs(epochs, synced)

    monkeypatch.setattr(group_commit, "write_all_epochs", held)

    async def main() -> None:
        lone, logs = await two_logs(tmp_path, Shy())
        for each in logs:
            append(each)
        await until(begun.is_set)
        lone.broker.partitions.stop("t", 0, delete=True)
        deleted.set()
        await until(lambda: logs[1].high_watermark == 1 or logs[1].offline_reason)
        assert logs[1].offline_reason is None
        assert await closes_cleanly(lone)

    asyncio.run(main())


def planted(*_: object, **__: object) -> None:
    raise RuntimeError("planted")


@pytest.mark.parametrize(
    "where",
    [
        "what is to be synced",
        "a log's sync, in the thread",
        "the trip",
        "taking the sync back",
        "telling of it",
    ],
)
def test_a_bug_on_the_way_of_a_sync_leaves_no_producer_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It is no error of the disk, and takes the directory out of service all the same: what is
    durable is unknown. A bug in a callback that runs after the sync does not."""

    async def main() -> None:
        lone, logs = await two_logs(tmp_path, Shy())
        for each in logs:
            append(each)
        await lone.broker.commit.settled()
        assert [each.high_watermark for each in logs] == [1, 1]
        waiting = []
        with monkeypatch.context() as patch:
            if where == "what is to be synced":
                patch.setattr(logs[0].log, "unsynced", planted)
            elif where == "a log's sync, in the thread":
                patch.setattr(PendingSnapshot, "write", planted)
                logs[0].log.snapshots.take(1, logs[0].log.producers)
            elif where == "the trip":
                patch.setattr(group_commit, "run_all", planted)
            elif where == "taking the sync back":
                patch.setattr(logs[0].log, "synced", planted)
            else:
                patch.setattr(HostedPartition, "synced", planted)
            for each in logs:
                append(each)
                stored = lone.broker.commit.until_stored(each)
                waiting.append(asyncio.create_task(stored))
            await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
            await lone.broker.commit.settled()
        failed = [each.offline_reason is not None for each in logs]
        assert failed == [where != "telling of it"] * 2
        if where == "telling of it":
            append(logs[1])
            await until(lambda: logs[1].high_watermark == 3)
        else:
            assert "planted" in (lone.broker.directories[0].failed or "")
            assert logs[0].high_watermark == 1
        await lone.stop()

    asyncio.run(main())


@pytest.mark.parametrize("closed_only", [False, True])
def test_very_many_closed_segments_are_synced_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_only: bool
) -> None:
    """All of them in one trip were three files each that were opened on the loop: 100 ms and more
    for a thousand, and where they were more than the process may have, the log was never synced."""
    trips: list[PendingSync] = []

    def run_all(pendings: Sequence[PendingSync]) -> None:
        trips.extend(pendings)
        syncing.run_all(pendings)

    monkeypatch.setattr(group_commit, "run_all", run_all)
    segments = 3 * group_commit.MOST_SEGMENTS + 5

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        hosted = lone.lead("t", configs={"segment.bytes": "100"})
        log = hosted.log
        log.sync()
        for _ in range(segments):
            append(hosted)
        assert len(log.segments) == segments
        lone.broker.commit.want(hosted, closed_only=closed_only)
        await lone.broker.commit.settled()
        assert log.synced_end_offset == segments - closed_only
        assert await closes_cleanly(lone)

    asyncio.run(main())
    ends = [each.end_offset for each in trips]
    assert ends == sorted(set(ends))
    assert max(len(each.files) for each in trips) <= 3 * group_commit.MOST_SEGMENTS + 5
    assert [each.leaves_rest for each in trips] == [True] * (len(trips) - 1) + [False]


def test_a_thread_writes_the_epochs_that_a_sync_wants_written(tmp_path: Path) -> None:
    """Under load the rename alone held the loop for 379 ms; a full disk has it tried again."""

    async def main() -> None:
        disk = WatchedDisk()
        lone = LoneBroker(tmp_path, {"log.durability": "sync"}, Seams(disk=disk))
        await lone.start()
        hosted = lone.lead("t")
        disk.calls.clear()
        append(hosted)
        await until(lambda: hosted.high_watermark == 1)
        assert disk.of("rename", ending=EPOCH_CHECKPOINT)
        assert not disk.here("rename")
        assert not disk.here("write", ending=EPOCH_CHECKSUM)
        assert await closes_cleanly(lone)

    asyncio.run(main())


def test_a_log_whose_epochs_find_no_room_is_synced_when_there_is_some(tmp_path: Path) -> None:
    class Full(QuickDisk):
        full = True
        tries = 0

        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
            if self.full and create and EPOCH_CHECKSUM in path:
                self.tries += 1
                raise OSError(errno.ENOSPC, "a fault of the test", path)
            return super().open(path, create=create, read_only=read_only)

    async def main() -> None:
        disk = Full()
        lone, logs = await two_logs(tmp_path, disk)
        append(logs[0])
        await until(lambda: disk.tries > 1)
        assert logs[0].high_watermark == 0 and logs[0].offline_reason is None
        disk.full = False
        await until(lambda: logs[0].high_watermark == 1)
        assert await closes_cleanly(lone)

    asyncio.run(main())


def test_a_bug_in_what_writes_the_epochs_leaves_no_producer_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        lone, logs = await two_logs(tmp_path, Shy())
        monkeypatch.setattr(epoch_file, "write_whole", planted)
        append(logs[0])
        stored = lone.broker.commit.until_stored(logs[0])
        await asyncio.wait_for(stored, DEADLINE_S)
        assert "planted" in (lone.broker.directories[0].failed or "")
        assert logs[0].high_watermark == 0
        monkeypatch.undo()
        await lone.stop()

    asyncio.run(main())


async def closes_cleanly(lone: LoneBroker) -> bool:
    await lone.broker.commit.settled()
    (directory,) = lone.broker.directories
    pins = directory.resources.files._pins
    await lone.stop()
    return not pins and directory.failed is None
