"""Compaction of topics that grow and shrink: ancestor tombstones, and tombstones that must stay.

The newest value of a key wins across its partitions, and no deleted value returns (promise 12).
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.compacting import COMPACT, clean, contents, put
from tests.support.storage_logs import NOW_MS, new_log, records_of
from tidelog.model.work import finish
from tidelog.partitioning.gates import (
    Fence,
    GroupPosition,
    ResizedPartition,
    deliverable_ends,
    gates_of,
)
from tidelog.partitioning.hashing import hash_of_key, partition_of
from tidelog.partitioning.lineage import ancestors_of
from tidelog.partitioning.older_homes import (
    ancestors_with_older_values,
    has_no_older_values,
    survives_retired,
)
from tidelog.records.batch import BatchHeader, Rejected, walk
from tidelog.records.control_records import (
    AncestorTombstone,
    ChangeKind,
    FenceRecord,
    change_batch,
    control_type,
    decode_change,
)
from tidelog.records.reader import read_batch
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended

RETENTION_MS = COMPACT.delete_retention_ms


def change(log: PartitionLog, record: FenceRecord | AncestorTombstone, now_ms: int = NOW_MS) -> int:
    """Append a control record; return its offset."""
    batch = change_batch(record, leader_epoch=0, timestamp_ms=now_ms)
    got = log.append_as_leader(batch, 0, now_ms, from_client=False)
    assert isinstance(got, Appended), got
    log.high_watermark = log.end_offset
    return got.first_offset


def fence(log: PartitionLog, epoch: int, kind: ChangeKind = ChangeKind.FENCE) -> int:
    return change(log, FenceRecord(kind, epoch, 8))


def batches_of(log: PartitionLog) -> list[tuple[BatchHeader, bytes]]:
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, 10_000)
        assert not isinstance(data, Rejected), data
        for at, header in walk(data):
            found.append((header, bytes(data[at : at + header.size])))
            offset = header.next_offset
    return found


def changes_in(log: PartitionLog) -> list[FenceRecord | AncestorTombstone]:
    """The control records of type 1253 that are left."""
    found = []
    for header, batch in batches_of(log):
        if header.control and header.record_count:
            (record,) = read_batch(batch)
            assert control_type(record.key) == 1253
            found.append(decode_change(record.value))
    return found


def fill(log: PartitionLog, now_ms: int = NOW_MS) -> None:
    """Records of another key, until the others are in segments that can be cleaned."""
    for number in range(40):
        put(log, ("other", f"o{number}"), now_ms=now_ms)


# Ancestor tombstones ------------------------------------------------------------------------


def test_an_ancestor_tombstone_voids_older_values_and_goes_after_its_time(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("k", "old"), ("a key of more than sixteen bytes", "old"), ("kept", "v"))
    at = change(log, AncestorTombstone(b"k"))
    change(log, AncestorTombstone(b"a key of more than sixteen bytes"))
    fill(log)
    assert clean(log)
    assert contents(log) == {"kept": "v", "other": "o39"}
    assert changes_in(log) == [
        AncestorTombstone(b"k"),
        AncestorTombstone(b"a key of more than sixteen bytes"),
    ]
    assert at in [header.base_offset for header, _ in batches_of(log)]
    fill(log)
    clean(log, NOW_MS + RETENTION_MS - 1)
    assert len(changes_in(log)) == 2
    fill(log)
    clean(log, NOW_MS + RETENTION_MS)
    assert changes_in(log) == []
    assert contents(log) == {"kept": "v", "other": "o39"}


def test_a_newer_value_of_the_key_stays_and_takes_the_ancestor_tombstone_away(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("k", "old"))
    change(log, AncestorTombstone(b"k"))
    put(log, ("k", "newer"))
    fill(log)
    clean(log)
    assert contents(log) == {"k": "newer", "other": "o39"}
    assert changes_in(log) == []


def test_fences_seals_and_damaged_records_stay_for_ever(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    fence(log, 1)
    put(log, ("k", "v"))
    fence(log, 2, ChangeKind.SEAL)
    before = len(changes_in(log))
    for round_ in range(4):
        fill(log)
        clean(log, NOW_MS + round_ * RETENTION_MS)
    assert len(changes_in(log)) == before == 2
    assert contents(log) == {"k": "v", "other": "o39"}


def test_one_at_the_end_of_its_segments_leaves_an_empty_batch_and_then_nothing(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path, replace(COMPACT, segment_bytes=10**6))
    put(log, ("k", "old"))
    at = change(log, AncestorTombstone(b"k"))
    log.roll(NOW_MS)
    put(log, ("x", "1"))
    log.roll(NOW_MS)
    clean(log, NOW_MS)
    put(log, ("x", "2"))
    log.roll(NOW_MS)
    clean(log, NOW_MS + RETENTION_MS)
    assert changes_in(log) == []
    assert contents(log) == {"x": "2"}
    assert at < log.end_offset


def test_one_just_before_a_fence_stays_so_that_a_copy_finds_the_same_end_of_the_data(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("k", "v"), ("gone", "old"))
    kept = [change(log, AncestorTombstone(name)) for name in (b"gone", b"x")]
    fence(log, 1)
    change(log, AncestorTombstone(b"y"))
    for round_ in range(4):
        fill(log)
        clean(log, NOW_MS + round_ * RETENTION_MS)
    left = [header.base_offset for header, _ in batches_of(log) if header.control]
    assert left == [*kept, kept[-1] + 1]
    assert contents(log) == {"k": "v", "other": "o39"}
    copied = new_log(tmp_path / "copy", COMPACT)
    for _, batch in batches_of(log):
        assert not isinstance(copied.append_as_follower(batch, NOW_MS), Rejected)
    assert copied.fences == log.fences
    assert copied.fences.entries[0].data_end == kept[0]


# Tombstones that are kept -------------------------------------------------------------------


def test_the_time_of_a_tombstone_begins_when_no_older_value_is_left(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("k", "old"))
    put(log, ("k", None))
    later = NOW_MS
    for _ in range(3):
        fill(log)
        clean(log, later, keeps_tombstones=True)
        assert contents(log)["k"] is None
        later += 10 * RETENTION_MS
    fill(log)
    clean(log, later)
    fill(log)
    clean(log, later + RETENTION_MS - 1)
    assert contents(log)["k"] is None
    fill(log)
    clean(log, later + RETENTION_MS)
    assert "k" not in contents(log)


def test_a_horizon_from_before_a_shrink_is_forgotten_while_tombstones_are_kept(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path, COMPACT)
    put(log, ("k", None))
    fill(log)
    clean(log, NOW_MS)
    times = {record.offset: record.timestamp for record in records_of(log)}
    fill(log)
    late = NOW_MS + 5 * RETENTION_MS
    clean(log, late, keeps_tombstones=True)
    assert contents(log)["k"] is None
    assert all(times.get(r.offset, r.timestamp) == r.timestamp for r in records_of(log))
    fill(log)
    clean(log, late)
    assert contents(log)["k"] is None
    fill(log)
    clean(log, late + RETENTION_MS)
    assert "k" not in contents(log)


# At random ----------------------------------------------------------------------------------


class Topic:
    """A compacted topic of 4 partitions that grows to 8 and shrinks, with an aware producer."""

    INITIAL = 4

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.now_ms = NOW_MS
        self.count = self.INITIAL
        self.epoch = self.lives = self.number = 0
        self.logs: dict[int, PartitionLog] = {}
        self.births: dict[int, tuple[int, int]] = {}
        self.retired: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.fences: dict[int, list[Fence]] = {}
        self.newest: dict[str, tuple[str | None, int, int]] = {}
        """Of each key: its newest value, and where that is."""
        self.seen_growths = self.seen_dropped = 0
        for at in range(self.INITIAL):
            self.create(at, 0)

    def create(self, at: int, epoch: int) -> None:
        self.lives += 1
        path = self.folder / str(self.lives)
        path.mkdir()
        log = self.logs[at] = new_log(path, COMPACT)
        begin = self.ends.get(at, 0)
        if begin:
            finish(log.restart(begin, NOW_MS))
        self.births[at] = (epoch, begin)
        self.fences[at] = []

    def fence(self, at: int, kind: ChangeKind = ChangeKind.FENCE) -> None:
        log = self.logs[at]
        end = log.end_offset
        record = FenceRecord(kind, self.epoch, self.count)
        self.fences[at].append(Fence(self.epoch, change(log, record, self.now_ms), end))

    def step(self) -> None:
        kinds = [self.write, self.compact, self.resize, self.lose, self.purge]
        self.random.choices(kinds, [40, 8, 1, 0.5, 1])[0]()

    def write(self) -> None:
        key = f"key {self.random.randrange(10)}"
        self.number += 1
        value = None if self.random.random() < 0.35 else f"v{self.number}"
        hashed = hash_of_key(key.encode())
        home = partition_of(hashed, self.INITIAL, self.count)
        offset = put(self.logs[home], (key, value), now_ms=self.now_ms)
        self.newest[key] = (value, home, offset)
        for ancestor in ancestors_of(home, self.INITIAL):
            # With acks=0 it may be lost.
            if self.random.random() < 0.2:
                change(self.logs[ancestor], AncestorTombstone(key.encode()), self.now_ms)

    def resize(self) -> None:
        self.epoch += 1
        if self.count == self.INITIAL and not self.retired:
            before, self.count = self.count, self.random.choice([6, 8])
            for at in range(before):
                self.fence(at)
            for at in range(before, self.count):
                self.create(at, self.epoch)
                self.fence(at)
            self.seen_growths += 1
        elif self.count > self.INITIAL:
            before, self.count = self.count, self.INITIAL
            for at in range(self.count, before):
                self.retired[at] = self.epoch
                self.fence(at, ChangeKind.SEAL)
            for at in range(self.count):
                self.fence(at)
        else:
            self.epoch -= 1

    def lose(self) -> None:
        """Retention removes the beginning of an ancestor: all below a fence, or less."""
        at = self.random.choice(sorted(self.logs))
        log = self.logs[at]
        places = [each.offset for each in self.fences[at]] or [log.start_offset]
        self.advance(at, max(log.start_offset, self.random.choice(places)))

    def purge(self) -> None:
        """The retired partitions have emptied: they are removed, highest first."""
        if self.retired and self.random.random() < 0.5:
            for at in sorted(self.retired, reverse=True):
                self.advance(at, self.logs[at].end_offset)
                self.ends[at] = self.logs.pop(at).end_offset
                del self.retired[at]

    def advance(self, at: int, offset: int) -> None:
        assert self.logs[at].advance_start(offset) is None
        for key, (_, home, place) in list(self.newest.items()):
            if home == at and place < offset:
                # Retention took the newest value: nothing is promised of older ones.
                del self.newest[key]

    def compact(self) -> None:
        """Some runs of the cleaner, each over all that is there."""
        at = self.random.choice(sorted(self.logs))
        log = self.logs[at]
        for _ in range(self.random.randint(1, 3)):
            put(log, (f"of {at}", f"f{self.now_ms}"), now_ms=self.now_ms)
            log.roll(self.now_ms)
            keeps = self.keeps_tombstones(at)
            self.seen_dropped += not keeps
            clean(log, self.now_ms, keeps_tombstones=keeps)
            self.now_ms += self.random.randrange(2 * RETENTION_MS)

    def keeps_tombstones(self, at: int) -> bool:
        epoch, _ = self.births[at]
        if survives_retired(at, self.INITIAL, self.retired):
            return True
        return not all(
            has_no_older_values(
                self.logs[each].start_offset,
                next((x.offset for x in self.fences[each] if x.resize_epoch == epoch), None),
            )
            for each in ancestors_with_older_values(at, self.INITIAL, epoch)
        )

    def read(self) -> dict[str, str | None]:
        """What a reader finds that begins now, in an order that the gates allow."""
        listed = {
            at: ResizedPartition(
                self.births[at][0],
                self.births[at][1],
                self.retired.get(at, 0),
                tuple(self.fences[at]),
            )
            for at in self.logs
        }
        gates = gates_of(self.INITIAL, self.epoch, listed)
        at_first = {at: log.start_offset for at, log in self.logs.items()}
        rest = {at: records_of(log) for at, log in self.logs.items()}
        found: dict[str, str | None] = {}
        positions = dict(at_first)
        while True:
            ends = deliverable_ends(gates, {at: GroupPosition(x) for at, x in positions.items()})
            ready = []
            for at, log in self.logs.items():
                end = min(ends.get(at, log.end_offset), log.end_offset)
                if rest[at] and rest[at][0].offset < end:
                    ready.append(at)
                else:
                    # Control records, and offsets without a record, are passed.
                    upto = min(end, rest[at][0].offset) if rest[at] else end
                    if upto > positions[at]:
                        positions[at] = upto
                        ready.append(-1)
            if not ready:
                break
            at = self.random.choice(ready)
            if at >= 0:
                record = rest[at].pop(0)
                positions[at] = record.offset + 1
                assert record.key is not None
                value = None if record.value is None else record.value.decode()
                found[record.key.decode()] = value
        assert not any(rest.values()), "a gate stays shut"
        return found

    def check(self) -> None:
        found = self.read()
        for key, (value, _, _) in self.newest.items():
            assert found.get(key) == value, f"{key} is {found.get(key)} and not {value}"


@pytest.mark.parametrize("seed", range(16))
def test_a_fresh_reader_finds_the_newest_value_of_each_key(seed: int, tmp_path: Path) -> None:
    topic = Topic(tmp_path, seed)
    for step in range(400):
        topic.step()
        if step % 20 == 19:
            try:
                topic.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error
