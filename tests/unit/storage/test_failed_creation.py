"""The creation of a log on a full disk, and the next one in its place."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support.storage_logs import NOW_MS, FaultyDisk, batch, resources
from tidelog.model.configs.topic_values import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.log.opening import create_log
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended

START = 48
"""A partition that comes again continues at the offset where it ended: its log file is made at
once."""


def test_the_next_creation_writes_to_files_that_are_there(tmp_path: Path) -> None:
    disk = FaultyDisk()
    shared = resources(disk)

    def create() -> PartitionLog:
        return create_log(
            shared,
            str(tmp_path / "t-0"),
            TopicPartition("t", 0),
            TopicConfigs(),
            now_ms=NOW_MS,
            metadata=PartitionMetadata(uuid.UUID(int=1)),
            start_offset=START,
        )

    # Of any file: the log file is made, and cannot be made empty.
    disk.failing = ("",)
    disk.fill_up()
    with pytest.raises(OSError):
        create()
    assert not (tmp_path / "t-0").exists()
    disk.fault = None
    log = create()
    assert isinstance(log.append_as_leader(batch(2), 0, NOW_MS), Appended)
    assert (tmp_path / "t-0" / f"{START:020}.log").stat().st_size == log.size > 0
