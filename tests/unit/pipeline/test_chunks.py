"""Batches to Arrow columns: held against the plain decoder of `records`, and against damage."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tests.support.drawn_seed import drawn_seed
from tidelog.pipeline.decoding import chunks
from tidelog.pipeline.decoding.chunks import Decoder, Origin
from tidelog.pipeline.schema import arrow_schema, choose_columns
from tidelog.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    read_header,
    seal_batch,
)
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.control_records import ABORT, COMMIT, control_key
from tidelog.records.record import CorruptRecords, write_varint

ALL = choose_columns(None, headers=True, epoch=True)
END = 1 << 60


def decode(data: bytes, start: int = 0, end: int = END, **more: object) -> list[dict[str, object]]:
    decoder = Decoder(Origin("t", 3), ALL, start, end)
    return [row for batch in decoder.decode(data, **more) for row in batch.to_pylist()]  # type: ignore[arg-type]


def marked(batch: bytes, bits: int) -> bytes:
    header = read_header(batch)
    return seal_batch(header._replace(attributes=header.attributes | bits), batch[HEADER_SIZE:])


def some_records(rng: random.Random, count: int, longest: int) -> list[NewRecord]:
    def blob() -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.randrange(longest))

    return [
        NewRecord(
            1_700_000_000_000 + rng.randrange(-5000, 5_000_000),
            blob(),
            blob(),
            [(f"h{n}", blob()) for n in range(rng.choice((0, 0, 1, 5)))],
        )
        for _ in range(count)
    ]


def as_rows(records: Sequence[NewRecord], base: int) -> list[tuple[object, ...]]:
    return [
        (base + index, record.timestamp, record.key, record.value, list(record.headers))
        for index, record in enumerate(records)
    ]


def seen(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [
        (
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),  # type: ignore[attr-defined]
            row["key"],
            row["value"],
            [(h["key"], h["value"]) for h in row["headers"] or ()],  # type: ignore[attr-defined]
        )
        for row in rows
    ]


def test_the_epoch_of_a_record_is_that_of_the_last_fence_at_or_below_it() -> None:
    """Two fences side by side, one beyond the records, and none before the first ones."""
    data = build_batch([NewRecord(1000, None, b"v")] * 4, base_offset=3)
    data += build_batch([NewRecord(1000, None, b"v")] * 3, base_offset=9)

    def epochs(*fences: tuple[int, int]) -> list[object]:
        decoder = Decoder(Origin("t", 3, fences), ("offset", "epoch"), 0, END)
        return [row["epoch"] for batch in decoder.decode(data) for row in batch.to_pylist()]

    assert epochs() == [0] * 7
    assert epochs((7, 2), (8, 3), (40, 4)) == [0] * 4 + [3] * 3
    assert epochs((0, 1), (5, 4)) == [1, 1, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("longest", [1, 40, 9000])
def test_random_records_come_out_as_they_went_in(codec: int, longest: int) -> None:
    seed = drawn_seed()
    rng = random.Random(seed)
    data, wanted, base = b"", [], 5
    for _ in range(4):
        records = some_records(rng, rng.choice((1, 3, 200)), longest)
        data += build_batch(records, codec=codec, base_offset=base)
        wanted += as_rows(records, base)
        base += len(records)
    assert seen(decode(data)) == wanted


@pytest.mark.parametrize("size", [0, 30, 57, 58, 100, 8100, 20000])
def test_runs_of_equal_records_and_their_breaks(size: int) -> None:
    """The shortcut for records of one length, broken where varints grow and by a misfit."""
    records = [NewRecord(1000 + i, None, bytes(size)) for i in range(300)]
    records[220] = NewRecord(1220, b"key", b"odd")
    data = build_batch(records, base_offset=0)
    assert seen(decode(data)) == as_rows(records, 0)


def test_batches_of_one_size_whose_records_lie_differently() -> None:
    """The shortcut for batches that repeat: equal ones, ones that look equal, large lengths."""
    wanted, data, base = [], b"", 0
    for sizes in ([20] * 30, [20] * 30, [10, 30] * 15, [20] * 30, [9000, 20], [20, 9000]):
        records = [NewRecord(1000, None, bytes([base % 251]) * size) for size in sizes]
        data += build_batch(records, base_offset=base)
        wanted += as_rows(records, base)
        base += len(records)
    assert seen(decode(data)) == wanted


def test_the_columns_are_what_spark_expects() -> None:
    batch = build_batch([NewRecord(7, None, b"v")], base_offset=12)
    (made,) = Decoder(Origin("t", 3), ALL, 0, END).decode(batch)
    assert made.schema.equals(arrow_schema(ALL))
    assert made.to_pylist()[0]["headers"] is None
    assert [made.to_pylist()[0][name] for name in ("topic", "partition", "offset", "epoch")] == [
        "t",
        3,
        12,
        0,
    ]


def test_only_the_asked_range_comes_out() -> None:
    records = [NewRecord(i, None, b"%d" % i) for i in range(10)]
    data = build_batch(records[:6], base_offset=0) + build_batch(records[6:], base_offset=6)
    decoder = Decoder(Origin("t", 0), ("offset",), 2, 8)
    rows = [row["offset"] for batch in decoder.decode(data) for row in batch.to_pylist()]
    assert rows == list(range(2, 8))
    assert decoder.next_offset == 8


def test_an_incomplete_last_batch_is_left_for_the_next_fetch() -> None:
    records = [NewRecord(i, None, b"x" * 50) for i in range(10)]
    first, second = build_batch(records, base_offset=0), build_batch(records, base_offset=10)
    decoder = Decoder(Origin("t", 0), ("offset",), 0, END)
    assert sum(b.num_rows for b in decoder.decode(first + second[:-1])) == 10
    assert decoder.next_offset == 10
    assert sum(b.num_rows for b in decoder.decode(second)) == 10


def test_log_append_time_is_the_largest_of_the_batch() -> None:
    records = [NewRecord(10 + i, None, b"x") for i in range(3)]
    rows = decode(marked(build_batch(records), LOG_APPEND_TIME_BIT))
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [12, 12, 12]  # type: ignore[attr-defined]
    assert [row["timestampType"] for row in rows] == [1, 1, 1]


def test_control_records_are_skipped_and_the_position_passes_them() -> None:
    control = marked(
        build_batch([NewRecord(1, control_key(1253), b"")], base_offset=1), CONTROL_BIT
    )
    decoder = Decoder(Origin("t", 0), ("offset",), 0, END)
    data = build_batch([NewRecord(1, None, b"a")], base_offset=0) + control
    assert sum(batch.num_rows for batch in decoder.decode(data)) == 1
    assert decoder.next_offset == 2


def test_gaps_of_a_compacted_batch_and_empty_batches() -> None:
    whole = build_batch([NewRecord(1, b"k", b"v")], base_offset=40)
    header = read_header(whole)
    gappy = seal_batch(header._replace(last_offset_delta=9), whole[HEADER_SIZE:])
    empty = seal_batch(header._replace(base_offset=50, last_offset_delta=4, record_count=0), b"")
    decoder = Decoder(Origin("t", 0), ("offset",), 40, END)
    assert sum(batch.num_rows for batch in decoder.decode(gappy + empty)) == 1
    assert decoder.next_offset == 55


def test_aborted_transactions_are_hidden_until_their_marker() -> None:
    def data(offset: int, producer: int) -> bytes:
        made = build_batch(
            [NewRecord(1, None, b"x")], producer=Producer(producer, 0, 0), base_offset=offset
        )
        return marked(made, TRANSACTIONAL_BIT)

    def marker(offset: int, producer: int, kind: int) -> bytes:
        made = build_batch(
            [NewRecord(1, control_key(kind), b"\0" * 6)],
            producer=Producer(producer, 0, -1),
            base_offset=offset,
        )
        return marked(made, TRANSACTIONAL_BIT | CONTROL_BIT)

    log = data(0, 7) + data(1, 8) + marker(2, 7, ABORT) + data(3, 7) + marker(4, 8, COMMIT)
    log += marker(5, 7, COMMIT)
    assert [row["offset"] for row in decode(log, aborted=[(7, 0)])] == [1, 3]
    assert [row["offset"] for row in decode(log)] == [0, 1, 3]


def test_a_header_name_that_is_not_text_is_replaced() -> None:
    plain = build_batch([NewRecord(1, None, b"v", [("ab", b"1")])])
    body = plain[HEADER_SIZE:].replace(b"ab", b"\xff\xfe")
    rows = decode(seal_batch(read_header(plain), body))
    assert rows[0]["headers"] == [{"key": "\ufffd\ufffd", "value": b"1"}]


def test_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 500)
    records = [NewRecord(i, b"k", b"x" * 40) for i in range(20)]
    data = b"".join(build_batch(records, base_offset=20 * i) for i in range(10))
    decoder = Decoder(Origin("t", 0), ALL, 0, END)
    made = list(decoder.decode(data))
    assert len(made) == 10
    assert [r for b in made for r in b.column("offset").to_pylist()] == list(range(200))


def test_damage_is_named_never_decoded() -> None:
    """Every changed byte from the magic on (what stands before is not under the checksum)."""
    records = [NewRecord(5, b"k", b"value", [("h", b"x")]), NewRecord(6, None, b"v" * 80)]
    batch = bytearray(build_batch(records))
    for position in range(16, len(batch)):
        for flip in (1, 0x80, 0xFF):
            batch[position] ^= flip
            with pytest.raises(CorruptRecords):
                decode(bytes(batch))
            batch[position] ^= flip


def test_hostile_payloads_with_a_right_checksum() -> None:
    seed = drawn_seed()
    rng = random.Random(seed)
    good = build_batch(some_records(random.Random(1), 80, 30))
    header, body = read_header(good), good[HEADER_SIZE:]
    for _ in range(3000):
        damaged = bytearray(body)
        for _ in range(rng.choice((1, 2, 8))):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 2, 127, 128, 255))
        count = header.record_count if rng.random() < 0.9 else rng.choice((0, 81, 1 << 30, -1))
        with contextlib.suppress(CorruptRecords):
            decode(seal_batch(header._replace(record_count=count), bytes(damaged)))


@pytest.mark.parametrize("headers", [1, 2**61, 2**62, 2**62 + 1, 2**63 - 1, -1, -(2**63)])
def test_more_headers_than_a_record_has_room_for_are_named(headers: int) -> None:
    body = b"\0\0\0\2k\2v" + write_varint(headers)
    record = write_varint(len(body)) + body
    whole = build_batch([NewRecord(0, b"k", b"v")])
    with pytest.raises(CorruptRecords):
        decode(seal_batch(read_header(whole), record))


@pytest.mark.parametrize("more", [b"\0", bytes(100)])
def test_bytes_after_the_last_record_are_named(more: bytes) -> None:
    """A batch that announces fewer records than it holds: the others would be passed over."""
    records = [NewRecord(1, b"k", b"v") for _ in range(20)]
    batch = build_batch(records)
    fewer = read_header(batch)._replace(record_count=19, last_offset_delta=18)
    with pytest.raises(CorruptRecords):
        decode(seal_batch(fewer, batch[HEADER_SIZE:]))
    with pytest.raises(CorruptRecords):
        decode(seal_batch(read_header(batch), batch[HEADER_SIZE:] + more))


def test_batches_of_one_size_whose_lengths_differ_in_their_second_byte() -> None:
    """Sizes whose length fields begin with the same byte, of which the values are full."""
    first = [NewRecord(1, None, b"\x9e" * each) for each in (200, 264, 200)]
    other = [NewRecord(1, None, b"\x9e" * each) for each in (264, 200, 200)]
    data = b"".join(
        seal_batch(read_header(each)._replace(base_offset=at * 3), each[HEADER_SIZE:])
        for at, each in enumerate((build_batch(first), build_batch(other)))
    )
    lengths = [len(row["value"]) for row in decode(data)]  # type: ignore[arg-type]
    assert lengths == [200, 264, 200, 264, 200, 200]


def test_nothing_decodes_to_nothing() -> None:
    assert decode(b"") == []
    assert pa.record_batch([], names=[]).num_rows == 0


def test_times_that_do_not_fit_are_refused_and_do_not_wrap() -> None:
    """P17: a producer that writes nanoseconds; a range that does not hold the record is read."""
    good, nanoseconds = 1_763_000_000_000, 1_763_000_000_000_000_000
    data = b"".join(
        bytes(build_batch([NewRecord(time, b"k", b"v", [])], base_offset=offset))
        for offset, time in enumerate((good, nanoseconds, good))
    )
    with pytest.raises(CorruptRecords, match="timestamp of 1763000000000000000 ms does not fit"):
        decode(data)
    assert [row["offset"] for row in decode(data, 2)] == [2]
    without = Decoder(Origin("t", 3), ("offset",), 0, END)
    assert [row for batch in without.decode(data) for row in batch["offset"].to_pylist()] == [
        0,
        1,
        2,
    ]


def test_a_batch_at_the_end_of_the_range_is_not_decoded() -> None:
    """It may be of any form that a later version writes."""
    data = build_batch([NewRecord(1000, None, b"v")] * 2, base_offset=0)
    data += marked(build_batch([NewRecord(1000, None, b"v")], base_offset=2), bits=7)
    assert [row["offset"] for row in decode(data, 0, 2)] == [0, 1]
    with pytest.raises(CorruptRecords):
        decode(data, 0, 3)


def test_a_range_that_ends_in_a_gap_is_read_to_its_end() -> None:
    """Compaction left no batch at the end; otherwise the same batches would be fetched for ever."""
    data = build_batch([NewRecord(1000, None, b"v")], base_offset=0)
    beyond = build_batch([NewRecord(1000, None, b"v")], base_offset=9)
    decoder = Decoder(Origin("t", 3), ALL, 0, 5)
    assert sum(batch.num_rows for batch in decoder.decode(data)) == 1
    assert decoder.next_offset == 1
    assert not list(decoder.decode(beyond))
    assert decoder.next_offset == 5
