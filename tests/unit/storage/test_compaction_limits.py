"""What one run of the cleaner may use: bytes for its keys, whatever their length, and its pace."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.compacting import COMPACT, clean, contents, few, put
from tests.support.storage_logs import NOW_MS, QuickDisk, new_log
from tidelog.runtime.disk import RealDisk
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.digests import MOST_BYTES, KeyDigests
from tidelog.storage.compaction.newest import NewestOffsets, table_for
from tidelog.storage.compaction.pace import Pace, read_rate, write_rate
from tidelog.storage.compaction.plan import ENTRY_BYTES, Share, plan_compaction
from tidelog.storage.log.partition_log import PartitionLog

SECOND_NS = 10**9


class Slept:
    """A clock that stands, except during a sleep."""

    def __init__(self) -> None:
        self.now_ns = 5 * SECOND_NS
        self.longest_s = 0.0

    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic_ms(self) -> int:
        return self.now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.longest_s = max(self.longest_s, seconds)
        self.now_ns += int(seconds * SECOND_NS)


def log_of_keys(folder: Path, count: int) -> PartitionLog:
    log = new_log(folder, COMPACT)
    for _ in range(2):
        for number in range(count):
            put(log, (f"k{number}", "v"))
    log.roll(NOW_MS)
    log.high_watermark = log.end_offset
    return log


@pytest.mark.parametrize(("room", "runs"), [(100, 1), (50, 2), (25, 4)])
def test_more_keys_than_fit_take_so_many_runs(tmp_path: Path, room: int, runs: int) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(100):
        put(log, (f"k{number}", f"v{number}"))
    log.roll(NOW_MS)
    done = 0
    while clean(log, share=few(room)) is not None:
        done += 1
    assert done == runs
    assert contents(log) == {f"k{number}": f"v{number}" for number in range(100)}


def test_one_batch_is_always_taken(tmp_path: Path) -> None:
    """Otherwise a log with a batch of more keys than the buffer holds would never be compacted."""
    log = new_log(tmp_path, COMPACT)
    for value in "ab":
        put(log, *((f"k{number}", value) for number in range(50)))
    log.roll(NOW_MS)
    runs = 0
    while clean(log, share=Share(buffer_bytes=1, load_factor=0)) is not None:
        runs += 1
    assert runs == 2
    assert contents(log) == {f"k{number}": "b" for number in range(50)}


def sized(table: NewestOffsets, digests: KeyDigests, keys: list[bytes]) -> list[int]:
    return table.get(digests.of_keys(keys)).tolist()


@pytest.mark.parametrize("load_factor", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_the_table_knows_what_a_dictionary_knows(load_factor: float, at_once: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    alike = [b"", b"\0", b"\0\0", b"\x80", b"a", b"a\0", b"a\x80", b"a" * 15, b"a" * 16, b"a" * 17]
    alike += [bytes(size) for size in (7, 8, 9, 63, 64, 65, 66)]
    keys = alike + [chance.randbytes(chance.randrange(MOST_BYTES + 9)) for _ in range(500)]
    table, digests = table_for(Share(200 * ENTRY_BYTES, load_factor), 10**9), KeyDigests(seed)
    known: dict[bytes, int] = {}
    offset = 0
    while table.has_room(at_once):
        # Some of them twice: the newer offset counts.
        chosen = chance.choices(keys, k=at_once)
        offsets = []
        for key in chosen:
            offsets.append(offset)
            known[key] = offset
            offset += chance.randrange(1, 1 << 40)
        table.put(digests.of_keys(chosen), np.array(offsets))
        assert table.count == len(known)
    assert len(known) <= int(200 * min(load_factor, 0.95)) < len(known) + at_once
    assert sized(table, digests, keys) == [known.get(key, -1) for key in keys]


def test_long_keys_take_the_memory_of_short_ones() -> None:
    share = Share(buffer_bytes=1 << 15)
    digests = KeyDigests()
    tracemalloc.start()
    table = table_for(share, 10**9)
    number = 0
    while table.has_room(1):
        table.put(digests.of_keys([b"%d" % number + bytes(10_000)]), np.array([number]))
        number += 1
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == int((1 << 15) // ENTRY_BYTES * 0.9)
    assert most < 1.1 * (1 << 15) + 100_000, "the keys have 12 MB"


def test_a_small_log_takes_a_small_table() -> None:
    tracemalloc.start()
    table = table_for(Share(), 100)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert table.has_room(100) and most < 20_000


def test_no_table_is_so_full_that_a_search_has_no_end() -> None:
    digests = KeyDigests()
    for count in (1, 2, 3, 100):
        table = NewestOffsets(count, 0)
        keys = [b"%d" % number for number in range(count)]
        table.put(digests.of_keys(keys), np.arange(count))
        assert not table.has_room(1) and sized(table, digests, [b"none"]) == [-1]
        assert sized(table, digests, keys) == list(range(count))


def test_keys_are_alike_for_no_other_reason_than_chance() -> None:
    """A writer that knows the hash could choose two keys that are one, and have a record lost."""
    keys = [b"a", b"b", b"a" * 40, bytes(40), bytes(41), b"k" * 200]
    first, second = (KeyDigests().of_keys(keys) for _ in range(2))
    short = [place for place, key in enumerate(keys) if len(key) <= MOST_BYTES]
    assert (first[short] != second[short]).all(), "the multipliers are drawn for each run"
    bits = np.unpackbits(first.view(np.uint8), axis=1)
    assert len({row.tobytes() for row in bits}) == len(keys)
    drawn = [KeyDigests(secret).of_keys([b"1", b"2"]) for secret in range(500)]
    for column in (0, 1):
        for shift in (0, 32):
            parts = [(digests[:, column] >> np.uint64(shift)) & np.uint64(15) for digests in drawn]
            alike = sum(bool(one == other) for one, other in parts)
            assert alike < 70, "16 values are alike in one of 16 draws: 31 of 500, 5 more or less"


def test_what_is_read_and_written_keeps_to_the_rate(tmp_path: Path) -> None:
    log = log_of_keys(tmp_path, 500)
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None
    clock = Slept()
    begun_ns = clock.now_ns
    result = compact(QuickDisk(), plan, Pace(10_000, clock, clock.sleep))
    took_s = (clock.now_ns - begun_ns) / SECOND_NS
    # Once for the keys, once for what is written.
    read = 2 * sum(source.size for group in plan.groups for source in group)
    assert result.bytes_read * 2 == read == result.bytes_from_disk
    assert result.bytes_to_disk == sum(one.size for one in result.groups)
    assert took_s == pytest.approx((read + result.bytes_to_disk) / 10_000, abs=0.1)
    assert clock.longest_s < 1, "in small parts"


def test_a_rate_of_the_plan_is_kept(tmp_path: Path) -> None:
    """Without a limit the cleaner never waits, however much is read."""
    clock = Slept()
    free = Pace(Share().bytes_per_second, clock, clock.sleep)
    free.take(1 << 60)
    assert clock.longest_s == 0
    pace = Pace(1000, clock, clock.sleep)
    pace.take(1000)
    assert clock.longest_s == pytest.approx(1)
    clock.now_ns += 60 * SECOND_NS
    before_ns = clock.now_ns
    pace.take(500)
    pace.take(500)
    assert clock.now_ns - before_ns == pytest.approx(SECOND_NS), "an idle minute is not saved"


def test_a_raised_rate_ends_a_long_wait_within_a_second(tmp_path: Path) -> None:
    """It slept in one piece as long as the bytes took by the rate of the plan: at 1 B/s, days."""
    clock, rates = Slept(), iter([None, 1.0, 1e9])
    begun_ns = clock.now_ns
    pace = Pace(1.0, clock, clock.sleep, check=lambda: next(rates))
    pace.take(1_000_000)
    assert clock.longest_s <= 1
    assert (clock.now_ns - begun_ns) / SECOND_NS == pytest.approx(3, abs=0.1)
    file = str(tmp_path / "rate")
    assert read_rate(RealDisk(), file) is None
    for rate in (1e300, 0.1, 12_345.678):
        write_rate(RealDisk(), file, rate)
        assert read_rate(RealDisk(), file) == rate
    (tmp_path / "rate").write_text("half a num")
    assert read_rate(RealDisk(), file) is None, "the run keeps its rate"


def test_a_tombstone_of_a_long_key_goes_with_its_values(tmp_path: Path) -> None:
    log = new_log(tmp_path, replace(COMPACT, segment_bytes=5000))
    key = "k" * 500
    put(log, (key, "v"), (key + "2", "v"))
    put(log, (key, None))
    log.roll(NOW_MS)
    clean(log)
    assert contents(log) == {key: None, key + "2": "v"}
