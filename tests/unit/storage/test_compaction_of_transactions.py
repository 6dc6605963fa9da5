"""Compaction of logs with transactions: aborted records go, markers stay for their time (0123)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.compacting import COMPACT, clean, few, put
from tests.support.storage_logs import NOW_MS, QuickDisk, new_log, reopen
from tests.support.transactional_logs import (
    aborted_in_batches,
    batch_of_keys,
    batches_from,
    check_aborted,
    committed_records,
    end,
    markers_in,
    send_keys,
    stable_by_batches,
)
from tidelog.model.work import finish
from tidelog.records.batch import read_header
from tidelog.records.builder import Producer
from tidelog.records.control_records import ChangeKind, FenceRecord, change_batch
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.log.aborted import ENTRY_BYTES, encode_check
from tidelog.storage.log.aborted_files import paths_of
from tidelog.storage.log.aborted_reading import aborted_between
from tidelog.storage.log.joining import NONE
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.producers import KnownBatch
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended
from tidelog.storage.log.stable import last_stable_offset

RETENTION_MS = COMPACT.delete_retention_ms
FORGETFUL = 1
"""A producer that no plan remembers: it has sent nothing in any test for longer than a day."""


def filled(log: PartitionLog, now_ms: int = NOW_MS) -> None:
    """Records of another key, so that all before them can be cleaned, and is dirty."""
    for number in range(40):
        put(log, ("other", f"o{number}"), now_ms=now_ms)
    log.roll(now_ms)
    put(log, ("other", "last"), now_ms=now_ms)


def values(log: PartitionLog) -> dict[str, str | None]:
    """What a fresh reader of committed records has for each key."""
    return {
        (one.key or b"").decode(): None if one.value is None else one.value.decode()
        for one in committed_records(log)
    }


def forget(log: PartitionLog, *producer_ids: int) -> None:
    """These producers have been silent for a day."""
    for producer_id in producer_ids:
        assert log.producers.entries[producer_id].open_since == NONE
        del log.producers.entries[producer_id]


def keys_left(log: PartitionLog) -> set[int]:
    """The offsets of batches with records and a producer that are left in the log."""
    return {
        header.base_offset
        for header, _ in batches_from(log)
        if header.record_count and header.producer_id >= 0 and not header.control
    }


def copied(log: PartitionLog, path: Path) -> PartitionLog:
    """Another replica, which has copied all of the log."""
    copy = new_log(path, log.configs)
    for segment in log.segments:
        if segment.size:
            got = copy.append_as_follower(segment.read_bytes(0, segment.size), NOW_MS)
            assert isinstance(got, Appended), got
    copy.raise_watermark(log.high_watermark)
    return copy


def test_an_aborted_record_is_not_the_newest_of_its_key(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("a", "plain"), ("gone", "v"))
    send_keys(log, 7, 0, ("a", "aborted"), ("b", "aborted"), ("gone", None))
    end(log, 7, committed=False)
    send_keys(log, 7, 1, ("b", "committed"), ("c", "committed"))
    end(log, 7)
    send_keys(log, 8, 0, ("c", "aborted"))
    end(log, 8, committed=False)
    filled(log)
    expected = {"a": "plain", "b": "committed", "c": "committed", "gone": "v", "other": "last"}
    assert values(log) == expected
    assert clean(log)
    assert values(log) == expected
    assert keys_left(log) == {6}, "records of aborted transactions are gone"


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_transaction_that_ends_after_the_range_is_aborted_in_it(
    tmp_path: Path, is_closed: bool
) -> None:
    """Its marker is in a later segment: in a file, or in the memory of the server."""
    log = new_log(tmp_path, replace(COMPACT, min_compaction_lag_ms=10_000))
    put(log, ("a", "plain"))
    send_keys(log, 7, 0, ("a", "aborted"))
    filled(log)
    late = NOW_MS + 20_000
    put(log, ("other", "young"), now_ms=late)
    marker = end(log, 7, committed=False)
    if is_closed:
        log.roll(late)
    put(log, ("other", "younger"), now_ms=late)
    log.sync()
    assert (log.segments[-1].base_offset in log.aborted.held) is not is_closed
    before = values(log)
    assert clean(log, NOW_MS + 15_000)
    assert log.first_dirty_offset < marker, "it is not in the range"
    assert values(log) == before == {"a": "plain", "other": "younger"}
    assert keys_left(log) == set()
    found = aborted_between(log, 0, log.end_offset).transactions
    assert [one.last_offset for one in found] == [marker]


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_stays_while_records_are_left_and_for_its_time_after(
    tmp_path: Path, committed: bool
) -> None:
    log = new_log(tmp_path, COMPACT)
    first = send_keys(log, FORGETFUL, 0, ("a", "1"))
    marker = end(log, FORGETFUL, committed=committed)
    filled(log)
    forget(log, FORGETFUL)
    if committed:
        for _ in range(2):
            assert clean(log, NOW_MS + 5 * RETENTION_MS)
            assert markers_in(log) == {marker}, "its record is the newest of its key"
            put(log, ("b", "2"))
            filled(log)
        put(log, ("a", "3"))
        filled(log)
    assert keys_left(log) == {first}
    now = NOW_MS
    assert clean(log, now)
    assert (keys_left(log), markers_in(log)) == (set(), {marker}), "the record went in this run"
    filled(log)
    assert clean(log, now)
    assert aborted_between(log, 0, log.end_offset).transactions == []
    filled(log)
    assert clean(log, now + RETENTION_MS - 1)
    assert markers_in(log) == {marker}
    filled(log)
    assert clean(log, now + RETENTION_MS)
    assert markers_in(log) == set()
    assert values(log) == ({"a": "3", "b": "2"} if committed else {}) | {"other": "last"}


def test_the_index_keeps_a_transaction_as_long_as_a_record_may_be_left(tmp_path: Path) -> None:
    """The run that takes the records keeps it: a power loss may bring a segment back."""
    log = new_log(tmp_path, COMPACT)
    send_keys(log, 7, 0, ("a", "1"))
    end(log, 7, committed=False)
    filled(log)
    expected = aborted_between(log, 0, log.end_offset).transactions
    assert clean(log) and not keys_left(log)
    assert aborted_between(log, 0, log.end_offset).transactions == expected != []
    filled(log)
    assert clean(log)
    assert aborted_between(log, 0, log.end_offset).transactions == []
    again = reopen(tmp_path, COMPACT, ending=Ending(log.end_offset, log.end_offset))
    assert aborted_between(again, 0, again.end_offset).transactions == []
    assert again.aborted.held == {}, "files without entries are as good as others"


def _remove_file(file: Path, check: Path) -> None:
    file.unlink()


def _remove_check(file: Path, check: Path) -> None:
    check.unlink()


def _prove_less(file: Path, check: Path) -> None:
    """As another program leaves it, which adds to the file and knows no check."""
    check.write_bytes(encode_check(file.read_bytes()[:-ENTRY_BYTES]))


@pytest.mark.parametrize("spoil", [_remove_file, _remove_check, _prove_less])
def test_what_a_wrong_index_lacks_is_taken_from_the_batches(
    tmp_path: Path, spoil: Callable[[Path, Path], None]
) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("a", "plain"))
    for sequence in range(20):
        send_keys(log, 7, sequence, ("a", f"aborted {sequence}"))
        end(log, 7, committed=False)
    filled(log)
    log.sync()
    assert len(log.aborted.bases) > 2
    for base in log.aborted.bases:
        spoil(*map(Path, paths_of(log.path, base)))
    log.resources.files.close()
    assert clean(log)
    assert values(log) == {"a": "plain", "other": "last"}
    assert keys_left(log) == set()
    assert check_aborted(log, random.Random(1)) == 0
    for base in log.aborted.bases:
        file, check = map(Path, paths_of(log.path, base))
        assert check.read_bytes() == encode_check(file.read_bytes()), "the new files are right"


def test_the_last_marker_of_a_producer_stays_while_the_log_remembers_it(tmp_path: Path) -> None:
    """A copy of the log refuses a coordinator of before, and an epoch of before."""
    log = new_log(tmp_path, COMPACT)
    for epoch in range(3):
        send_keys(log, 7, 0, ("a", f"{epoch}"), epoch=epoch)
        end(log, 7, epoch=epoch, committed=False, coordinator_epoch=4 + epoch)
    last = end(log, 7, epoch=9, coordinator_epoch=12)
    early = end(log, 8, epoch=5, coordinator_epoch=13)
    for run in range(4):
        filled(log)
        assert clean(log, NOW_MS + run * RETENTION_MS)
    assert markers_in(log) == {last, early}
    copy = copied(log, tmp_path / "copy")
    entry = copy.producers.entries[7]
    assert (entry.epoch, entry.coordinator_epoch, entry.open_since) == (9, 12, NONE)
    put(log, ("b", "1"), producer=Producer(8, 5, 0))
    forget(log, 7)
    filled(log)
    assert clean(log, NOW_MS + 9 * RETENTION_MS)
    assert markers_in(log) == set()


def test_a_copy_recognizes_the_retry_of_a_batch_that_was_aborted(tmp_path: Path) -> None:
    """Its offsets and sequences stay, without the records: the leader had taken it."""
    log = new_log(tmp_path, COMPACT)
    pairs = ("a", "1"), ("b", "2")
    first = send_keys(log, 7, 0, *pairs)
    end(log, 7, committed=False)
    for run in range(3):
        filled(log)
        assert clean(log, NOW_MS + run * RETENTION_MS)
    assert keys_left(log) == set()
    copy = copied(log, tmp_path / "copy")
    known = copy.producers.judge(read_header(batch_of_keys(7, 0, *pairs)))
    assert isinstance(known, KnownBatch), known
    assert (known.first_offset, known.last_offset) == (first, first + 1)


def test_a_marker_whose_records_retention_has_taken_goes_after_its_time(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    send_keys(log, FORGETFUL, 0, ("a", "1"))
    log.roll(NOW_MS)
    marker = end(log, FORGETFUL, committed=False)
    filled(log)
    log.sync()
    forget(log, FORGETFUL)
    assert log.advance_start(marker) is None
    finish(log.housekeeping(NOW_MS))
    assert log.segments[0].base_offset == marker
    assert len(aborted_between(log, marker, log.end_offset).transactions) == 1
    assert clean(log)
    assert markers_in(log) == {marker}
    assert aborted_between(log, marker, log.end_offset).transactions == []
    filled(log)
    assert clean(log, NOW_MS + RETENTION_MS)
    assert markers_in(log) == set()
    assert values(log) == {"other": "last"}


def test_a_marker_just_before_a_fence_stays(tmp_path: Path) -> None:
    """A copy counts a gap as data: its end of the data before the fence would be another one."""
    log = new_log(tmp_path, COMPACT)
    send_keys(log, FORGETFUL, 0, ("a", "1"))
    marker = end(log, FORGETFUL, committed=False)
    fence = change_batch(FenceRecord(ChangeKind.FENCE, 1, 8), leader_epoch=0, timestamp_ms=NOW_MS)
    assert isinstance(log.append_as_leader(fence, 0, NOW_MS, from_client=False), Appended)
    send_keys(log, 2, 0, ("a", "1"))
    end(log, 2, committed=False)
    filled(log)
    forget(log, FORGETFUL, 2)
    for run in range(4):
        assert clean(log, NOW_MS + run * RETENTION_MS)
        filled(log)
    assert markers_in(log) == {marker}
    copy = copied(log, tmp_path / "copy")
    assert copy.fences == log.fences


def test_aborted_keys_take_no_room_in_the_table(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("a", "plain"))
    send_keys(log, 7, 0, *((f"k{number}", "x") for number in range(20)))
    end(log, 7, committed=False)
    filled(log)
    log.sync()
    plan = plan_compaction(log, NOW_MS, share=few(5))
    assert plan is not None
    result = compact(QuickDisk(), plan)
    assert result.clean_end_offset == plan.end_offset


class Written(NamedTuple):
    """One record of the model. ``whose``: the transaction, None for a plain record."""

    key: str
    value: str | None
    at_ms: int
    whose: int | None


class Model:
    """Producers that write keys, with and without transactions; and what a reader is to get."""

    def __init__(self, log: PartitionLog, chance: random.Random) -> None:
        self.log = log
        self.now_ms = NOW_MS
        self._chance = chance
        self._records: dict[int, Written] = {}
        self._open: dict[int, int] = {}
        """Producer id -> its transaction."""
        self._committed: set[int | None] = {None}
        self._sequences: dict[int, int] = {}
        self._number = 0

    def write(self, producer_id: int | None) -> None:
        self._number += 1
        pairs = [
            (f"k{self._chance.randrange(8)}", self._chance.choice([None, f"v{self._number}", "x"]))
            for _ in range(self._chance.randrange(1, 4))
        ]
        whose = None
        if producer_id is None:
            first = put(self.log, *pairs, now_ms=self.now_ms)
        else:
            whose = self._open.setdefault(producer_id, self._number)
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + len(pairs)
            first = send_keys(self.log, producer_id, sequence, *pairs, now_ms=self.now_ms)
        for offset, (key, value) in enumerate(pairs, first):
            self._records[offset] = Written(key, value, self.now_ms, whose)

    def fill(self) -> None:
        offset = put(self.log, ("filler", "x"), now_ms=self.now_ms)
        self._records[offset] = Written("filler", "x", self.now_ms, None)

    def end(self, producer_id: int) -> None:
        committed = self._chance.random() < 0.5
        whose = self._open.pop(producer_id, None)
        if whose is not None and committed:
            self._committed.add(whose)
        end(self.log, producer_id, committed=committed)

    def end_all(self) -> None:
        for producer_id in [*self._open]:
            self.end(producer_id)

    def check(self) -> None:
        """A fresh reader has the newest committed value of each key, and no aborted record."""
        log = self.log
        stable = last_stable_offset(log)
        assert log.start_offset or stable == stable_by_batches(log)
        newest: dict[str, tuple[int, Written]] = {}
        for offset, written in self._records.items():
            if offset < stable and written.whose in self._committed:
                newest[written.key] = offset, written
        for begin in (
            log.start_offset,
            self._chance.randrange(log.start_offset, log.end_offset + 1),
        ):
            found: dict[str, int] = {}
            for record in committed_records(log, begin):
                written = self._records[record.offset]
                assert written.whose in self._committed, f"{record.offset} was aborted"
                value = None if record.value is None else record.value.decode()
                assert (written.key.encode(), written.value) == (record.key, value)
                found[written.key] = record.offset
            for key, (offset, written) in newest.items():
                if offset < begin:
                    continue
                is_over = written.value is None and self.now_ms >= written.at_ms + RETENTION_MS
                assert found.get(key) == offset or (is_over and key not in found), (key, offset)
        check_aborted(log, self._chance, ranges=3)

    def check_copy(self, path: Path) -> None:
        """A replica that copies the log reads the same, and has the same transactions open."""
        log, copy = self.log, copied(self.log, path)
        assert last_stable_offset(copy) == last_stable_offset(log)
        assert committed_records(copy) == committed_records(log)
        check_aborted(copy, self._chance, ranges=3)
        copy.close()

    def delete(self) -> None:
        """DeleteRecords: some of the first records go, with their segments."""
        log = self.log
        readable = log.high_watermark - log.start_offset
        assert (
            log.advance_start(log.start_offset + self._chance.randrange(readable // 3 + 1)) is None
        )
        finish(log.housekeeping(self.now_ms))


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_random_transactions_under_the_cleaner(tmp_path: Path, seed: int, deletes: bool) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = new_log(tmp_path, replace(COMPACT, segment_bytes=chance.choice([400, 900, 3000])))
    model = Model(log, chance)
    runs = 0
    for step in range(400):
        model.now_ms += chance.randrange(30)
        draw = chance.random()
        if draw < 0.3:
            model.write(None)
        elif draw < 0.65:
            model.write(chance.randrange(10, 14))
        elif draw < 0.85:
            model.end(chance.randrange(10, 14))
        elif draw < 0.88:
            log.roll(model.now_ms)
        elif draw < 0.93:
            log.raise_watermark(chance.randrange(log.high_watermark, log.end_offset + 1))
            runs += clean(log, model.now_ms, few(chance.choice([3, 1000]))) is not None
        elif draw < 0.94:
            log.sync()
            log.resources.files.close()
            ending = Ending(log.synced_end_offset, log.high_watermark, log.start_offset)
            dirty = log.first_dirty_offset
            log = model.log = reopen(tmp_path, log.configs, now_ms=model.now_ms, ending=ending)
            log.was_cleaned(dirty)
        elif draw < 0.96 and deletes:
            model.delete()
        if step % 20 == 0:
            model.check()
        if step % 100 == 99 and not deletes:
            model.check_copy(tmp_path / f"copy {step}")
    assert runs > 3
    model.end_all()
    forget(log, *[one for one in log.producers.entries if one in range(10, 14)])
    for _ in range(5):  # a tombstone goes in two runs, and its marker in two more
        model.now_ms += RETENTION_MS
        model.fill()
        log.roll(model.now_ms)
        model.fill()
        assert clean(log, model.now_ms)
        model.check()
    assert aborted_in_batches(log) == []
    if not deletes:  # a record below the log's start may keep its marker
        records = keys_left(log)
        assert len(markers_in(log)) <= len(records), "markers go when no record is left"
