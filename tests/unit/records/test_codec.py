"""Records <-> bytes: held against aiokafka and kafka-python; compressions, hostile bytes."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.storage_logs import batch
from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.records.builder import FastBuilder, NewRecord, Producer, build_batch
from tidelog.records.compression import CODEC_NAMES, Codec, compress, decompress
from tidelog.records.control_records import (
    COMMIT,
    PARTITION_CHANGE,
    AncestorTombstone,
    ChangeKind,
    FenceRecord,
    change_batch,
    control_key,
    control_type,
    decode_change,
    encode_change,
)
from tidelog.records.reader import FastReader, read_all, read_batch
from tidelog.records.record import (
    CorruptRecords,
    decode_records,
    encode_record,
    read_varint,
    spans,
    write_varint,
)

NULLABLE = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        st.integers(0, 2**42),
        NULLABLE,
        NULLABLE,
        st.lists(st.tuples(st.text(max_size=20), NULLABLE), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value: int) -> None:
    written = write_varint(value)
    assert len(written) <= 10
    assert read_varint(written, 0) == (value, len(written))


@pytest.mark.parametrize("content", [b"", b"\x80", b"\xff" * 9, b"\x80" * 11])
def test_varints_are_bounded(content: bytes) -> None:
    with pytest.raises(CorruptRecords):
        read_varint(content, 0)


@given(RECORDS, st.sampled_from(list(Codec)))
def test_records_round_trip_and_aiokafka_agrees(records: list[NewRecord], codec: Codec) -> None:
    made = build_batch(records, codec=codec, producer=Producer(9, 1, 5))
    found = read_batch(made)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in found] == [
        (r.timestamp, r.key, r.value, list(r.headers)) for r in records
    ]
    assert [record.offset for record in found] == list(range(len(records)))
    theirs = [
        (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in FastReader().records(made)
    ]
    assert theirs == [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in found]


@given(RECORDS, st.sampled_from(list(Codec)))
def test_both_builders_write_the_same(records: list[NewRecord], codec: Codec) -> None:
    fast = FastBuilder(1_000_000, codec=codec, producer=Producer(9, 1, 5))
    for record in records:
        assert fast.append(*record[:3], headers=list(record.headers))
    assert fast.count == len(records)
    assert fast.build() == build_batch(records, codec=codec, producer=Producer(9, 1, 5))


def test_a_full_fast_builder_says_so() -> None:
    fast = FastBuilder(300)
    taken = 0
    while fast.append(0, None, bytes(50)):
        taken += 1
    assert 1 <= taken < 6 and read_header(fast.build()).record_count == taken


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_reads_our_compressions_and_we_read_its(codec: str) -> None:
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

    number = CODEC_NAMES[codec]
    made = build_batch([NewRecord(7, b"k", bytes(100_000)), NewRecord(8, None, b"x")], codec=number)
    values = [record.value for record in MemoryRecords(made).next_batch()]
    assert values == [bytes(100_000), b"x"]
    theirs = MemoryRecordsBuilder(magic=2, compression_type=number, batch_size=10**6)
    theirs.append(timestamp=5, key=b"k", value=bytes(100_000), headers=[])
    theirs.close()
    (record,) = read_batch(bytes(theirs.buffer()))
    assert (record.timestamp, record.value) == (5, bytes(100_000))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_bomb_is_refused_at_the_limit(codec: Codec) -> None:
    packed = compress(codec, bytes(1_000_000))
    assert decompress(codec, packed, 1_000_000) == bytes(1_000_000)
    if codec != Codec.NONE:
        with pytest.raises(CorruptRecords, match="more than"):
            decompress(codec, packed, 999_999)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_damaged_payloads_are_corrupt_not_fatal(codec: Codec) -> None:
    chance = random.Random(codec)
    payload = bytes(chance.choices(b"abcd", k=5000))
    packed = compress(codec, payload)
    for _ in range(150):
        torn = bytearray(packed)
        if chance.random() < 0.5:
            torn[chance.randrange(len(torn))] ^= 1 << chance.randrange(8)
        else:
            del torn[chance.randrange(len(torn)) :]
        try:
            found = decompress(codec, bytes(torn), 100_000)
        except CorruptRecords:
            continue
        assert len(found) <= 100_000
    with pytest.raises(CorruptRecords):
        decompress(6, packed)


def test_raw_snappy_is_read_too() -> None:
    import cramjam

    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"ab" * 99))) == b"ab" * 99


def test_compression_levels_are_taken() -> None:
    words = [b"%d," % number for number in range(300)]
    payload = b"".join(random.Random(1).choices(words, k=20_000))
    for codec in (Codec.GZIP, Codec.ZSTD):
        assert len(compress(codec, payload, 9)) < len(compress(codec, payload, 1))
        assert decompress(codec, compress(codec, payload, 9)) == payload
    assert decompress(Codec.LZ4, compress(Codec.LZ4, payload, 9)) == payload


def test_hostile_records_are_corrupt_not_fatal() -> None:
    chance = random.Random(2)
    good = encode_record(0, 5, b"key", b"value", [("h", b"x"), ("n", None)]) * 3
    assert len(decode_records(good, 3, 0, 0)) == 3
    for _ in range(3000):
        torn = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            torn[chance.randrange(len(torn))] = chance.randrange(256)
        with contextlib.suppress(CorruptRecords):
            decode_records(bytes(torn), 3, 0, 0)
        with contextlib.suppress(CorruptRecords):
            list(spans(bytes(torn), 3))
    for count in (2, 4, 2**31 - 1):
        with pytest.raises(CorruptRecords):
            decode_records(good, count, 0, 0)
    many_headers = b"\0\0\0\1\1" + write_varint(2**40)
    with pytest.raises(CorruptRecords):
        decode_records(write_varint(len(many_headers)) + many_headers, 1, 0, 0)


def test_read_all_begins_inside_a_batch_checks_crcs_and_skips_control_batches() -> None:
    fence = change_batch(FenceRecord(ChangeKind.FENCE, 2, 8), leader_epoch=0, timestamp_ms=1)
    content = batch(3) + fence + build_batch([NewRecord(1, b"a", b"b")], base_offset=4)
    assert [record.offset for record in read_all(content, 1)] == [1, 2, 4]
    torn = bytearray(content)
    torn[HEADER_SIZE + 3] ^= 1
    with pytest.raises(CorruptRecords, match="CRC"):
        list(read_all(torn))


@pytest.mark.parametrize(
    "change",
    [
        FenceRecord(ChangeKind.FENCE, 3, 16),
        FenceRecord(ChangeKind.SEAL, 2**31 - 1, 1),
        AncestorTombstone(b""),
        AncestorTombstone(b"key"),
    ],
)
def test_changes_of_partitions_are_control_records(change: FenceRecord | AncestorTombstone) -> None:
    made = change_batch(change, leader_epoch=7, timestamp_ms=55)
    header = read_header(made)
    assert header.control and header.record_count == 1
    (record,) = read_batch(made)
    assert control_type(record.key) == PARTITION_CHANGE
    assert decode_change(record.value) == change


def test_golden_bytes_of_control_records() -> None:
    assert control_key(COMMIT) == b"\0\0\0\1"
    assert control_key(PARTITION_CHANGE) == b"\0\0\x04\xe5"
    fence = encode_change(FenceRecord(ChangeKind.SEAL, 3, 8))
    assert fence == struct.pack(">hbii", 0, 1, 3, 8)
    assert decode_change(fence + b"later version") == FenceRecord(ChangeKind.SEAL, 3, 8)


@pytest.mark.parametrize("value", [None, b"", b"\0\0", b"\0\0\0\0", b"\0\0\x09" + bytes(8)])
def test_damaged_control_records(value: bytes | None) -> None:
    with pytest.raises(CorruptRecords):
        decode_change(value)
    with pytest.raises(CorruptRecords):
        control_type(value[:2] if value else value)
