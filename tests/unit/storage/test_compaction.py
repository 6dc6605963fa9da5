"""Compaction: which record stays, what is never touched, and crashes at every rename."""

from __future__ import annotations

import errno
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.compacting import COMPACT, clean, contents, few, put
from tests.support.pieces import by_threads
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
from tests.support.watched_disk import WatchedDisk
from tidelog.model.configs.types import MAX_INT64
from tidelog.model.work import finish
from tidelog.records.batch import Rejected, walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import dirtiness, plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log.cold import cold_read
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended


def test_tombstones_may_be_kept_for_ever(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(COMPACT, delete_retention_ms=MAX_INT64))
    for number in range(40):
        put(log, (f"k{number % 3}", f"v{number}"))
    put(log, ("k1", None))
    for number in range(40):
        put(log, ("other", f"o{number}"))
    before = {record.offset: record for record in records_of(log)}
    assert clean(log)
    assert contents(log) == {"k0": "v39", "k1": None, "k2": "v38", "other": "o39"}
    assert all(before[record.offset] == record for record in records_of(log))


def test_the_newest_value_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(40):
        put(log, (f"k{number % 3}", f"v{number}"), ("other", f"o{number}"))
    before = {record.offset: record for record in records_of(log)}
    size = log.size
    assert clean(log)
    after = records_of(log)
    assert contents(log) == {"k0": "v39", "k1": "v37", "k2": "v38", "other": "o39"}
    assert all(before[record.offset] == record for record in after)
    assert log.size < size / 2
    assert log.end_offset == 80
    assert clean(log) is None, "a clean log is not cleaned again"


def test_small_segments_are_merged_and_the_active_one_is_not_touched(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(60):
        put(log, ("k", f"v{number}"))
    segments = len(log.segments)
    clean(log)
    assert log.size < segments * 300
    for number in range(20):
        put(log, ("k", f"w{number}"))
    active = log.segments[-1]
    kept = active.read_bytes(0, active.size)
    clean(log)
    assert len(log.segments) < segments, "what one run shrank, the next run merges"
    assert log.segments[-1] is active and active.read_bytes(0, active.size) == kept


def test_a_tombstone_stays_until_its_horizon(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None))
    for number in range(30):
        put(log, ("filler", f"f{number}" * 5))
    clean(log)
    assert contents(log)["a"] is None
    marked = [
        header
        for segment in log.segments
        for _, header in walk(segment.read_bytes(0, segment.size))
        if header.delete_horizon_ms is not None
    ]
    assert [header.delete_horizon_ms for header in marked] == [NOW_MS + 1000]
    times = {record.key: record.timestamp for record in records_of(log)}
    assert times[b"a"] == NOW_MS, "the horizon does not change a record's timestamp"
    for late, there in ((999, True), (1000, False)):
        for number in range(30):
            put(log, ("filler", f"g{number}" * 5))
        clean(log, NOW_MS + late)
        assert ("a" in contents(log)) is there
    assert contents(log)["b"] == "1"


def test_the_last_five_batches_of_a_producer_stay_without_their_records(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    _, *last = (put(log, ("a", f"{n}"), producer=Producer(9, 0, n)) for n in range(6))
    for number in range(30):
        put(log, ("a", f"x{number}" * 4))
    clean(log)
    headers = [
        header
        for segment in log.segments
        for _, header in walk(segment.read_bytes(0, segment.size))
        if header.producer_id == 9
    ]
    kept = [(header.base_offset, header.record_count) for header in headers]
    assert kept == [(offset, 0) for offset in last]
    log = reopen(tmp_path, COMPACT)
    again = build_batch([NewRecord(NOW_MS, b"a", b"5")], producer=Producer(9, 0, 5))
    assert log.append_as_leader(again, 0, NOW_MS).duplicate  # type: ignore[union-attr]


def test_a_read_goes_on_after_emptied_batches_until_there_are_records(tmp_path: Path) -> None:
    """Otherwise the Java client's poll ends with nothing, as if the log ended there."""
    log = new_log(tmp_path, COMPACT)
    for number in range(60):
        put(log, ("k", f"v{number}" * 8))
    clean(log)
    offset, answers = log.start_offset, []
    while offset < log.end_offset:
        found = log.read(offset, 1 << 20)
        assert isinstance(found, memoryview)
        headers = [header for _, header in walk(found)]
        answers.append([header.record_count for header in headers])
        offset = headers[-1].next_offset
    assert answers[0][0] == 0, "the oldest segment was emptied"
    assert all(any(counts) for counts in answers)
    small = log.read(log.start_offset, 61)
    assert isinstance(small, memoryview) and len(small) == 61, "what was asked for is the limit"


@pytest.mark.parametrize("codec", range(5))
def test_compressed_batches_stay_compressed(codec: int, tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(40):
        put(log, ("same", "x" * 50), (f"k{number}", "y" * 50), codec=codec)
    clean(log)
    assert len(contents(log)) == 41
    for segment in log.segments:
        for _, header in walk(segment.read_bytes(0, segment.size)):
            assert header.codec == codec


def test_nothing_young_unsynced_or_uncommitted_is_cleaned(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(COMPACT, min_compaction_lag_ms=10_000))
    for number in range(30):
        put(log, ("k", f"v{number}" * 4))
    log.sync()
    assert plan_compaction(log, NOW_MS + 9_999) is None
    assert plan_compaction(log, NOW_MS + 10_000) is not None
    log.high_watermark = 3
    assert plan_compaction(log, NOW_MS + 10_000) is None
    log.high_watermark = log.end_offset
    log.synced_end_offset = 0
    assert plan_compaction(log, NOW_MS + 10_000) is None


def test_the_dirty_ratio_and_the_longest_lag_decide(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(60):
        put(log, (f"k{number}", f"v{number}" * 4))
    clean(log)
    log.configure(replace(COMPACT, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=5000))
    for number in range(20):
        put(log, (f"k{number}", "new" * 6))
    log.sync()
    assert 0 < dirtiness(log, NOW_MS).ratio < 0.9
    assert plan_compaction(log, NOW_MS + 5000) is None
    assert plan_compaction(log, NOW_MS + 5001) is not None


def test_more_keys_than_memory_take_more_runs(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(200):
        put(log, (f"k{number % 50}", f"v{number}"))
    expected = contents(log)
    runs = 0
    while clean(log, share=few(7)) is not None:
        runs += 1
        assert contents(log) == expected
    assert runs > 5
    assert (
        sum(1 for record in records_of(log) if record.offset < log.segments[-1].base_offset) <= 50
    )


def test_a_result_that_no_longer_fits_is_dropped(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(40):
        put(log, ("k", f"v{number}" * 4))
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    result = compact(QuickDisk(), plan)
    assert finish(log.truncation(30, NOW_MS)) is None
    before = records_of(log)
    assert finish(applying(log, result, NOW_MS)) is None
    assert records_of(log) == before
    assert not list((tmp_path / "t-0").glob("*.cleaned"))


def test_a_result_is_dropped_although_other_records_have_filled_the_same_places(
    tmp_path: Path,
) -> None:
    """A follower cut its log while it was cleaned, and copied as much of the new leader's."""
    log = new_log(tmp_path, COMPACT)
    for number in range(40):
        put(log, (f"k{number % 4}", f"former-{number:02}"))
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    result = compact(QuickDisk(), plan)
    sizes = [segment.size for segment in log.segments]
    assert finish(log.truncation(0, NOW_MS)) is None
    for number in range(40):
        put(log, (f"k{number % 4}", f"latter-{number:02}"))
    assert [segment.size for segment in log.segments] == sizes
    before = records_of(log)
    assert finish(applying(log, result, NOW_MS)) is None
    assert records_of(log) == before


def test_retries_are_known_when_compaction_has_taken_their_batches(tmp_path: Path) -> None:
    """The cleaner keeps none for the sake of a producer that it does not know; then a kill."""
    log = new_log(tmp_path, COMPACT)
    for number in range(40):
        put(log, ("k", f"v{number:02}"), producer=Producer(7, 0, number))
    log.sync()
    log.roll(NOW_MS)
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    result = compact(QuickDisk(), replace(plan, producers=frozenset()))
    for snapshot in Path(log.path).glob("*.snapshot"):
        snapshot.unlink()
    log.high_watermark = end = log.end_offset
    assert finish(applying(log, result, NOW_MS)) is not None
    assert len(records_of(log)) < 5
    log.resources.files.close()
    log = reopen(tmp_path, COMPACT, ending=Ending(end, end))
    again = build_batch([NewRecord(NOW_MS, b"k", b"v37")], producer=Producer(7, 0, 37))
    got = log.append_as_leader(again, 0, NOW_MS)
    assert isinstance(got, Appended) and (got.duplicate, got.first_offset) == (True, 37)


class StopsAt(QuickDisk):
    """A disk whose process dies before its n-th rename."""

    def __init__(self, renames: int) -> None:
        self.left = renames

    def rename(self, source: str, target: str) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        super().rename(source, target)


def test_a_crash_at_every_rename_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(40):
        put(log, (f"k{number % 4}", f"v{number}" * 3))
    log.sync()
    finish(log.housekeeping(NOW_MS))
    expected, end = contents(log), log.end_offset
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    result = compact(QuickDisk(), plan)
    log.resources.files.close()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "t-0", saved)
    crashed = 0
    for renames in range(100):
        shutil.rmtree(tmp_path / "t-0")
        shutil.copytree(saved, tmp_path / "t-0")
        ending = Ending(recovery_point=end, high_watermark=end)
        log = reopen_without_tidying(tmp_path, ending, saved)
        log.resources.disk = StopsAt(renames)
        try:
            finish(applying(log, replace(result, plan=replace(plan, generation=0)), NOW_MS))
        except KeyboardInterrupt:
            crashed += 1
            log = reopen(tmp_path, COMPACT, ending=ending)
            assert log.damaged is None
            assert contents(log) == expected and log.end_offset == end
            continue
        break
    assert crashed > 10
    assert contents(log) == expected


def test_between_the_pieces_of_a_swap_all_is_read_and_appends_go_on(tmp_path: Path) -> None:
    """A thread waits for the disk (S9): the log is as whole in between as before and after."""
    disk = WatchedDisk()
    log = new_log(tmp_path, COMPACT, resources(disk))
    for number in range(120):
        put(log, (f"k{number % 40}", f"v{number}" * 3))
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    result = compact(QuickDisk(), plan)
    assert len(result.groups) > 2
    expected = contents(log)
    turns = 0

    def others() -> None:
        nonlocal turns
        turns += 1
        key = f"k{turns % 40}"
        put(log, (key, f"new{turns}" * 5))
        expected[key] = f"new{turns}" * 5
        assert contents(log) == expected
        assert log.read(log.end_offset - 1, 100) and offset_for_time(log, NOW_MS) is not None
        assert finish(log.housekeeping(NOW_MS)) is None, "one change of a log at a time"
        assert isinstance(finish(log.truncation(5, NOW_MS)), Rejected)

    segments = len(log.segments)
    disk.calls.clear()
    assert by_threads(applying(log, result, NOW_MS), others) is not None
    assert len(disk.of("sync_directory")) == 2, "however many segments"
    assert not disk.here("sync", "sync_directory", "remove")
    assert turns > 2 * len(result.groups) and len(log.segments) != segments
    assert contents(log) == expected
    log.sync()
    assert remove_due(log, NOW_MS) > 0
    left = {path.suffix for path in Path(log.path).iterdir()}
    assert not left & {".swap", ".deleted", ".cleaned"}
    end = log.end_offset
    log.resources.files.close()
    found = reopen(tmp_path, COMPACT, ending=Ending(recovery_point=end, high_watermark=end))
    assert contents(found) == expected and found.end_offset == end


class RenamesBesideReaders(QuickDisk):
    """Reads before and after each rename, as the loop may while a thread renames.

    One name never changes (``stuck``), if there is one.
    """

    def __init__(self) -> None:
        self.look = lambda: None
        self.stuck = ""
        self.renamed: list[str] = []

    def rename(self, source: str, target: str) -> None:
        self.look()
        if self.stuck and source.endswith(self.stuck):
            raise OSError(errno.EIO, "no such luck", source)
        super().rename(source, target)
        self.renamed.append(target)
        self.look()


@pytest.mark.parametrize("stuck", ["", ".index.swap", ".log.swap"])
def test_between_two_renames_of_a_swap_all_is_read(tmp_path: Path, stuck: str) -> None:
    """The kind: a thread renames while the loop opens files, for it has two open, looks up by time
    and rebuilds indexes."""
    disk = RenamesBesideReaders()
    log = new_log(tmp_path, COMPACT, resources(disk, open_files=2))
    for number in range(60):
        put(log, (f"k{number % 40}", f"v{number}" * 3))
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    result = compact(QuickDisk(), plan)
    assert len(result.groups) > 1
    expected, newest = contents(log), log.end_offset - 1

    def read() -> None:
        assert contents(log) == expected
        assert log.read(newest, 100) and offset_for_time(log, NOW_MS) is not None
        assert cold_read(log, log.start_offset, 1000) is None
        assert log.segments[0].rebuild_indexes(100) and log.segments[-2].rebuild_indexes(100)
        for segment in log.segments[:-1]:
            segment.drop_indexes()

    disk.look = read
    disk.stuck = stuck
    said = by_threads(applying(log, result, NOW_MS))
    if stuck:
        assert said is None and log.failed is not None
    else:
        assert said is not None and log.failed is None
        assert len([path for path in disk.renamed if path.endswith((".log", "index"))]) >= 6
        assert not log.resources.files._renaming
        assert {path.suffix for path in Path(log.path).iterdir()} & {".swap"} == set()
    read()
    disk.look = lambda: None
    log.resources.files.close()
    end = log.end_offset
    found = reopen(tmp_path, COMPACT, ending=Ending(recovery_point=end, high_watermark=end))
    assert found.damaged is None
    assert contents(found) == expected and found.end_offset == end


def reopen_without_tidying(path: Path, ending: Ending, saved: Path) -> PartitionLog:
    """Open the log as it was while the cleaner ran: a start would remove ``.cleaned`` files."""
    log = reopen(path, COMPACT, ending=ending)
    for file in saved.glob("*.cleaned"):
        shutil.copy(file, path / "t-0" / file.name)
    return log


@pytest.mark.parametrize("seed", range(6))
def test_random_keys_keep_their_newest_value(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = new_log(tmp_path, replace(COMPACT, segment_bytes=chance.choice([400, 1500, 4000])))
    newest: dict[str, str | None] = {}
    offsets: dict[int, tuple[str, str | None]] = {}
    now = NOW_MS
    for number in range(300):
        now += chance.randrange(20)
        pairs = [
            (
                f"k{chance.randrange(20)}" * chance.choice([1, 9]),
                chance.choice([None, f"v{number}"]),
            )
            for _ in range(chance.randrange(1, 5))
        ]
        first = put(log, *pairs, codec=chance.choice([0, 0, 1, 3]), now_ms=now)
        for at, pair in enumerate(pairs):
            offsets[first + at] = pair
            newest[pair[0]] = pair[1]
        step = chance.random()
        if step < 0.1:
            clean(log, now, share=few(chance.choice([5, 1000])))
        elif step < 0.15:
            log.sync()
            log.resources.files.close()
            ending = Ending(log.synced_end_offset, log.high_watermark, log.start_offset)
            log = reopen(tmp_path, log.configs, now_ms=now, ending=ending)
            log.high_watermark = log.end_offset
        if number % 20 == 0:
            found = contents(log)
            live = {key: value for key, value in newest.items() if value is not None}
            assert {key: value for key, value in found.items() if value is not None} == live
            for record in records_of(log):
                assert record.key is not None
                value = None if record.value is None else record.value.decode()
                assert offsets[record.offset] == (record.key.decode(), value)


def test_a_log_that_is_compacted_and_expires_does_both(tmp_path: Path) -> None:
    configs = replace(COMPACT, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000)
    log = new_log(tmp_path, configs)
    for number in range(40):
        put(log, ("k", f"v{number}" * 4))
    clean(log)
    assert contents(log) == {"k": "v39" * 4}
    assert finish(log.housekeeping(NOW_MS + 5000))
    assert records_of(log) == []
    assert log.start_offset == log.end_offset == 40
    assert log.append_as_leader(batch(), 0, NOW_MS).first_offset == 40  # type: ignore[union-attr]


LAGGING = replace(COMPACT, segment_bytes=100_000, max_compaction_lag_ms=5000)


def test_max_compaction_lag_rolls_the_active_segment(tmp_path: Path) -> None:
    """S10: what the active segment holds was never compacted, however old."""
    log = new_log(tmp_path, LAGGING)
    for age in (0, 4000, 5000, 5001):
        log.append_as_leader(batch(timestamp=NOW_MS + age), 0, NOW_MS + age)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    log.configure(replace(LAGGING, cleanup_policy=frozenset({"delete"})))
    log.append_as_leader(batch(timestamp=NOW_MS + 20_000), 0, NOW_MS + 20_000)
    assert len(log.segments) == 2, "it is of no concern to a topic that is not compacted"


def test_max_compaction_lag_rolls_the_segment_of_a_log_that_nothing_is_appended_to(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path, LAGGING)
    log.append_as_leader(batch(), 0, NOW_MS)
    log.roll_overdue(NOW_MS + 5000)
    log.configure(replace(LAGGING, cleanup_policy=frozenset({"delete"})))
    log.roll_overdue(NOW_MS + 50_000)
    assert len(log.segments) == 1
    log.configure(LAGGING)
    log.roll_overdue(NOW_MS + 5001)
    log.roll_overdue(NOW_MS + 50_001)
    assert [segment.base_offset for segment in log.segments] == [0, 1]
