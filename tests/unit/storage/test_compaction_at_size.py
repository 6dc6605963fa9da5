"""The cleaner reads many records at once: what it makes of them is what it would of each alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.compacting import COMPACT, clean, contents, few, put
from tests.support.lying_batches import changed, family
from tests.support.storage_logs import NOW_MS, QuickDisk, new_log, records_of, remove_due
from tidelog.records.batch import (
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    BatchHeader,
    read_header,
    seal_batch,
    walk,
)
from tidelog.records.builder import NO_PRODUCER, NewRecord, Producer, build_batch
from tidelog.records.record import CorruptRecords, encode_record
from tidelog.storage.compaction import opened as opening
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.opened import PIECE_BYTES, PIECE_RECORDS, Item, opened, pieces
from tidelog.storage.compaction.plan import CompactionPlan, CompactionResult, plan_compaction
from tidelog.storage.log.partition_log import PartitionLog

KEYS = [
    *(b"", b"\0", b"a", b"a" * 7, b"a" * 8, b"a" * 9, b"b" * 16, b"c" * 63, b"c" * 64, b"c" * 65),
    *(b"k%d" % number for number in range(20)),
    *(b"long" * 40 + b"%d" % number for number in range(5)),
]


def random_batch(chance: random.Random, producer: Producer = NO_PRODUCER) -> bytes:
    """A batch as a client may send it, with nulls, headers, and lengths of one to three bytes."""
    records = [
        NewRecord(
            NOW_MS + chance.choice([0, 1, -1, 70, 9_000, -9_000, 2_000_000]),
            chance.choice(KEYS) if chance.random() < 0.97 else None,
            None if chance.random() < 0.2 else bytes(chance.choice([0, 1, 20, 63, 64, 100, 9_000])),
            [("h", b"x"), ("empty", None)] if chance.random() < 0.1 else (),
        )
        for _ in range(chance.choice([1, 1, 2, 5, 60, 200]))
    ]
    return bytes(
        build_batch(records, codec=chance.choice([0, 0, 0, 1, 2, 3, 4]), producer=producer)
    )


def placed(batches: list[bytes]) -> list[tuple[int, BatchHeader, memoryview]]:
    """The batches one after another, at offsets and positions of their own."""
    found, offset, position = [], 7, 0
    for batch in batches:
        content = bytearray(batch)
        content[:8] = offset.to_bytes(8, "big")
        header = read_header(content)
        found.append((position, header, memoryview(bytes(content))))
        offset, position = max(offset, header.next_offset) + 2, position + len(batch)
    return found


def rows_of(items: list[Item]) -> Iterator[tuple[object, ...]]:
    """What the cleaner sees of each record; of a batch that it leaves alone its offset."""
    for part, records in opened(items):
        if records is None:
            yield from (("left", item.header.base_offset) for item in part)
            continue
        sizes = np.diff(records.firsts, append=len(records.starts)).tolist()
        rows = iter(range(len(records.starts)))
        counts = iter(sizes)
        for item in part:
            if item.payload is None:
                yield "left", item.header.base_offset
                continue
            for _ in range(next(counts)):
                row = next(rows)
                key_at, key_size = int(records.key_starts[row]), int(records.key_sizes[row])
                key = records.data[key_at : key_at + key_size]
                yield (
                    int(records.offsets[row]),
                    int(records.times[row]),
                    key if records.has_key[row] else None,
                    bool(records.has_value[row]),
                    records.data[records.starts[row] : records.ends[row]],
                )


def none_at_once(items: object) -> None:
    raise CorruptRecords("one by one")


@pytest.mark.parametrize("seed", range(12))
def test_records_read_at_once_are_those_read_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside lies, which have all of their piece go one by one."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    batches = [random_batch(chance) for _ in range(20)]
    if seed % 3 == 0:
        batches += [lie.batch for lie in family(seed, NOW_MS, 33)]
        chance.shuffle(batches)
    found = [list(pieces([one])) for one in placed(batches)]
    items = [item for ((item,),) in found]
    at_once = list(rows_of(items))
    monkeypatch.setattr(opening, "_at_once", none_at_once)
    assert at_once == list(rows_of(items))
    assert len(at_once) > 20


@pytest.mark.parametrize(("base", "delta"), [(-1, -(2**63)), (-(2**63), -5), (0, -(2**63))])
def test_times_at_the_end_of_64_bits_are_left_as_they_are(
    tmp_path: Path, base: int, delta: int
) -> None:
    """No client may send them now; a replica of an older version may hold them."""
    log = new_log(tmp_path, COMPACT)
    payload = encode_record(0, 0, b"k", b"old") + encode_record(1, delta, b"j", b"v")
    times = {"base_timestamp": base, "max_timestamp": -1}
    honest = build_batch([NewRecord(NOW_MS, b"k", b"v")])
    sent = changed(honest, payload, record_count=2, last_offset_delta=1, **times)
    log.append_as_leader(sent, 0, NOW_MS, from_client=False)
    put(log, ("k", "new"), ("x", "new"))
    log.roll(NOW_MS)
    assert clean(log) is not None or log.first_dirty_offset == log.end_offset
    left = Path(log.segments[0].log_path).read_bytes()
    assert left[HEADER_SIZE : len(sent)] == sent[HEADER_SIZE:]


def test_records_without_a_key_go(tmp_path: Path) -> None:
    """A topic has such records from before it was compacted."""
    log = new_log(tmp_path, COMPACT)
    records = [NewRecord(NOW_MS, key, b"v") for key in (None, b"a", None, None, b"b", None)]
    for sent in (records, [NewRecord(NOW_MS, None, b"v")] * 2, [NewRecord(NOW_MS, b"c", b"v")]):
        log.append_as_leader(build_batch(sent), 0, NOW_MS, from_client=False)
    log.roll(NOW_MS)
    log.high_watermark = log.end_offset
    clean(log)
    kept = [(record.offset, record.key) for record in records_of(log)]
    assert kept == [(1, b"a"), (4, b"b"), (8, b"c")]


def random_log(folder: Path, chance: random.Random) -> PartitionLog:
    log = new_log(folder, replace(COMPACT, segment_bytes=30_000))
    sequences = [0] * 4
    for number in range(120):
        who = chance.randrange(5)
        producer = NO_PRODUCER if who == 4 else Producer(who, 0, sequences[who])
        batch = random_batch(chance, producer)
        if who < 4:
            sequences[who] += read_header(batch).record_count
        log.append_as_leader(batch, 0, NOW_MS + number, from_client=False)
    log.roll(NOW_MS)
    log.high_watermark = log.end_offset
    log.sync()
    return log


def run(plan: CompactionPlan) -> tuple[CompactionResult, dict[str, bytes]]:
    """Carry a plan out; return the content of the files that it writes, too."""
    result = compact(QuickDisk(), plan)
    written = {path.name: path.read_bytes() for path in Path(plan.directory).glob("*.cleaned")}
    return result, written


@pytest.mark.parametrize("seed", range(6))
def test_a_run_writes_what_it_would_write_record_by_record(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: all that a client may send, tombstones old and new, and too many keys at once."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = random_log(tmp_path, chance)
    for later in (0, 500, 1_500):
        share = few(chance.choice([10, 300, 5_000]))
        plan = plan_compaction(log, NOW_MS + later, share=share)
        if plan is None:
            break
        at_once = run(plan)
        with monkeypatch.context() as patch:
            patch.setattr(opening, "_at_once", none_at_once)
            assert run(plan) == at_once
        assert at_once[1] or not later
        clean(log, NOW_MS + later, share)


def test_a_piece_is_bounded_in_records_and_plain_bytes() -> None:
    one = bytes(build_batch([NewRecord(NOW_MS, b"k", b"v")]))
    sizes = [len(items) for items in pieces(placed([one] * (PIECE_RECORDS + 1)))]
    assert sizes == [PIECE_RECORDS, 1]
    large = bytes(build_batch([NewRecord(NOW_MS, b"k", bytes(PIECE_BYTES // 2))], codec=3))
    assert len(large) < PIECE_BYTES // 100
    assert [len(items) for items in pieces(placed([large] * 5))] == [2, 2, 1]


def test_a_clean_segment_is_read_once_and_a_dirty_one_twice(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    for number in range(60):
        put(log, (f"k{number}", f"v{number}"))
    clean(log)
    clean_bytes = sum(segment.size for segment in log.segments[:-1])
    for number in range(60):
        put(log, (f"k{number}", "new"), producer=Producer(1, 0, number))
    log.sync()
    plan = plan_compaction(log, NOW_MS)
    assert plan is not None and plan.producers
    read = sum(source.size for group in plan.groups for source in group)
    dirty = read - clean_bytes
    result = compact(QuickDisk(), plan)
    assert result.bytes_from_disk == read + dirty and dirty > 1000 and clean_bytes > 1000
    assert result.bytes_to_disk == sum(one.size for one in result.groups) < result.bytes_kept


def test_the_last_batches_of_a_silent_producer_are_those_of_the_clean_part(tmp_path: Path) -> None:
    log = new_log(tmp_path, COMPACT)
    mine = [put(log, (f"a{n}", f"{n}"), producer=Producer(9, 0, n)) for n in range(8)]
    for number in range(30):
        put(log, (f"f{number}", "filler" * 4))
    clean(log)
    assert len([1 for producer, _, count in batches_of(log) if producer == 9 and count]) == 8
    mine.append(put(log, ("a8", "8"), producer=Producer(9, 0, 8)))
    for number in range(9):
        put(log, (f"a{number}", "another's"))
    for number in range(30):
        put(log, (f"f{number}", "filler" * 4))
    clean(log)
    left = [offset for producer, offset, _ in batches_of(log) if producer == 9]
    assert set(mine[-5:]) <= set(left) and len(left) < len(mine)
    assert not any(count for producer, _, count in batches_of(log) if producer == 9)


def batches_of(log: PartitionLog) -> list[tuple[int, int, int]]:
    """Producer, offset and count of records of each batch."""
    return [
        (header.producer_id, header.base_offset, header.record_count)
        for segment in log.segments
        for _, header in walk(segment.read_bytes(0, segment.size))
    ]


def test_a_tombstone_beyond_the_table_stays_while_its_value_does(tmp_path: Path) -> None:
    """A follower copied a tombstone whose time is set: it went, and the value below it returned,
    when a run had no room for the key of the tombstone."""
    log = new_log(tmp_path, replace(COMPACT, segment_bytes=100_000))
    for key in ("deleted", "b", "c"):
        put(log, (key, "v"))
    copied = bytes(build_batch([NewRecord(NOW_MS, b"deleted", None)]))
    header = read_header(copied)
    header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT)
    marked = seal_batch(header, copied[HEADER_SIZE:])
    assert read_header(marked).delete_horizon_ms == NOW_MS
    log.append_as_leader(marked, 0, NOW_MS, from_client=False)
    log.roll(NOW_MS)
    log.high_watermark = log.end_offset
    clean(log, NOW_MS + 5_000, few(3))
    assert contents(log)["deleted"] is None
    clean(log, NOW_MS + 5_000)
    assert "deleted" not in contents(log)


def test_what_a_run_replaced_goes_at_once_and_readers_go_on(tmp_path: Path) -> None:
    """With ``file.delete.delay.ms`` a run needed room for the log three times."""
    log = new_log(tmp_path, replace(COMPACT, file_delete_delay_ms=60_000))
    for number in range(60):
        put(log, (f"k{number % 3}", f"v{number}"))
    former = log.segments[0]
    reader = log.resources.files.pin(former.log_path)
    content = former.read_bytes(0, former.size)
    assert clean(log)
    assert list(Path(log.path).glob("*.deleted"))
    assert remove_due(log, NOW_MS) > 0
    assert not list(Path(log.path).glob("*.deleted"))
    assert reader.read_at(0, len(content)) == content
    log.resources.files.release(reader)
    assert contents(log) == {"k0": "v57", "k1": "v58", "k2": "v59"}
