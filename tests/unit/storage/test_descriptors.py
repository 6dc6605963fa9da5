"""A process without a free file descriptor: what cannot be opened is done later, nothing fails."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.storage_logs import (
    NOW_MS,
    FaultyDisk,
    batch,
    new_log,
    records_of,
    remove_due,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition
from tidelog.model.work import finish
from tidelog.records.batch import Rejected
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.seams import Seams
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.directory.log_directory import LogDirectory, open_directory
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended
from tidelog.storage.segments.open_files import OpenFiles

SMALL = TopicConfigs(segment_bytes=1000, file_delete_delay_ms=0)
COMPACTED = replace(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


@contextmanager
def none_left() -> Iterator[None]:
    """Take every descriptor that the process may still open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(name) for name in os.listdir("/proc/self/fd")) + 8
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, soft), hard))
    try:
        while True:
            try:
                held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError as error:
                assert error.errno == errno.EMFILE
                break
        yield
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def filled(path: Path, configs: TopicConfigs) -> PartitionLog:
    # Two open files: whatever is asked for next must be opened.
    log = new_log(path, configs, resources(RealDisk(), open_files=2))
    while len(log.segments) < 5:
        log.append_as_leader(batch(2), 0, NOW_MS)
    log.high_watermark = log.end_offset
    log.sync()
    assert log.failed is None
    return log


def goes_on(log: PartitionLog) -> None:
    assert log.failed is None
    assert isinstance(log.append_as_leader(batch(), 0, NOW_MS), Appended)
    log.sync()
    assert log.failed is None and log.synced_end_offset == log.end_offset
    assert log.resources.files._pins == {}, "what was given up keeps no descriptor"


def test_a_sync_that_was_taken_needs_no_descriptor_more(tmp_path: Path) -> None:
    """S6: it opened the log's directory in its thread, and a failure of that counted as one of
    the disk."""
    log = filled(tmp_path, SMALL)
    log.append_as_leader(batch(2), 0, NOW_MS)
    log.roll(NOW_MS)
    pending = log.unsynced()
    assert pending is not None and pending.directories
    with none_left():
        pending.run()
    assert pending.error is None
    log.synced(pending)
    assert log.synced_end_offset == log.end_offset
    goes_on(log)


def test_a_sync_that_cannot_be_taken_is_taken_later(tmp_path: Path) -> None:
    log = filled(tmp_path, SMALL)
    log.append_as_leader(batch(2), 0, NOW_MS)
    log.roll(NOW_MS)
    log.resources.files.close()
    with none_left():
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            log.unsynced()
        log.sync()
        assert log.failed is None and log.synced_end_offset < log.end_offset
    goes_on(log)


def test_a_swap_of_compacted_segments_that_cannot_begin_is_no_fault_of_the_disk(
    tmp_path: Path,
) -> None:
    log = filled(tmp_path, COMPACTED)
    for again in (False, True):
        plan = plan_compaction(log, NOW_MS)
        assert plan is not None
        result = compact(log.resources.disk, plan)
        if again:
            assert finish(applying(log, result, NOW_MS)) is not None
        else:
            with none_left():
                finish(applying(log, result, NOW_MS))
            assert log.failed is None
            if log.first_dirty_offset:
                break  # a descriptor was still open
    assert not list(tmp_path.rglob("*.swap"))
    goes_on(log)


def test_retention_stops_before_it_begins_or_not_at_all(tmp_path: Path) -> None:
    log = filled(tmp_path, SMALL)
    log.configure(replace(SMALL, retention_bytes=1000))
    log.resources.files.close()
    with none_left():
        finish(log.housekeeping(NOW_MS))
    living = {Path(segment.log_path) for segment in log.segments}
    assert living == set((tmp_path / "t-0").glob("*.log")), "what is not in the log is on the way"
    goes_on(log)
    while finish(log.housekeeping(NOW_MS)) is not None:
        pass
    log.sync()
    remove_due(log, NOW_MS)
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    assert len(records_of(log)) == log.end_offset - log.start_offset


def test_the_names_of_a_log_directory_are_synced_without_a_descriptor(tmp_path: Path) -> None:
    found = open_directory(
        Seams(disk=RealDisk()), str(tmp_path), cluster_id="c", node_id=1, boot_id="b"
    )
    assert isinstance(found, LogDirectory)
    found.load(lambda _kept: SMALL)
    found.create(TopicPartition("t", 0), SMALL)
    with none_left():
        found.delete(TopicPartition("t", 0), durable=False)
        finish(found.syncing_names())
    assert found.failed is None
    assert found.close()


def test_open_files_make_room_for_the_one_that_is_asked_for(tmp_path: Path) -> None:
    """The operating system allows fewer than the limit set: half of what is open is enough."""
    files = OpenFiles(RealDisk(), limit=64)
    for number in range(10):
        files.get(str(tmp_path / str(number)), create=True)
    with none_left():
        files.get(str(tmp_path / "one more"), create=True)
        assert len(files) == 5
        files.get_directory(str(tmp_path))
    files.close()


@pytest.mark.parametrize("want", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_want_that_heals_fails_no_log_directory(tmp_path: Path, want: int) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, SMALL, resources(disk))
    disk.fault = want
    assert isinstance(log.append_as_leader(batch(), 0, NOW_MS), Rejected)
    disk.fault = None
    goes_on(log)
