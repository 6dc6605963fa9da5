"""The creation of a log on a full disk, and the next one in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.storage_logs import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    FaultyDisk,
    batch,
    open_as_a_server,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended

START = 48
"""A partition that comes again continues at the offset where it ended: its log file is made at
once."""


def test_the_next_creation_writes_to_files_that_are_there(tmp_path: Path) -> None:
    disk = FaultyDisk()
    directory = open_as_a_server(tmp_path, resources(disk))

    def create() -> PartitionLog:
        metadata = PartitionMetadata(TOPIC_ID, 0)
        return directory.create(PARTITION, TopicConfigs(), metadata, start_offset=START)

    # Of any file: the log file is made, and cannot be made empty.
    disk.failing = ("",)
    disk.fill_up()
    with pytest.raises(OSError):
        create()
    disk.fault = None
    log = create()
    assert isinstance(log.append_as_leader(batch(2), 0, NOW_MS), Appended)
    assert (Path(log.path) / f"{START:020}.log").stat().st_size == log.size > 0
