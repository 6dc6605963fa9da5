"""Work in pieces on a log that is deleted between two of them: no fault of its log directory, and
nothing of it is in the next replica of the same name."""

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
from tidelog.model.configs.topic_values import TopicConfigs
from tidelog.runtime.disk import Directory
from tidelog.runtime.turns import Pieces
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended
from tidelog.storage.log.time_lookup import Allowance


class Strict(QuickDisk):
    """A quick disk that opens no directory that is not there."""

    def open_directory(self, path: str) -> Directory:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return super().open_directory(path)


def newest(log: PartitionLog) -> Pieces[Any]:
    """The log's start is inside of a batch: after the search over the segments that one is read."""
    return log.search_newest(log.end_offset, Allowance())


def before_roll(log: PartitionLog) -> Pieces[Any]:
    """Both the file and the directory must be synced before a roll."""
    log.undone_writes += 1
    return log.syncing_before_roll()


def retention(log: PartitionLog) -> Pieces[Any]:
    return log.housekeeping(NOW_MS, at_most=2)


def configs(log: PartitionLog) -> Pieces[Any]:
    return log.keeping_configs((("retention.ms", "1"),))


WORKS = (newest, before_roll, retention, configs)
NOT_WAITED_FOR = (newest, before_roll)
"""A deletion waits for the others (``LogWork``): no replica of the same name is there meanwhile."""
MOST_PAUSES = 20


def a_log(path: Path, work: Callable[[PartitionLog], Pieces[Any]]) -> tuple[LogDirectory, Any]:
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


def deleted_at(
    path: Path, work: Callable[[PartitionLog], Pieces[Any]], at: int, again: bool
) -> bool:
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
                if call is not None:
                    call()
            except OSError as error:
                call = pieces.throw(error)
            else:
                call = next(pieces)
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
    tmp_path: Path, work: Callable[[PartitionLog], Pieces[Any]], again: bool
) -> None:
    """Found by a load that deleted topics while clients looked for the newest record."""
    at = 0
    while deleted_at(tmp_path / str(at), work, at, again):
        at += 1
        assert at < MOST_PAUSES
    assert at > 0
