"""When segments begin and end: rolling, retention by time, size and log start."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.storage_logs import (
    NOW_MS,
    QuickDisk,
    batch,
    new_log,
    offset_for_time,
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
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended
from tidelog.storage.log.retention import must_roll
from tidelog.storage.segments.times import largest_timestamp

KEEP = TopicConfigs(segment_bytes=1000, retention_ms=-1, file_delete_delay_ms=500)


def fill(log: PartitionLog, batches: int, *, step_ms: int = 1000, size: int = 20) -> None:
    for number in range(batches):
        log.append_as_leader(batch(2, timestamp=NOW_MS + number * step_ms, size=size), 0, NOW_MS)
    log.high_watermark = log.end_offset


def test_a_segment_never_grows_above_segment_bytes(tmp_path: Path) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 50)
    assert len(log.segments) > 3
    for segment in log.segments[:-1]:
        assert segment.size <= 1000 < segment.size + log.segments[0].size // 8
    got = log.append_as_leader(batch(1, size=1200), 0, NOW_MS)
    assert isinstance(got, Rejected) and got.error is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_segment_ends_after_segment_ms_of_record_time(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(KEEP, segment_ms=5000, segment_bytes=10**6))
    for at in (0, 4999, 5000, 5001, 5002):
        log.append_as_leader(batch(1, timestamp=NOW_MS + at), 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 3]


@pytest.mark.parametrize("seed", range(8))
def test_within_its_room_no_append_ends_a_segment(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = new_log(tmp_path, KEEP)
    inside = 0
    for _ in range(600):
        if rng.random() < 0.02:
            log.configure(
                TopicConfigs(
                    segment_bytes=rng.choice((900, 5000, 10**6)),
                    segment_ms=rng.choice((100, 10_000)),
                    segment_index_bytes=rng.choice((48, 240, 10_000)),
                    index_interval_bytes=rng.choice((0, 100, 400)),
                    segment_jitter_ms=rng.choice((0, 50)),
                )
            )
        if rng.random() < 0.02:
            finish(log.truncation(rng.randrange(log.end_offset + 1), NOW_MS))
        time_ms = NOW_MS + rng.randrange(2000)
        content = batch(1, timestamp=time_ms, size=rng.randrange(200))
        active, room, end = log.segments[-1], log.segments[-1].room, log.end_offset
        is_in = (
            time_ms <= room.timestamp
            and active.size + len(content) <= room.size
            and end <= room.offset
        )
        inside += is_in
        jitter_ms = log.jitter_ms
        due = must_roll(active, log.configs, len(content), time_ms, end, jitter_ms, NOW_MS)
        assert not (is_in and due)
        log.append_as_leader(content, 0, NOW_MS)
        assert (log.segments[-1] is not active) == due
    assert inside > 50


def test_without_timestamps_the_clock_ends_a_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(KEEP, segment_ms=5000))
    for at in (0, 5000, 5001):
        log.append_as_leader(batch(1, timestamp=-1, step=0), 0, NOW_MS + at)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_jitter_shortens_segments_by_at_most_itself(tmp_path: Path) -> None:
    configs = replace(KEEP, segment_ms=5000, segment_jitter_ms=2000, segment_bytes=10**6)
    log = new_log(tmp_path, configs)
    for at in range(0, 60_000, 100):
        log.append_as_leader(batch(1, timestamp=NOW_MS + at), 0, NOW_MS)
    lengths = [
        (later.base_offset - earlier.base_offset) * 100
        for earlier, later in zip(log.segments, log.segments[1:], strict=False)
    ]
    assert all(3000 <= length <= 5100 for length in lengths)
    assert len(set(lengths)) > 1


def test_a_full_index_ends_a_segment(tmp_path: Path) -> None:
    configs = replace(KEEP, segment_bytes=10**6, index_interval_bytes=1, segment_index_bytes=120)
    log = new_log(tmp_path, configs)
    fill(log, 60)
    assert {len(segment.index) for segment in log.segments[:-1]} == {9}, "12-byte entries, one free"


def test_time_retention_removes_whole_old_segments_only(tmp_path: Path) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 60)
    log.configure(replace(KEEP, retention_ms=20_000))
    limit = NOW_MS + 60_000
    said = finish(log.housekeeping(limit))
    assert said is not None and "retention.ms=20000" in said
    first = log.segments[0]
    assert limit - largest_timestamp(first) <= 20_000
    assert log.start_offset == first.base_offset > 0
    assert records_of(log)[0].offset == first.base_offset
    assert finish(log.housekeeping(limit)) is None
    assert isinstance(log.read(0, 100), Rejected)


def test_files_go_after_the_delay_and_after_the_renaming_is_durable(tmp_path: Path) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 30)
    log.configure(replace(KEEP, retention_bytes=1000))
    finish(log.housekeeping(NOW_MS))
    deleted = list((tmp_path / "t-0").glob("*.deleted"))
    assert len(deleted) > 3
    remove_due(log, NOW_MS + 499)
    assert list((tmp_path / "t-0").glob("*.deleted")) == deleted
    remove_due(log, NOW_MS + 500)
    # Each removal was durable before the next one: those of the last segment wait for a sync.
    assert len(list((tmp_path / "t-0").glob("*.deleted"))) == 3
    log.sync()
    remove_due(log, NOW_MS + 500)
    assert not list((tmp_path / "t-0").glob("*.deleted"))


def test_size_retention_keeps_at_least_the_bytes_asked_for(tmp_path: Path) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 60)
    log.configure(replace(KEEP, retention_bytes=2500))
    first = log.segments[0].size
    finish(log.housekeeping(NOW_MS))
    assert 2500 <= log.size < 2500 + first


def test_any_size_below_0_is_no_limit(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(KEEP, retention_bytes=-2))
    fill(log, 60)
    assert finish(log.housekeeping(NOW_MS)) is None
    assert log.start_offset == 0


def test_no_time_is_old_without_a_limit(tmp_path: Path) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 60)
    assert finish(log.housekeeping(NOW_MS + 10**12)) is None
    assert log.start_offset == 0


@pytest.mark.parametrize("by", [{"retention_ms": 0}, {"retention_bytes": 0}])
def test_nothing_at_or_above_the_high_watermark_goes(tmp_path: Path, by: dict[str, int]) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 60)
    log.high_watermark = 41
    log.configure(replace(KEEP, **by))
    finish(log.housekeeping(NOW_MS + 10**9))
    assert log.segments[0].base_offset <= 41 < log.segments[1].base_offset
    assert [record.offset for record in records_of(log)][-1] == 119


def test_when_everything_is_too_old_an_empty_segment_remains(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(KEEP, retention_ms=1000))
    fill(log, 10)
    assert finish(log.housekeeping(NOW_MS + 10**6))
    assert (log.start_offset, log.end_offset, log.size) == (20, 20, 0)
    log.close()
    log = reopen(tmp_path, KEEP, ending=Ending(20, 20, 20, clean=True))
    assert log.append_as_leader(batch(), 0, NOW_MS).first_offset == 20  # type: ignore[union-attr]


def test_compacted_logs_expire_only_below_the_log_start(tmp_path: Path) -> None:
    configs = replace(KEEP, cleanup_policy=frozenset({"compact"}), retention_ms=0)
    log = new_log(tmp_path, configs)
    fill(log, 60)
    assert finish(log.housekeeping(NOW_MS + 10**9)) is None
    assert log.advance_start(50) is None
    assert finish(log.housekeeping(NOW_MS)) is not None
    assert log.segments[0].base_offset <= 50 < log.segments[1].base_offset
    assert log.start_offset == 50


def test_delete_records_moves_the_start_up_to_the_high_watermark(tmp_path: Path) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 20)
    log.high_watermark = 30
    refused = log.advance_start(31)
    assert refused is not None and refused.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.advance_start(13) is None
    assert log.start_offset == 13
    assert isinstance(log.read(12, 100), Rejected)
    assert records_of(log)[0].offset == 13
    assert log.advance_start(5) is None and log.start_offset == 13
    found = offset_for_time(log, 0)
    assert found is not None and found.offset == 13  # type: ignore[union-attr]


def test_new_settings_work_at_once(tmp_path: Path) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 4)
    log.configure(replace(KEEP, segment_bytes=200, max_message_bytes=100))
    got = log.append_as_leader(batch(1, size=100), 0, NOW_MS)
    assert isinstance(got, Rejected) and got.error is ErrorCode.MESSAGE_TOO_LARGE
    log.append_as_leader(batch(1, size=5), 0, NOW_MS)
    assert len(log.segments) == 2


def test_segments_go_a_few_at_a_time_when_a_limit_is_given(tmp_path: Path) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 80)
    begins = [segment.base_offset for segment in log.segments]
    assert len(begins) > 8
    log.configure(replace(KEEP, retention_ms=1000))
    later = NOW_MS + 1_000_000
    assert "3 segments" in str(finish(log.housekeeping(later, at_most=3)))
    assert log.start_offset == begins[3]
    while finish(log.housekeeping(later, at_most=3)) is not None:
        pass
    assert log.start_offset == log.end_offset == 160


def test_a_busy_log_that_is_never_clean_frees_its_disk(tmp_path: Path) -> None:
    """S1: each round made the directory dirty again, and files waited until it was not."""
    log = new_log(tmp_path, replace(KEEP, retention_bytes=2000))
    pending, most = None, 0
    for second in range(100):
        now = NOW_MS + 100 * second
        log.append_as_leader(batch(4, size=100, timestamp=now), 0, now)
        log.roll(now)
        log.high_watermark = log.end_offset
        finish(log.housekeeping(now))
        # There is a roll, or a removal, that no sync has covered yet, at every moment.
        if pending is not None:
            pending.run()
            log.synced(pending)
        pending = log.unsynced(closed_only=True)
        assert pending is not None
        log.roll(now)
        remove_due(log, now)
        most = max(most, len(list((tmp_path / "t-0").glob("*.log.deleted"))))
    assert len(log.segments) < 10
    assert most <= 10, "file.delete.delay.ms is 500: five rounds, and what waits for its sync"


def test_a_file_goes_only_when_a_sync_that_began_after_its_renaming_has_returned(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path, KEEP)
    fill(log, 30)
    log.configure(replace(KEEP, retention_bytes=1000))
    before = log.unsynced()
    assert before is not None
    finish(log.housekeeping(NOW_MS))
    deleted = sorted((tmp_path / "t-0").glob("*.deleted"))
    before.run()
    log.synced(before)
    covered = {Path(path) for _, path in log.resources.removals._waiting}
    # Each removal is durable before the next one: the last one's files alone wait for a sync.
    last = max(int(path.name.split(".")[0]) for path in deleted)
    assert covered == {path for path in deleted if int(path.name.split(".")[0]) != last}
    log.sync()
    assert remove_due(log, NOW_MS + 500) == len(deleted)
    assert not list((tmp_path / "t-0").glob("*.deleted"))


def test_what_is_to_go_from_a_log_goes_with_its_directory(tmp_path: Path) -> None:
    """A next replica of the same name may have files of the same names."""
    log = new_log(tmp_path, replace(KEEP, retention_bytes=1000))
    fill(log, 30)
    finish(log.housekeeping(NOW_MS))
    log.sync()
    assert len(log.resources.removals)
    log.forget_files()
    assert not len(log.resources.removals)


class NotingDisk(QuickDisk):
    """Notes the renames in a log's directory and the syncs of its names, in their order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.done.append(new.rpartition("/")[2].partition(".")[0])

    def sync_directory(self, path: str) -> None:
        self.done.append("sync")


def test_what_takes_over_is_durable_before_the_first_segment_goes(tmp_path: Path) -> None:
    """Otherwise a power loss keeps the removal and not the next segment; no crash leaves a hole."""
    disk = NotingDisk()
    log = new_log(tmp_path, KEEP, resources(disk))
    fill(log, 20)
    gone = [f"{segment.base_offset:020d}" for segment in log.segments[:3]]
    log.configure(replace(KEEP, retention_ms=1000))
    disk.done.clear()
    finish(log.housekeeping(NOW_MS + 1_000_000, at_most=3))
    order = [each for each, _ in itertools.groupby(disk.done)]
    assert order[0] == "sync"
    assert [x for x in order if x != "sync"] == gone
    for one, following in itertools.pairwise(gone):
        assert "sync" in order[order.index(one) : order.index(following)]


def test_retention_holds_no_file_open_for_ever(tmp_path: Path) -> None:
    """A directory that stays pinned for each round is a descriptor that is never given back."""
    log = new_log(tmp_path, KEEP)
    fill(log, 20)
    log.configure(replace(KEEP, retention_ms=1000))
    finish(log.housekeeping(NOW_MS + 1_000_000))
    log.sync()
    assert log.resources.files._pins == {}


def test_retries_are_known_when_their_batches_have_gone(tmp_path: Path) -> None:
    """Retention took the batches of a silent producer; then the process was killed."""
    log = new_log(tmp_path, KEEP)
    made = batch(2, timestamp=NOW_MS, producer=Producer(7, 0, 0))
    first = log.append_as_leader(made, 0, NOW_MS)
    fill(log, 40)
    log.sync()
    log.configure(replace(KEEP, retention_ms=1000))
    for name in Path(log.path).glob("*.snapshot"):
        name.unlink()
    finish(log.housekeeping(NOW_MS + 10_000))
    assert log.start_offset > 2
    log.resources.files.close()
    end = log.end_offset
    log = reopen(tmp_path, KEEP, ending=Ending(end, end, log.start_offset))
    again = log.append_as_leader(made, 0, NOW_MS)
    assert isinstance(first, Appended) and isinstance(again, Appended)
    assert (again.duplicate, again.first_offset) == (True, first.first_offset)
