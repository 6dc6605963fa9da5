"""Random work on a log against a list of records: appends, rolls, crashes, cuts, look-ups."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.storage_logs import (
    NOW_MS,
    batch,
    new_log,
    newest_record,
    offset_for_time,
    records_of,
    reopen,
    resources,
)
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.batch import Rejected
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.reader import read_all
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended, TimeOffset
from tidelog.storage.segments.index import OffsetIndex
from tidelog.storage.segments.scan import scan


class Model:
    """What the log should hold: records by offset in order, and the producers' sequences."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[tuple[int, bytes, bytes]]]] = []
        self.end = 0
        self.start = 0

    def records(self) -> list[tuple[int, int, bytes, bytes]]:
        found = []
        for base, records in self.batches:
            found += [(base + at, *record) for at, record in enumerate(records)]
        return [record for record in found if record[0] >= self.start]

    def cut(self, offset: int) -> None:
        kept = []
        for base, records in self.batches:
            if base + len(records) <= offset:
                kept.append((base, records))
            else:
                self.end = min(offset, base)
                break
        self.batches = kept


class Machine:
    """One log, its model, and the random steps."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.configs = TopicConfigs(
            segment_bytes=self.random.choice([600, 2000, 6000]),
            index_interval_bytes=self.random.choice([1, 100, 400]),
            retention_ms=-1,
        )
        self.now = NOW_MS
        self.model = Model()
        self.shared = resources(open_files=self.random.choice([2, 5, 50]))
        self.log = new_log(path, self.configs, self.shared)
        self.epoch = 0
        self.sequence = {1: 0, 2: 0}
        self.resent: dict[int, tuple[bytes, int]] = {}
        self.checkpoint = 0

    def append(self) -> None:
        self.now += self.random.randrange(50)
        pid = self.random.choice([-1, 1, 2])
        count = self.random.randrange(1, 6)
        records = [
            (
                self.now + self.random.randrange(-300, 300),
                b"k%d" % self.random.randrange(5),
                self.random.randbytes(self.random.randrange(60)),
            )
            for _ in range(count)
        ]
        producer = Producer(pid, 0, self.sequence[pid]) if pid > 0 else Producer()
        made = build_batch(
            [NewRecord(*record) for record in records],
            codec=self.random.choice([0, 0, 0, 1, 2, 3, 4]),
            producer=producer,
        )
        if len(made) > self.configs.segment_bytes:
            return
        got = self.log.append_as_leader(made, self.epoch, self.now)
        assert isinstance(got, Appended), got
        assert (got.first_offset, got.duplicate) == (self.model.end, False)
        self.model.batches.append((self.model.end, records))
        self.model.end += count
        if pid > 0:
            self.sequence[pid] += count
            self.resent[pid] = (made, got.first_offset)
        self.log.high_watermark = self.log.end_offset

    def send_again(self) -> None:
        for made, first in self.resent.values():
            got = self.log.append_as_leader(made, self.epoch, self.now)
            assert isinstance(got, Appended) and got.duplicate, got
            assert got.first_offset == first

    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.begin_epoch(self.epoch)

    def sync(self) -> None:
        pending = self.log.unsynced(closed_only=self.random.random() < 0.5)
        if pending is not None:
            pending.run()
            self.log.synced(pending)
        self.checkpoint = self.log.synced_end_offset

    def crash(self) -> None:
        self.shared.files.close()
        self.open(Ending(self.checkpoint, self.log.high_watermark, self.model.start))

    def stop(self) -> None:
        self.log.close()
        assert self.log.failed is None
        self.checkpoint = self.log.synced_end_offset
        assert self.checkpoint == self.model.end
        self.open(Ending(self.checkpoint, self.log.high_watermark, self.model.start, clean=True))
        assert self.log.recovered.scanned_bytes == 0

    def open(self, ending: Ending) -> None:
        self.shared = resources()
        self.log = reopen(self.path, self.configs, self.shared, now_ms=self.now, ending=ending)
        assert self.log.damaged is None, self.log.damaged
        assert self.log.recovered.cut_bytes == 0
        assert self.log.end_offset == self.model.end

    def truncate(self) -> None:
        offset = self.random.randrange(max(0, self.model.end - 12), self.model.end + 1)
        first_base = self.log.segments[0].base_offset
        assert finish(self.log.truncation(offset, self.now)) is None
        if offset <= first_base and offset < self.model.end:
            # Below what is left of the log: it restarts at exactly this offset.
            self.model.batches.clear()
            self.model.end = offset
        else:
            self.model.cut(offset)
        self.model.start = min(self.model.start, self.model.end)
        assert self.log.end_offset == self.model.end
        self.checkpoint = min(self.checkpoint, self.model.end)
        # What was cut may be sent again by its producer with the same sequence.
        self.resent.clear()
        for pid in self.sequence:
            entry = self.log.producers.entries.get(pid)
            self.sequence[pid] = entry.last_sequence + 1 if entry else 0

    def delete_records(self) -> None:
        if self.model.end == self.model.start:
            return
        offset = self.random.randrange(self.model.start, self.model.end)
        assert self.log.advance_start(offset) is None
        self.model.start = offset
        finish(self.log.housekeeping(self.now))
        self.sync()
        assert self.log.segments[0].base_offset <= offset

    def check(self) -> None:
        expected = self.model.records()
        found = [(r.offset, r.timestamp, r.key, r.value) for r in records_of(self.log)]
        assert found == expected
        for _ in range(5):
            self.check_read(expected)
            self.check_time(expected)
        for segment in self.log.segments:
            check_indexes(segment)

    def check_read(self, expected: list) -> None:  # type: ignore[type-arg]
        if not expected:
            return
        offset = self.random.randrange(self.model.start, self.model.end)
        limit = self.random.randrange(offset, self.model.end + 1)
        data = self.log.read(offset, self.random.randrange(1, 1500), limit)
        assert not isinstance(data, Rejected)
        got = [record.offset for record in read_all(data)]
        if not got:
            holder = next(b for b in self.model.batches if b[0] <= offset < b[0] + len(b[1]))
            assert limit < holder[0] + len(holder[1])
            return
        assert got == list(range(got[0], got[-1] + 1))
        assert got[0] <= offset <= got[-1] < limit

    def check_time(self, expected: list) -> None:  # type: ignore[type-arg]
        target = self.now - self.random.randrange(-400, 4000)
        first = next((record for record in expected if record[1] >= target), None)
        found = offset_for_time(self.log, target)
        if first is None:
            assert found is None
        else:
            assert isinstance(found, TimeOffset)
            assert (found.offset, found.timestamp) == first[:2]
        ends = [self.log.end_offset, *(first for first, *_ in self.model.batches)]
        limit = self.random.choice(ends)
        inside = [record for record in expected if record[0] < limit]
        newest = newest_record(self.log, limit)
        if inside:
            best = max(inside, key=lambda record: record[1])
            assert isinstance(newest, TimeOffset)
            assert (newest.offset, newest.timestamp) == best[:2]
        else:
            assert newest is None


def check_indexes(segment) -> None:  # type: ignore[no-untyped-def]
    """Every entry names a batch by its last offset and position, and the newest time is true."""
    batches = dict(scan(segment.open_log(), 0, segment.size, check=True))
    index: OffsetIndex = segment.index
    for offset, position in map(index.fields, range(len(index))):
        assert batches[position].last_offset == offset + segment.base_offset
    by_last = {header.last_offset: header for header in batches.values()}
    times = segment.time_index
    for timestamp, offset in map(times.fields, range(len(times))):
        assert by_last[offset + segment.base_offset].max_timestamp == timestamp
    newest = max((header.max_timestamp for header in batches.values()), default=-1)
    assert segment.newest[0] == newest


SEEDS = 25

STEPS = [
    (12, Machine.append),
    (2, Machine.send_again),
    (1, Machine.new_epoch),
    (2, Machine.sync),
    (1, Machine.crash),
    (1, Machine.stop),
    (1, Machine.truncate),
    (0.5, Machine.delete_records),
]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_work_keeps_every_record(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    machine = Machine(seed, tmp_path)
    weights = [weight for weight, _ in STEPS]
    for number in range(120):
        step = machine.random.choices(STEPS, weights)[0][1]
        step(machine)
        if number % 10 == 9:
            machine.check()
    machine.check()


def test_one_handle_is_enough(tmp_path: Path) -> None:
    shared = resources(open_files=2)
    log: PartitionLog = new_log(tmp_path, TopicConfigs(segment_bytes=300), shared)
    for _ in range(20):
        log.append_as_leader(batch(2), 0, NOW_MS)
    assert len(log.segments) > 5
    assert len(records_of(log)) == 40
    assert len(shared.files) <= 2
