"""The aborted transactions of a log on disk: after rolls, cuts, stops, losses of files (0119)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.compacting import COMPACT, clean, put
from tests.support.storage_logs import (
    NOW_MS,
    FaultyDisk,
    QuickDisk,
    batch,
    new_log,
    reopen,
    resources,
)
from tests.support.transactional_logs import (
    aborted_in_batches,
    check_aborted,
    end,
    put_own,
    send,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.batch import NO_SEQUENCE, BatchHeader
from tidelog.storage import names
from tidelog.storage.compaction.cleaner import compact, discard_cleaned
from tidelog.storage.compaction.plan import plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log import aborted as aborted_module
from tidelog.storage.log import aborted_files, aborted_reading, aborted_recovery
from tidelog.storage.log.aborted import (
    ENTRY_BYTES,
    decode_aborted,
    encode_aborted,
    encode_check,
)
from tidelog.storage.log.aborted_files import paths_of
from tidelog.storage.log.aborted_proving import ProvingRead, Unproved
from tidelog.storage.log.aborted_reading import aborted_between
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending

SMALL = TopicConfigs(segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=0)
SEGMENT = 3
"""Transactions of one segment of ``filled``."""


def files_of(log: PartitionLog, base: int) -> tuple[Path, Path]:
    file, check = paths_of(log.path, base)
    return Path(file), Path(check)


def filled(path: Path, segments: int = 3, configs: TopicConfigs | None = None) -> PartitionLog:
    """A synced log of some segments, in each of which transactions were aborted; one that is open
    throughout ends in the last."""
    log = new_log(path, configs)
    send(log, 50, 0)
    for number in range(segments * SEGMENT):
        if number and number % SEGMENT == 0:
            assert log.roll(NOW_MS) is None
        send(log, 7, number)
        end(log, 7, committed=False)
        send(log, 8, number)
        end(log, 8)
    end(log, 50, committed=False)
    log.raise_watermark(log.end_offset)
    log.sync()
    return log


def restarted(
    path: Path, log: PartitionLog, *, clean: bool = False, recovery_point: int | None = None
) -> PartitionLog:
    """Start again after a clean stop or a kill."""
    claimed = log.synced_end_offset if recovery_point is None else recovery_point
    if clean:
        assert log.close()
        claimed = log.end_offset
    ending = Ending(claimed, log.high_watermark, log.start_offset, clean=clean)
    after = reopen(path, log.configs, ending=ending)
    assert after.damaged is None
    return after


def markers(log: PartitionLog, base: int) -> list[int]:
    content = files_of(log, base)[0].read_bytes()
    segment = log.segments[log.segments.segment_at(base)]
    return [one.last_offset for one in decode_aborted(content, base, segment.next_offset)]


def test_each_segment_has_its_own(tmp_path: Path) -> None:
    log = filled(tmp_path)
    every = aborted_in_batches(log)
    assert len(every) == 3 * SEGMENT + 1
    for segment in log.segments:
        ends = range(segment.base_offset, segment.next_offset)
        expected = [one.marker for one in every if one.marker in ends]
        assert markers(log, segment.base_offset) == expected
    assert list(log.aborted.held) == [log.segments.active.base_offset]
    assert check_aborted(log, random.Random(1)) == len(every)


def test_a_log_in_which_nothing_was_aborted_has_no_files(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 7, 0)
    end(log, 7)
    log.append_as_leader(batch(1), 0, NOW_MS)
    log.roll(NOW_MS)
    assert log.close()
    assert not [path for path in Path(log.path).iterdir() if "txnindex" in path.name]


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_has_what_was_aborted(tmp_path: Path, clean: bool) -> None:
    log = filled(tmp_path)
    send(log, 7, 100)
    end(log, 7, committed=False)
    count = len(aborted_in_batches(log))
    log = restarted(tmp_path, log, clean=clean)
    assert check_aborted(log, random.Random(1)) == count
    send(log, 7, 101)
    end(log, 7, committed=False)
    assert check_aborted(restarted(tmp_path, log, clean=clean), random.Random(1)) == count + 1


@pytest.mark.parametrize("recovery_point", range(0, 39, 3))
def test_files_count_below_the_recovery_point_only(tmp_path: Path, recovery_point: int) -> None:
    """What they say above it may be of batches that a power loss has taken."""
    log = filled(tmp_path)
    for segment in log.segments:
        for file in files_of(log, segment.base_offset):
            if segment.base_offset >= recovery_point:
                file.unlink()
            elif file.suffix == ".txnindex" and segment.next_offset > recovery_point:
                ends = segment.base_offset, segment.next_offset
                entries = decode_aborted(file.read_bytes(), *ends)
                other = encode_aborted(
                    one if one.last_offset < recovery_point else one._replace(producer_id=99)
                    for one in entries
                )
                file.write_bytes(other)
                file.with_suffix(names.ABORTED_CHECK).write_bytes(encode_check(other))
    count = len(aborted_in_batches(log))
    log = restarted(tmp_path, log, recovery_point=recovery_point)
    assert check_aborted(log, random.Random(1)) == count
    log.sync()
    assert check_aborted(restarted(tmp_path, log), random.Random(1)) == count


def _cut_off(file: Path, check: Path) -> None:
    file.write_bytes(file.read_bytes()[:-ENTRY_BYTES])


def _change(file: Path, check: Path) -> None:
    content = bytearray(file.read_bytes())
    content[9] ^= 1
    file.write_bytes(content)


def _count_less(file: Path, check: Path) -> None:
    content = bytearray(check.read_bytes())
    content[5] -= 1
    check.write_bytes(content)


LOSSES: dict[str, Callable[[Path, Path], None]] = {
    "the file is gone": lambda file, check: file.unlink(),
    "the check is gone": lambda file, check: check.unlink(),
    "the file is empty": lambda file, check: file.write_bytes(b"") and None,
    "the check is empty": lambda file, check: check.write_bytes(b"") and None,
    "an entry is gone": _cut_off,
    "a byte is another": _change,
    "the check names fewer": _count_less,
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_file_that_is_missing_or_wrong_is_made_of_the_batches(
    tmp_path: Path, loss: Callable[[Path, Path], None], clean: bool
) -> None:
    log = filled(tmp_path)
    count = len(aborted_in_batches(log))
    whole = {base: markers(log, base) for base in log.aborted.bases}
    if clean:
        assert log.close()
    for base in whole:
        loss(*files_of(log, base))
    ending = Ending(log.synced_end_offset, log.high_watermark, clean=clean)
    log = reopen(tmp_path, log.configs, ending=ending)
    assert check_aborted(log, random.Random(1)) == count
    log.sync()
    for base, expected in whole.items():
        assert markers(log, base) == expected
        file, check = files_of(log, base)
        assert check.read_bytes() == encode_check(file.read_bytes())
    assert list(log.aborted.held) == [log.segments.active.base_offset]


def headers_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of all batches that are read from now on to find what was aborted."""
    read: list[int] = []
    plain = aborted_recovery.scan

    def scan(*args: Any, **options: Any) -> Iterator[tuple[int, BatchHeader]]:
        for position, header in plain(*args, **options):
            read.append(header.base_offset)
            yield position, header

    monkeypatch.setattr(aborted_recovery, "scan", scan)
    return read


@pytest.mark.parametrize("has_snapshots", [True, False])
@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_start_reads_the_batches_once_however_many_files_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, has_snapshots: bool
) -> None:
    log = filled(tmp_path, 8)
    count = len(aborted_in_batches(log))
    for base in log.aborted.bases:
        files_of(log, base)[1].unlink()
    if not has_snapshots:
        for snapshot in Path(log.path).glob(f"*{names.SNAPSHOT}"):
            snapshot.unlink()
    base = log.segments[place].base_offset
    read = headers_read(monkeypatch)
    log = restarted(tmp_path, log, recovery_point=base + 5)
    first = base if has_snapshots else 0
    assert read == [*range(first, log.end_offset)]
    assert check_aborted(log, random.Random(1)) == count


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_reads_no_batch_above_the_claimed_ones_in_which_nothing_was_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    log = filled(tmp_path)
    base, end_of_aborted = log.segments.active.base_offset, log.end_offset
    for sequence in range(50):
        put_own(log, batch(1))
        send(log, 8, 100 + sequence)
        end(log, 8)
    files_of(log, base)[1].unlink()
    read = headers_read(monkeypatch)
    log = restarted(tmp_path, log, clean=clean)
    assert read[0] == base
    assert len(read) == (log.end_offset if clean else end_of_aborted + 1) - base
    check_aborted(log, random.Random(1))


def test_entries_after_those_of_the_check_do_not_count(tmp_path: Path) -> None:
    """A kill between the two writes."""
    log = filled(tmp_path)
    count = len(aborted_in_batches(log))
    base = log.segments.active.base_offset
    check = files_of(log, base)[1]
    before = check.read_bytes()
    send(log, 7, 100)
    end(log, 7, committed=False)
    claimed = log.synced_end_offset
    log.sync()
    check.write_bytes(before)
    log = restarted(tmp_path, log, recovery_point=claimed)
    assert check_aborted(log, random.Random(1)) == count + 1


def gone_on_without_checks(path: Path, *, rolls: bool) -> PartitionLog:
    """A log in whose last segment a program that knows no check has aborted transactions, Kafka for
    one: its check proves the first of them only. Stopped cleanly."""
    log = filled(path)
    base = log.segments.active.base_offset
    check = files_of(log, base)[1]
    before = check.read_bytes()
    send(log, 50, 1)
    for sequence in range(100, 103):
        send(log, 7, sequence)
        end(log, 7, committed=False)
    if rolls:
        log.roll(NOW_MS)
        send(log, 7, 103)
        end(log, 7, committed=False)
    end(log, 50, committed=False)
    log.raise_watermark(log.end_offset)
    assert log.close()
    assert check.read_bytes() != before
    check.write_bytes(before)
    if rolls:
        files_of(log, log.segments.active.base_offset)[1].unlink()
    return log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rolls", [True, False])
def test_what_another_program_has_added_is_made_of_the_batches(
    tmp_path: Path, rolls: bool, clean: bool
) -> None:
    former = gone_on_without_checks(tmp_path, rolls=rolls)
    whole = {base: markers(former, base) for base in former.aborted.bases}
    assert len(whole) == 3 + rolls
    ending = Ending(former.end_offset, former.high_watermark, clean=clean)
    log = reopen(tmp_path, former.configs, ending=ending)
    count = 3 * SEGMENT + 1 + 4 + rolls
    assert check_aborted(log, random.Random(1)) == count
    log.sync()
    for base, expected in whole.items():
        assert markers(log, base) == expected
        file, check = files_of(log, base)
        assert check.read_bytes() == encode_check(file.read_bytes())


@pytest.mark.parametrize("cut", [0, 1, 3, 5, 7])
def test_a_cut_among_what_another_program_has_added(tmp_path: Path, cut: int) -> None:
    former = gone_on_without_checks(tmp_path, rolls=True)
    ending = Ending(former.end_offset, former.high_watermark, clean=True)
    log = reopen(tmp_path, former.configs, ending=ending)
    place = log.segments[-2].next_offset - cut
    assert finish(log.truncation(place, NOW_MS)) is None
    count = check_aborted(log, random.Random(cut))
    log.sync()
    assert check_aborted(restarted(tmp_path, log), random.Random(cut)) == count


@pytest.mark.parametrize("cut", range(1, 40, 2))
def test_a_cut_takes_the_aborted_transactions_after_it(tmp_path: Path, cut: int) -> None:
    log = filled(tmp_path)
    assert finish(log.truncation(cut, NOW_MS)) is None
    check_aborted(log, random.Random(cut))
    assert max(log.aborted.bases, default=0) <= log.segments.active.base_offset
    for sequence in range(4):
        send(log, 60, sequence, epoch=1)
        end(log, 60, epoch=1, committed=sequence % 2 == 1)
    count = check_aborted(log, random.Random(cut))
    assert check_aborted(restarted(tmp_path, log), random.Random(cut)) == count
    log = restarted(tmp_path, log)
    log.sync()
    assert check_aborted(restarted(tmp_path, log), random.Random(cut)) == count


def test_segments_that_go_take_theirs_along(tmp_path: Path) -> None:
    log = filled(tmp_path, 4)
    bases = [segment.base_offset for segment in log.segments]
    check_aborted(log, random.Random(1))
    assert set(log.aborted.proved) == set(bases[:-1]), "the active one is in memory"
    assert log.advance_start(bases[2] + 1) is None
    finish(log.housekeeping(NOW_MS))
    assert log.aborted.bases == bases[2:]
    assert set(log.aborted.proved) == set(bases[2:-1])
    assert not any(file.exists() for base in bases[:2] for file in files_of(log, base))
    check_aborted(log, random.Random(1))
    check_aborted(restarted(tmp_path, log), random.Random(1))
    assert finish(log.restart(1000, NOW_MS)) is None
    assert (log.aborted.bases, log.aborted.held) == ([], {})
    assert aborted_between(log, 1000, 2000).transactions == []


def test_the_file_of_a_segment_that_came_back_without_it_proves_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path)
    count = len(aborted_in_batches(log))
    for file in files_of(log, 0):
        file.rename(f"{file}{names.DELETED}")
    log = restarted(tmp_path, log)
    assert check_aborted(log, random.Random(1)) == count
    log.sync()
    # The other way round: what is left of a segment that was cut says nothing of the next one.
    for file in files_of(log, 0):
        Path(f"{file}{names.DELETED}").write_bytes(file.read_bytes()[:ENTRY_BYTES])
    log = restarted(tmp_path, log)
    assert check_aborted(log, random.Random(1)) == count


class Noting(QuickDisk):
    """A disk that notes what is done to the names in one directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.done: list[str] = []

    def note(self, what: str, path: str) -> None:
        if path.startswith(self.directory):
            self.done.append(what)

    def rename(self, source: str, target: str) -> None:
        self.note("rename", source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.note("remove", path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.note("sync", path)
        super().sync_directory(path)


def test_a_file_that_gets_its_name_back_has_it_durably_before_the_other_goes(
    tmp_path: Path,
) -> None:
    log = filled(tmp_path)
    ending = Ending(log.end_offset, log.high_watermark, clean=True)
    assert log.close()
    for file in files_of(log, 0):
        file.rename(f"{file}{names.DELETED}")
    disk = Noting(log.path)
    reopen(tmp_path, log.configs, resources(disk), ending=ending)
    assert disk.done == ["rename", "sync", "remove"]
    disk.done.clear()
    for file in files_of(log, 0):
        Path(f"{file}{names.DELETED}").write_bytes(b"")
    reopen(tmp_path, log.configs, resources(disk), ending=ending)
    assert disk.done == ["remove", "remove"], "a start that doubts no segment does not wait"


class CountedOffset(int):
    """An offset that counts how often one is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedOffset.compared += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        CountedOffset.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("first", ["newest", "oldest"])
def test_a_segment_that_goes_is_not_looked_for_among_all(first: str) -> None:
    files = aborted_files.AbortedFiles()
    files.begin_with(map(CountedOffset, range(1024)))
    CountedOffset.compared = 0
    for base in range(1023, -1, -1) if first == "newest" else range(1024):
        files.forget(base)
        assert not files.has(base)
    assert files.bases == []
    assert CountedOffset.compared <= 1024 * 25
    files.forget(5)


def test_a_full_disk_leaves_the_files_to_the_next_sync(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = new_log(tmp_path, SMALL, resources(disk))
    send(log, 7, 0)
    end(log, 7, committed=False)
    disk.failing = (".txnindex",)
    disk.fill_up()
    with pytest.raises(OSError, match="a fault"):
        log.unsynced()
    assert log.synced_end_offset == 0 and not log.failed
    disk.fault = None
    log.sync()
    assert log.synced_end_offset == 2
    assert markers(log, 0) == [1]


@pytest.mark.parametrize("starts", [False, True])
def test_a_sync_hashes_its_new_entries_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    log = new_log(tmp_path)
    for sequence in range(50):
        send(log, 7, sequence)
        end(log, 7, committed=False)
    log.sync()
    if starts:
        log = restarted(tmp_path, log)
    hashed: list[int] = []
    plain = aborted_module.crc32c

    def count(data: bytes, before: int = 0) -> int:
        hashed.append(len(data))
        return plain(data, before)

    monkeypatch.setattr(aborted_module, "crc32c", count)
    for sequence in range(50, 60):
        send(log, 7, sequence)
        end(log, 7, committed=False)
        hashed.clear()
        log.sync()
        assert sum(hashed) <= 2 * ENTRY_BYTES
    file, check = files_of(log, 0)
    assert check.read_bytes() == encode_check(file.read_bytes())
    assert len(markers(log, 0)) == 60


def test_a_segment_takes_a_limited_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted_files, "MOST_OF_SEGMENT", 3)
    log = new_log(tmp_path)
    for sequence in range(7):
        send(log, 7, sequence)
        end(log, 7, committed=False)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12]
    assert all(len(held.entries) <= 3 * ENTRY_BYTES for held in log.aborted.held.values())
    check_aborted(log, random.Random(1))


def test_a_look_up_has_a_limit(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for producer_id in range(10):
        send(log, producer_id, 0)
    log.append_as_leader(batch(5), 0, NOW_MS)
    for producer_id in range(10):
        end(log, producer_id, committed=False)
    every = aborted_between(log, 0, log.end_offset)
    assert ([one.producer_id for one in every.transactions], every.end) == ([*range(10)], 25)
    part = aborted_between(log, 0, log.end_offset, 4)
    assert ([one.producer_id for one in part.transactions], part.end) == ([*range(4)], 4)
    assert aborted_between(log, part.end, log.end_offset, 4).end == 5, "it never stands still"
    assert aborted_between(log, 4, 7, 4).transactions == every.transactions[:5]
    covering = aborted_between(log, 12, log.end_offset, 4)
    assert (covering.transactions, covering.end) == (every.transactions, 25)
    position = 0
    seen = set()
    while position < log.end_offset:
        part = aborted_between(log, position, log.end_offset, 3)
        seen |= set(part.transactions)
        assert part.end > position
        position = part.end
    assert seen == set(every.transactions)


def test_a_look_up_ends_at_the_first_segment_without_any_of_the_range(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for sequence in range(4):
        send(log, 7, sequence)
        end(log, 7, committed=False)
        log.roll(NOW_MS)
    log.sync()
    log.resources.files.forget(str(files_of(log, 4)[0]))
    files_of(log, 4)[0].unlink()
    asked: list[object] = []
    log.resources.sync_soon = lambda partition: asked.append(partition) is None
    assert len(aborted_between(log, 0, 2).transactions) == 1
    assert 4 not in log.aborted.held, "the file of the third segment was not asked for"
    assert len(aborted_between(log, 0, 6).transactions) == 3
    assert 4 in log.aborted.held
    assert asked == [log.partition], "a sync writes it again"


class Reads:
    """Counts the bytes that are read of files of aborted transactions."""

    def __init__(self, log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        kind = type(log.resources.files.get(str(files_of(log, 0)[0])))
        plain = kind.read_at

        def read_at(file: Any, position: int, size: int) -> bytes:
            self.count += size
            return plain(file, position, size)

        monkeypatch.setattr(kind, "read_at", read_at)

    def taken(self) -> int:
        count, self.count = self.count, 0
        return count


def closed_with(log: PartitionLog, count: int) -> None:
    for sequence in range(count):
        send(log, 7, sequence)
        end(log, 7, committed=False)
    log.roll(NOW_MS)
    log.sync()


def test_a_file_is_read_and_checked_whole_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later look-ups read what they need, until the file is written again, cut short or gone."""
    log = new_log(tmp_path)
    closed_with(log, 200)
    whole = 200 * ENTRY_BYTES
    reads = Reads(log, monkeypatch)
    expected = aborted_between(log, 100, 102)
    assert len(expected.transactions) == 1 and reads.taken() > whole
    for _ in range(3):
        assert aborted_between(log, 100, 102) == expected
        assert reads.taken() <= 20 * ENTRY_BYTES
    file, _ = files_of(log, 0)
    log.aborted.hold(0, file.read_bytes()[: 40 * ENTRY_BYTES])
    log.sync()
    assert aborted_between(log, 100, 102).transactions == [], "the file was written again"
    assert reads.taken() >= 40 * ENTRY_BYTES
    with file.open("r+b") as opened:
        opened.truncate(30 * ENTRY_BYTES + 10)
    assert aborted_between(log, 100, 102) == expected, "as the batches have it"
    log.sync()
    assert aborted_between(log, 100, 102) == expected
    log.resources.files.forget(str(file))
    file.unlink()
    assert aborted_between(log, 100, 102) == expected


def test_a_long_file_is_checked_by_a_thread_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path)
    closed_with(log, 40)
    monkeypatch.setattr(aborted_reading, "CHECKED_AT_ONCE", 39 * ENTRY_BYTES)
    with pytest.raises(Unproved) as raised:
        aborted_between(log, 20, 22, soon=True)
    reading = ProvingRead(log, raised.value.base)
    reading.run()
    with pytest.raises(Unproved):
        aborted_between(log, 20, 22, soon=True)
    reading.done()
    reads = Reads(log, monkeypatch)
    found = aborted_between(log, 20, 22, soon=True)
    assert reads.taken() <= 20 * ENTRY_BYTES
    log.aborted.proved.clear()
    assert aborted_between(log, 20, 22) == found and len(found.transactions) == 1
    # A short one is checked at once.
    log.aborted.proved.clear()
    monkeypatch.setattr(aborted_reading, "CHECKED_AT_ONCE", 40 * ENTRY_BYTES)
    assert aborted_between(log, 20, 22, soon=True) == found


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_is_wrong_is_replaced_by_a_thread_first(tmp_path: Path, which: int) -> None:
    """Its segment's batches say what was aborted: a gigabyte of them is not for the event loop."""
    log = filled(tmp_path)
    expected = aborted_between(log, 0, log.end_offset)
    log.aborted.proved.clear()
    wrong = files_of(log, 0)[which]
    kept = wrong.read_bytes()
    wrong.write_bytes(b"wrong")
    log.resources.files.forget(str(wrong))
    with pytest.raises(Unproved):
        aborted_between(log, 0, log.end_offset, soon=True)
    reading = ProvingRead(log, 0)
    reading.run()
    reading.done()
    assert aborted_between(log, 0, log.end_offset, soon=True) == expected
    log.sync()
    assert wrong.read_bytes() == kept


def test_what_a_thread_has_read_of_other_files_does_not_count(tmp_path: Path) -> None:
    log = filled(tmp_path)
    reading = ProvingRead(log, 0)
    reading.run()
    file, _ = files_of(log, 0)
    log.aborted.hold(0, file.read_bytes()[:ENTRY_BYTES])
    log.sync()
    log.aborted.proved.clear()
    reading.done()
    assert 0 not in log.aborted.proved and 0 not in log.aborted.held
    assert len(markers(log, 0)) == 1
    # One that fails leaves the error to the look-up.
    reading = ProvingRead(log, 0)
    for each in files_of(log, 0):
        each.unlink()
        log.resources.files.forget(str(each))
    log.segments[0].resources.files.forget(log.segments[0].log_path)
    Path(log.segments[0].log_path).unlink()
    log.aborted.proved.clear()
    reading.run()
    reading.done()
    with pytest.raises(Unproved):
        aborted_between(log, 0, 10, soon=True)


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_compaction_keeps_what_was_aborted(tmp_path: Path, lost: int | None) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(12):
        put(log, ("k", f"v{number}"), ("l", "x" * 60))
        send(log, 7, number)
        end(log, 7, committed=number % 2 == 0)
    log.raise_watermark(log.end_offset)
    log.sync()
    log.configure(replace(COMPACT, segment_bytes=5000))  # several segments become one
    before = len(log.segments)
    expected = aborted_between(log, 0, log.end_offset).transactions
    if lost is not None:
        files_of(log, log.aborted.bases[0])[lost].unlink()
    assert clean(log) is not None
    assert len(log.segments) < before
    found = aborted_between(log, 0, log.end_offset).transactions
    assert lost is not None or found == expected
    assert {one.marker for one in aborted_in_batches(log)} <= {one.last_offset for one in found}
    again = restarted(tmp_path, log)
    assert aborted_between(again, 0, log.end_offset).transactions == found


def cleanable_with_aborted(log: PartitionLog) -> PartitionLog:
    """The log, with much to clean and transactions that were aborted in between."""
    for number in range(12):
        put(log, ("k", f"v{number}"), ("l", "x" * 60))
        send(log, 7, number)
        end(log, 7, committed=False)
    log.raise_watermark(log.end_offset)
    log.sync()
    return log


def test_a_swap_waits_while_a_source_has_entries_that_are_not_written(tmp_path: Path) -> None:
    log = cleanable_with_aborted(new_log(tmp_path, COMPACT))
    base = log.aborted.bases[0]
    log.aborted.hold(base, files_of(log, base)[0].read_bytes())
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    assert finish(applying(log, compact(QuickDisk(), plan), NOW_MS)) is None
    assert clean(log) is not None


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("file", names.ABORTED_SUFFIXES)
def test_a_compaction_without_room_for_what_was_aborted_is_discarded(
    tmp_path: Path, fault: int, file: str
) -> None:
    disk = FaultyDisk()
    log = cleanable_with_aborted(new_log(tmp_path, COMPACT, resources(disk)))
    before = [segment.base_offset for segment in log.segments]
    expected = aborted_between(log, 0, log.end_offset)
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    disk.fault, disk.failing = fault, (file + names.CLEANED,)
    with pytest.raises(OSError, match="a fault"):
        compact(disk, plan)
    discard_cleaned(disk, plan)
    assert log.failed is None, "the log directory stays in service"
    assert [segment.base_offset for segment in log.segments] == before
    left = [path.name for path in Path(log.path).iterdir()]
    assert not [name for name in left if name.endswith((names.CLEANED, names.SWAP))]
    assert aborted_between(log, 0, log.end_offset) == expected
    disk.fault = None
    assert clean(log) is not None
    check_aborted(log, random.Random(1))


@pytest.mark.parametrize("seed", range(30))
def test_random_lives(tmp_path: Path, seed: int) -> None:
    """Appends, rolls, syncs, cuts, retention, DeleteRecords, stops, kills, and losses of files."""
    print(f"seed {seed}")
    source = random.Random(seed)
    log = new_log(tmp_path, SMALL)
    for _ in range(250):
        step = source.random()
        if step < 0.35:
            send(log, source.randrange(5), NO_SEQUENCE, epoch=0, count=source.randrange(1, 4))
        elif step < 0.65:
            end(log, source.randrange(5), committed=source.random() < 0.4)
        elif step < 0.72:
            put_own(log, batch(source.randrange(1, 5)))
        elif step < 0.77:
            log.roll(NOW_MS)
        elif step < 0.83:
            log.sync()
        elif step < 0.86:
            log.raise_watermark(source.randrange(log.high_watermark, log.end_offset + 1))
        elif step < 0.89:
            cut = source.randrange(log.start_offset, log.end_offset + 1)
            assert finish(log.truncation(cut, NOW_MS)) is None
        elif step < 0.91:
            log.advance_start(source.randrange(log.start_offset, log.high_watermark + 1))
            finish(log.housekeeping(NOW_MS))
        elif step < 0.93:
            log = restarted(tmp_path, log, clean=source.random() < 0.5)
        elif step < 0.95 and log.aborted.bases:
            both = files_of(log, source.choice(log.aborted.bases))
            if all(file.exists() for file in both):
                lost = source.choice(both)
                log.resources.files.forget(str(lost))
                lost.unlink()
        check_aborted(log, source, ranges=4)
