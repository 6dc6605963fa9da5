"""Work on a log that is deleted in the midst of it: no fault of its log directory, and nothing
of it is in the next replica of the same name."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.storage_logs import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    QuickDisk,
    batch,
    open_as_a_server,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import Work, finish
from tidelog.records.builder import Producer
from tidelog.runtime.disk import Directory, RealFile
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended
from tidelog.storage.log.snapshots import PendingSnapshot
from tidelog.storage.log.time_lookup import Allowance
from tidelog.storage.names import SNAPSHOT, TEMPORARY


class Strict(QuickDisk):
    """A quick disk that opens no directory that is not there."""

    def open_directory(self, path: str) -> Directory:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return super().open_directory(path)


def newest(log: PartitionLog) -> Work[Any]:
    """The log's start is inside of a batch: after the search over the segments that one is read."""
    return log.search_newest(log.end_offset, Allowance())


def before_roll(log: PartitionLog) -> Work[Any]:
    """Both the file and the directory must be synced before a roll."""
    log.undone_writes += 1
    return log.syncing_before_roll()


def retention(log: PartitionLog) -> Work[Any]:
    return log.housekeeping(NOW_MS, at_most=2)


def configs(log: PartitionLog) -> Work[Any]:
    return log.keeping_configs((("retention.ms", "1"),))


WORKS = (newest, before_roll, retention, configs)
NOT_WAITED_FOR = (newest, before_roll)
"""A deletion waits for the others (``LogWork``): no replica of the same name is there meanwhile."""
MOST_PAUSES = 20


def a_log(path: Path, work: Callable[[PartitionLog], Work[Any]]) -> tuple[LogDirectory, Any]:
    directory = open_as_a_server(path, resources(Strict()))
    log = directory.create(PARTITION, TopicConfigs(), PartitionMetadata(TOPIC_ID))
    for _ in range(1 if work is before_roll else 4):
        log.append_as_leader(batch(3, timestamp=NOW_MS), 1, NOW_MS)
        if work is not before_roll:
            log.roll(NOW_MS)
            log.sync()
    log.high_watermark = log.end_offset
    assert log.advance_start(1 if work is not retention else 9) is None
    return directory, log


def deleted_at(path: Path, work: Callable[[PartitionLog], Work[Any]], at: int, again: bool) -> bool:
    """Delete the log at a pause of the work, and go on; return whether there is such a pause.

    With ``again`` the next replica of the name is there then, and stays as it is.
    """
    directory, log = a_log(path, work)
    pieces, pauses, new = work(log), 0, None
    found: list[Path] = []
    try:
        call = next(pieces)
        while True:
            if pauses == at:
                directory.delete(PARTITION, durable=False)
                if again:
                    new = directory.create(PARTITION, TopicConfigs(), PartitionMetadata(TOPIC_ID))
                    found = sorted((path / "t-0").iterdir())
            pauses += 1
            try:
                made = None if call is None else call()
            except OSError as error:
                call = pieces.throw(error)
            else:
                call = pieces.send(made)
    except StopIteration:
        pass
    assert directory.failed is None, (work, at, directory.failed)
    if new is not None:
        assert sorted((path / "t-0").iterdir()) == found
        assert isinstance(new.append_as_leader(batch(), 1, NOW_MS), Appended)
    return pauses > at


@pytest.mark.parametrize(
    ("work", "again"),
    [(work, False) for work in WORKS] + [(work, True) for work in NOT_WAITED_FOR],
)
def test_no_log_directory_fails_for_a_log_that_is_deleted_meanwhile(
    tmp_path: Path, work: Callable[[PartitionLog], Work[Any]], again: bool
) -> None:
    """Found by a load that deleted topics while clients looked for the newest record."""
    at = 0
    while deleted_at(tmp_path / str(at), work, at, again):
        at += 1
        assert at < MOST_PAUSES
    assert at > 0


def test_no_file_of_a_log_that_has_moved_meanwhile_is_opened(tmp_path: Path) -> None:
    """Its former directory is still there for a while. A file that stays open would be taken for
    that of the next log of this path: for damage, and a write to it would be lost."""
    _, log = a_log(tmp_path, newest)
    pieces = newest(log)
    next(pieces)
    log.forget_files()
    for _ in pieces:
        pass
    assert [path for path in log.resources.files._open if path.startswith(f"{log.path}/")] == []


class Between(Strict):
    """Calls ``between`` once, when a snapshot is about to be written."""

    between: Callable[[], None] | None = None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        if path.endswith(f"{SNAPSHOT}{TEMPORARY}") and self.between is not None:
            call, self.between = self.between, None
            call()
        return super().open(path, create=create, read_only=read_only)


def test_a_late_snapshot_leaves_nothing_with_the_next_replica_of_the_name(tmp_path: Path) -> None:
    disk = Between()
    directory = open_as_a_server(tmp_path, resources(disk))
    found: list[Path] = []
    pendings = []

    def begun() -> list[PendingSnapshot]:
        log = directory.create(PARTITION, TopicConfigs(), PartitionMetadata(TOPIC_ID))
        log.append_as_leader(batch(1, producer=Producer(7, 0, 0)), 1, NOW_MS)
        log.take_snapshot()
        return log.snapshots.for_sync()

    def born_again() -> None:
        directory.delete(PARTITION, durable=False)
        pendings.extend(begun())
        found.extend(sorted((tmp_path / "t-0").iterdir()))

    (late,) = begun()
    disk.between = born_again
    late.write()
    assert found and sorted((tmp_path / "t-0").iterdir()) == found
    # Both may be written at the same time.
    assert [each._temporary for each in pendings] != [late._temporary]
    for each in pendings:
        each.write()
        assert Path(each.path).exists()


def test_the_identity_of_a_log_that_is_deleted_meanwhile_is_not_synced(tmp_path: Path) -> None:
    directory, log = a_log(tmp_path, newest)
    log.adopt_metadata(PartitionMetadata(TOPIC_ID, 3))
    directory.delete(PARTITION, durable=False)
    finish(log.syncing_metadata())
