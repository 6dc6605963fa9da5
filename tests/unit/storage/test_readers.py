"""Readers that go on from answer to answer, while everything that can befall a log befalls it.

Each seed is one life of a log on the real disk against a list of batches: appends, cuts, rolls,
retention, compaction, stops, kills with torn tails, index files that lie. Whatever happens, each
reader gets whole batches of the list, in order, none missing, none foreign.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support.put_files import put
from tests.support.storage_logs import NOW_MS, QuickDisk, new_log, remove_due, reopen, resources
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.batch import Rejected, read_header, seal_batch, walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.reader import read_batch
from tidelog.storage import names
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import CompactionPlan, CompactionResult, plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log import region
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.reading import read_before
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.region import FileRegion, find_region
from tidelog.storage.log.results import Appended
from tidelog.storage.segments.resources import IndexCache, Resources

SEEDS = 24
STEPS = 150

Fact = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key and value of one record."""


@dataclass
class Batch:
    """A batch as it was written; ``content`` is None once compaction may have rewritten it."""

    base: int
    end: int
    content: bytes | None
    facts: list[Fact]

    def check(self, found: memoryview) -> None:
        """Whether what a reader got is this batch."""
        header = read_header(found)
        assert (header.base_offset, header.next_offset) == (self.base, self.end)
        assert self.content is None or bytes(found) == self.content
        assert facts_of(found) == self.facts


@dataclass
class Model:
    """What the log should hold: batches by offset; those without records may be gone."""

    batches: dict[int, Batch] = field(default_factory=dict)
    end: int = 0

    def cut(self, end: int) -> None:
        self.batches = {base: one for base, one in self.batches.items() if one.end <= end}
        self.end = end

    def between(self, offset: int, limit: int) -> Iterator[Batch]:
        """The batches with records that end after an offset and not after a limit."""
        for one in self.batches.values():
            if one.facts and offset < one.end <= limit:
                yield one

    def compacted(self, plan: CompactionPlan) -> None:
        newest: dict[bytes | None, int] = {}
        inside = [one for one in self.batches.values() if one.base < plan.end_offset]
        for one in inside:
            if one.end > plan.first_dirty_offset:
                newest |= {key: offset for offset, _, key, _ in one.facts}
        for one in inside:
            one.facts = [fact for fact in one.facts if fact[0] >= newest.get(fact[2], -1)]
            one.content = None


@dataclass
class Reader:
    """One that goes on where its last answer ended."""

    committed: bool
    offset: int = 0


def facts_of(batch: memoryview) -> list[Fact]:
    return [(one.offset, one.timestamp, one.key, one.value) for one in read_batch(batch)]


class Machine:
    """One log, its model, its readers and the random steps."""

    def __init__(self, seed: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.now = NOW_MS
        # Small ones reach every branch sooner; every fourth seed has the sizes of real life.
        scale = 32 if seed % 4 == 0 else 1
        if scale == 1:
            monkeypatch.setattr(region, "LEAST_BYTES", 2048)
        self.sizes = [size * scale for size in (10, 60, 300, 1000, 2600)]
        self.rooms = [size * scale for size in (1, 100, 2100, 3000, 5000, 9000, 40_000)]
        self.configs = TopicConfigs(
            cleanup_policy=frozenset({"compact"} if self.random.random() < 0.5 else {"delete"}),
            segment_bytes=self.random.choice([7000, 12_000, 30_000]) * scale,
            index_interval_bytes=self.random.choice([1, 300, 1500]) * scale,
            retention_ms=-1,
            min_cleanable_dirty_ratio=0.01,
            file_delete_delay_ms=0,
        )
        self.model = Model()
        self.shared = self.resources()
        self.log = new_log(path, self.configs, self.shared)
        self.epoch = 0
        self.checkpoint = 0
        self.cleaned: CompactionResult | None = None
        self.readers = [Reader(number % 3 > 0) for number in range(6)]
        self.held: list[tuple[FileRegion, bytes]] = []
        self.by_region = 0
        self.by_memory = self.by_kept = 0

    def resources(self) -> Resources:
        made = resources(open_files=self.random.choice([2, 4, 50]))
        made.indexes = IndexCache(self.random.choice([1, 400, 1_000_000]))
        return made

    # What befalls the log

    def append(self) -> None:
        """A request of one to three batches, as a leader; or as a follower, maybe with gaps."""
        self.now += self.random.randrange(50)
        follows = self.random.random() < 0.3
        pieces, made, end = [], [], self.model.end
        for _ in range(self.random.choice([1, 1, 2, 3])):
            records = self.records()
            if follows and self.random.random() < 0.3:
                end += self.random.randrange(1, 4)
            sent = build_batch(records, codec=self.random.choice([0, 0, 0, 3]))
            content = self.placed(sent, end)
            facts = [(end + at, *one[:3]) for at, one in enumerate(records)]
            pieces.append(content if follows else sent)
            made.append(Batch(end, end + len(records), content, facts))
            end += len(records)
        if sum(map(len, pieces)) > self.configs.segment_bytes:
            return
        if follows:
            got = self.log.append_as_follower(b"".join(pieces), self.now)
        else:
            got = self.log.append_as_leader(b"".join(pieces), self.epoch, self.now)
        assert isinstance(got, Appended), got
        self.model.batches |= {one.base: one for one in made}
        self.model.end = end
        if self.random.random() < 0.8:
            self.log.high_watermark = end

    def placed(self, sent: bytes, offset: int) -> bytes:
        return offset.to_bytes(8, "big") + sent[8:12] + self.epoch.to_bytes(4, "big") + sent[16:]

    def records(self) -> list[NewRecord]:
        count, size = self.random.randrange(1, 5), self.random.choice(self.sizes)
        return [
            NewRecord(
                self.now + self.random.randrange(-300, 300),
                b"k%d" % self.random.randrange(12),
                None if self.random.random() < 0.1 else self.random.randbytes(size),
            )
            for _ in range(count)
        ]

    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.begin_epoch(self.epoch)

    def sync(self) -> None:
        pending = self.log.unsynced(closed_only=self.random.random() < 0.5)
        if pending is not None:
            pending.run()
            self.log.synced(pending)
        self.checkpoint = self.log.synced_end_offset

    def roll(self) -> None:
        assert self.log.roll(self.now) is None

    def truncate(self) -> None:
        """Mostly near the end, as a new leader's followers do; new batches get these offsets."""
        low = self.log.start_offset if self.random.random() < 0.2 else self.model.end - 15
        offset = self.random.randrange(max(0, low), self.model.end + 1)
        first = self.log.segments[0].base_offset
        self.held.clear()  # a cut may shorten what is on its way
        assert finish(self.log.truncation(offset, self.now)) is None
        end = self.log.end_offset
        if offset < self.model.end:
            self.cut_to(end, offset, first)
        assert self.model.end == end

    def cut_to(self, end: int, offset: int, first: int) -> None:
        kept = [one.end for one in self.model.batches.values() if one.end <= offset and one.facts]
        assert (end == offset) if offset <= first else (max(kept, default=0) <= end <= offset)
        gone = list(self.model.between(offset, self.model.end))
        assert not gone or end <= gone[0].base or offset < first
        self.model.cut(end)
        self.checkpoint = min(self.checkpoint, end)

    def advance_start(self) -> None:
        start = self.log.start_offset
        offset = self.random.randrange(start, self.log.high_watermark + 1)
        assert self.log.advance_start(min(offset, start + 30)) is None
        assert self.log.start_offset == min(offset, start + 30)

    def retain(self) -> None:
        """Let the log grow to so many bytes for once."""
        room = self.random.randrange(2, 6) * self.configs.segment_bytes
        policy = self.configs.cleanup_policy | {"delete"}
        self.log.configure(replace(self.configs, cleanup_policy=policy, retention_bytes=room))
        finish(self.log.housekeeping(self.now))
        self.log.configure(self.configs)
        self.sync()
        remove_due(self.log, self.now)

    def begin_cleaning(self) -> None:
        """Whatever comes before ``end_cleaning`` happens while the helper process works."""
        if self.cleaned is None:
            self.log.sync()
            plan = plan_compaction(self.log, self.now)
            self.cleaned = None if plan is None else compact(QuickDisk(), plan)

    def end_cleaning(self) -> None:
        if self.cleaned is not None:
            if finish(applying(self.log, self.cleaned, self.now)) is not None:
                self.model.compacted(self.cleaned.plan)
            self.cleaned = None
            self.sync()

    def stop(self) -> None:
        assert self.log.close()
        self.checkpoint = self.log.synced_end_offset
        self.open(clean=True)

    def crash(self) -> None:
        """kill -9, often within a write: bytes of a batch after the end, or a batch cut short."""
        log, active = self.log, self.log.segments[-1]
        self.shared.files.close()
        last = self.model.batches.get(max(self.model.batches, default=-1))
        kind = self.random.random()
        if kind < 0.4 and active.size:
            torn = self.placed(build_batch(self.records()), log.end_offset)
            with Path(active.log_path).open("ab") as file:
                file.write(torn[: self.random.randrange(1, len(torn))])
        elif kind < 0.8 and last and last.content and active.size >= len(last.content):
            safe = max(self.checkpoint, log.high_watermark)
            if last.base >= max(safe, active.base_offset) and last.end == log.end_offset:
                gone = self.random.randrange(1, len(last.content))
                os.truncate(active.log_path, active.size - gone)
                # A gap in front of it is gone with it: nothing says that it was there.
                rest = [one.end for one in self.model.batches.values() if one is not last]
                self.model.cut(max([active.base_offset, *rest]))
        self.open(clean=False)

    def open(self, *, clean: bool) -> None:
        old = self.log
        if self.random.random() < 0.5:
            self.damage_indexes(closed_only=False)
        self.cleaned = None
        self.shared = self.resources()
        ending = Ending(self.checkpoint, old.high_watermark, old.start_offset, clean=clean)
        self.log = reopen(self.path, self.configs, self.shared, now_ms=self.now, ending=ending)
        assert self.log.damaged is None, self.log.damaged
        assert self.log.end_offset == self.model.end
        assert self.log.start_offset == old.start_offset

    def damage_indexes(self, *, closed_only: bool = True) -> None:
        """Change index files, as a disk may; in mid-life those that memory may have given up."""
        for segment in self.log.segments[: -1 if closed_only else None]:
            path = Path(segment.path(self.random.choice([names.INDEX, names.TIME_INDEX])))
            if self.random.random() < 0.5 and path.exists():
                self.damage(path)

    def damage(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        kind = self.random.randrange(6)
        if kind == 0:
            path.unlink()
            return
        if kind == 1:
            content = content[: self.random.randrange(len(content) + 1)]
        elif kind == 2 and content:
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        elif path.suffix == names.INDEX and len(content) >= 8:
            # A position, or an offset, that is near to the true one: the order stays right.
            at = self.random.randrange(len(content) // 4) * 4
            number = int.from_bytes(content[at : at + 4], "big") + self.random.randrange(1, 200)
            content[at : at + 4] = number.to_bytes(4, "big")
        put(path, content)

    # What readers get

    def read_some(self) -> None:
        for reader in self.readers:
            for _ in range(self.random.randrange(4)):
                if not self.read(reader):
                    break
        self.check_held()

    def read_all(self) -> None:
        for reader in self.readers:
            reader.offset = self.random.choice([reader.offset, self.log.start_offset])
            while self.read(reader):
                pass
            assert reader.offset >= self.last_end(reader)
        self.check_held()

    def limit(self, reader: Reader) -> int:
        return self.log.high_watermark if reader.committed else self.log.end_offset

    def last_end(self, reader: Reader) -> int:
        whole = self.model.between(self.log.start_offset, self.limit(reader))
        return max((one.end for one in whole), default=0)

    def read(self, reader: Reader) -> bool:
        """One answer, held against the model; False when there is none."""
        log, limit = self.log, self.limit(reader)
        if not log.start_offset <= reader.offset <= limit:
            reader.offset = min(max(reader.offset, log.start_offset), limit)
        room = self.random.choice(self.rooms)
        found = (
            find_region(log, reader.offset, room, log.high_watermark) if reader.committed else None
        )
        if found is not None:
            self.by_region += 1
            data = memoryview(os.pread(found.fileno, found.size, found.position))
            assert region.LEAST_BYTES <= len(data) <= room
            if self.random.random() < 0.1:
                self.held.append((found, bytes(data)))
        else:
            self.by_memory += 1
            self.check_kept(reader.offset, room, limit)
            read = log.read(reader.offset, room, limit)
            assert not isinstance(read, Rejected), read
            data = read
            # At least one, and where compaction left no records one with records.
            first = [header.record_count for _, header in walk(data)][:-1]
            assert len(data) <= room or not any(first)
        at = self.check(data, reader.offset, limit)
        if at is None:
            assert not list(self.model.between(reader.offset, limit)), f"none at {reader.offset}"
            return False
        reader.offset = at
        return True

    def check_kept(self, offset: int, room: int, limit: int) -> None:
        """What is given without the file is what the file has, for this reader and the next."""
        log = self.log
        for at_least_one in (True, False):
            for most in (room, 70):
                kept = read_before(log, offset, most, limit, at_least_one=at_least_one)
                if kept is not None:
                    self.by_kept += 1
                    assert kept == log.read(offset, most, limit, at_least_one=at_least_one)
                log.read(offset, most, limit, at_least_one=at_least_one)

    def check(self, data: memoryview, offset: int, limit: int) -> int | None:
        """Return where a reader goes on; None when it got nothing."""
        expected = [one.base for one in self.model.between(offset, limit)]
        size, got = 0, []
        next_offset = None
        for at, header in walk(data):
            size += header.size
            self.model.batches[header.base_offset].check(data[at : at + header.size])
            assert offset < header.next_offset <= limit and header.base_offset >= (next_offset or 0)
            next_offset = header.next_offset
            if header.record_count:
                got.append(header.base_offset)
        assert size == len(data), "no whole batches"
        assert got == expected[: len(got)], (offset, got, expected[: len(got) + 1])
        if next_offset is not None:
            # What was passed over had no records.
            assert all(base >= next_offset for base in expected[len(got) :])
        return next_offset

    def check_held(self) -> None:
        """What is being sent stays what it was, whatever became of its segment."""
        for held, content in self.held:
            assert os.pread(held.fileno, held.size, held.position) == content
        del self.held[:-5]


CHOICES: list[tuple[float, Callable[[Machine], None]]] = [
    (14, Machine.append),
    (1, Machine.new_epoch),
    (2, Machine.sync),
    (2, Machine.roll),
    (2, Machine.truncate),
    (1, Machine.advance_start),
    (0.7, Machine.retain),
    (1.5, Machine.begin_cleaning),
    (1.5, Machine.end_cleaning),
    (1, Machine.stop),
    (1, Machine.crash),
    (1, Machine.damage_indexes),
    (1, Machine.read_all),
]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_readers_that_go_on_get_what_was_written(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(seed, tmp_path, monkeypatch)
    weights = [weight for weight, _ in CHOICES]
    for number in range(STEPS):
        step = machine.random.choices(CHOICES, weights)[0][1]
        print(f"seed {seed}, step {number}: {step.__name__}")
        step(machine)
        machine.read_some()
    machine.read_all()
    assert machine.by_memory > 100 and machine.by_region > 20 and machine.by_kept > 20


def follower_log(path: Path, *, size: int = 20, count: int = 6) -> PartitionLog:
    """A log as a follower has it of a compacted leader: of every four offsets one is left."""
    log = new_log(path, TopicConfigs(index_interval_bytes=1))
    for offset in range(0, 4 * count, 4):
        record = NewRecord(NOW_MS, b"k", bytes(size))
        sent = build_batch([record], base_offset=offset, leader_epoch=0)
        assert isinstance(log.append_as_follower(sent, NOW_MS), Appended)
    log.high_watermark = log.end_offset
    return log


def test_reads_of_each_size_have_the_batches_that_fit(tmp_path: Path) -> None:
    """One read of the file brings the header after a batch along, and may bring a whole batch
    without records, which is no larger."""
    log = new_log(tmp_path, TopicConfigs())
    two = [NewRecord(NOW_MS, b"k", bytes(20))] * 2
    sent = [build_batch(two, base_offset=offset, leader_epoch=0) for offset in range(0, 12, 2)]
    for place in (1, 2, 5):
        emptied = read_header(sent[place])._replace(record_count=0)
        sent[place] = seal_batch(emptied, b"")
    for one in sent:
        assert isinstance(log.append_as_follower(one, NOW_MS), Appended)
    log.high_watermark = log.end_offset
    log.resources.kept_reads.forget(log)
    for begin in range(6):
        for most in range(-70, sum(map(len, sent)) + 70):
            for at_least_one in (True, False):
                fitting, size = [], 0
                for one in sent[begin:]:
                    size += len(one)
                    if size > most and (fitting or not at_least_one):
                        break
                    fitting.append(one)
                log.segments.forget_positions()
                read = log.read(2 * begin, most, at_least_one=at_least_one)
                assert bytes(read) == b"".join(fitting), (begin, most, at_least_one)
                log.resources.kept_reads.forget(log)


@pytest.mark.parametrize("offset", [11, 12])
@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_is_cut_in_a_gap_is_not_taken_for_damaged(
    clean: bool, offset: int, tmp_path: Path
) -> None:
    """It ended at the cut, which no batch said: a start found less than its recovery point."""
    log = follower_log(tmp_path)
    assert finish(log.truncation(offset, NOW_MS)) is None
    log.sync()
    assert (log.end_offset, log.high_watermark, log.synced_end_offset) == (9, 9, 9)
    if clean:
        assert log.close()
    ending = Ending(log.synced_end_offset, log.high_watermark, log.start_offset, clean=clean)
    opened = reopen(tmp_path, log.configs, ending=ending)
    assert (opened.damaged, opened.end_offset) == (None, 9)


def test_a_cut_in_the_gap_before_the_first_batch_leaves_the_segment_empty(tmp_path: Path) -> None:
    log = follower_log(tmp_path, count=2)
    assert log.roll(NOW_MS) is None
    sent = build_batch([NewRecord(NOW_MS, b"k", b"v")], base_offset=20, leader_epoch=0)
    assert isinstance(log.append_as_follower(sent, NOW_MS), Appended)
    assert finish(log.truncation(15, NOW_MS)) is None
    assert [one.next_offset for one in log.segments] == [log.end_offset, log.end_offset] == [5, 5]


def test_a_region_ends_with_a_batch_when_an_index_lies(tmp_path: Path) -> None:
    """An index that was given up and read again: what it names need not be where a batch ends."""
    log = follower_log(tmp_path, size=30_000, count=20)
    assert log.roll(NOW_MS) is None
    assert log.close()
    path = Path(log.segments[0].index_path)
    content = bytearray(path.read_bytes())
    truth = content[8 * 8 + 4 : 9 * 8 + 4]
    content[8 * 8 + 7] ^= 1
    put(path, content)
    ending = Ending(log.end_offset, log.end_offset, clean=True)
    log = reopen(tmp_path, log.configs, ending=ending)
    all_of_it = find_region(log, 0, 2_000_000, log.high_watermark)
    assert all_of_it is not None and all_of_it.size == log.segments[0].size
    # Now that all was checked nothing is read again.
    log.segments.forget_positions()
    room = 30_100 * 9 + 5000
    assert find_region(log, 0, room, log.high_watermark) is None, (
        "the index is found to lie, and rebuilt"
    )
    assert path.read_bytes()[8 * 8 + 4 : 9 * 8 + 4] == truth
    part = find_region(log, 0, room, log.high_watermark)
    assert part is not None
    data = os.pread(part.fileno, part.size, part.position)
    assert sum(header.size for _, header in walk(data)) == part.size
