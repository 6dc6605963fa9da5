"""What a leader takes of a batch's records: all that every reader reads alike, and nothing else.

The kind of B1 and B2: a field of a record that is not what its header, or its neighbours, say.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.lying_batches import changed
from tidelog.records.batch import HEADER_SIZE, MAX_INT64, NO_TIMESTAMP
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.reader import FastReader, read_batch
from tidelog.records.record import CorruptRecords, encode_record, write_varint
from tidelog.records.record_scan import COPIED_BYTES, MIN_INT64, RecordScan

NOW_MS = 1_700_000_000_000

TEXTS = st.one_of(st.none(), st.binary(max_size=200))
HEADERS = st.lists(st.tuples(st.text(max_size=9), TEXTS), max_size=3)
TIMES = st.one_of(st.just(NO_TIMESTAMP), st.integers(0, 2 * NOW_MS))
RECORDS = st.lists(st.builds(NewRecord, TIMES, TEXTS, TEXTS, HEADERS), min_size=1, max_size=80)


def scanned(payload: bytes, count: int, first: int = NOW_MS, at_once: int = 1000) -> RecordScan:
    scan = RecordScan(payload, count, first, count)
    while not scan.scan(at_once):
        pass
    return scan


def fault(payload: bytes, count: int = 1, first: int = NOW_MS) -> str:
    with pytest.raises(CorruptRecords) as caught:
        scanned(payload, count, first)
    return str(caught.value)


@given(RECORDS, st.integers(1, 7))
def test_an_honest_batch_is_taken_with_its_times_and_missing_keys(
    records: list[NewRecord], at_once: int
) -> None:
    payload = build_batch(records)[HEADER_SIZE:]
    scan = scanned(payload, len(records), records[0].timestamp, at_once)
    times = [record.timestamp for record in records]
    dated = [time for time in times if time != NO_TIMESTAMP]
    assert scan.newest == (max(times), times.index(max(times)) if dated else 0)
    assert scan.oldest == ((min(dated), times.index(min(dated))) if dated else (NO_TIMESTAMP, 0))
    assert scan.missing == [at for at, record in enumerate(records) if record.key is None]


@given(RECORDS, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3))
@example([NewRecord(NOW_MS, b"k", b"v")], [(5, 0x80)])
def test_what_is_taken_is_read_alike(
    records: list[NewRecord], changes: list[tuple[int, int]]
) -> None:
    """By aiokafka's compiled reader and by ours, whatever bytes were changed."""
    batch = build_batch(records)
    payload = bytearray(batch[HEADER_SIZE:])
    for at, byte in changes:
        payload[at % len(payload)] = byte
    first = records[0].timestamp
    try:
        scan = scanned(bytes(payload), len(records), first)
    except CorruptRecords:
        return
    sent = changed(batch, bytes(payload), max_timestamp=scan.newest[0])
    ours = [tuple(each) for each in read_batch(sent)]
    theirs = [_fields(each) for each in FastReader().records(sent)]
    assert [(*each[:4], list(each[4])) for each in ours] == theirs
    assert [each[0] for each in ours] == list(range(len(records)))
    assert scan.newest[0] == max(NO_TIMESTAMP, *(each[1] for each in ours))


def _fields(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, list(record.headers)


PLAIN = encode_record(0, 0, b"k", b"v")


def body(*parts: bytes, attributes: bytes = b"\0") -> bytes:
    whole = attributes + b"".join(parts)
    return write_varint(len(whole)) + whole


def overlong(value: int, size: int) -> bytes:
    """A zigzag varint in more bytes than it needs."""
    found = bytearray(write_varint(value))
    while len(found) < size:
        found[-1] |= 0x80
        found.append(0)
    return bytes(found)


ZERO, NULL, ONE = write_varint(0), write_varint(-1), write_varint(1)


@pytest.mark.parametrize(
    ("claim", "payload", "count"),
    [
        ("fewer records than there are", PLAIN + encode_record(1, 0, b"k", b"v"), 1),
        ("more records than there are", PLAIN, 2),
        ("a first offset delta that is not 0", encode_record(1, 0, b"k", b"v"), 1),
        ("two records of one offset", PLAIN + PLAIN, 2),
        ("offset deltas with a hole", PLAIN + encode_record(2, 0, b"k", b"v"), 2),
        ("offsets that fall", encode_record(1, 0, None, b"v") + PLAIN, 2),
        ("a negative offset delta", encode_record(-1, 0, b"k", b"v"), 1),
        ("bytes after the last record", PLAIN + b"\0", 1),
        ("an empty payload", b"", 1),
        ("garbage", b"\xff" * 40, 1),
        ("a record of a negative length", write_varint(-9) + PLAIN, 1),
        ("a record longer than its batch", write_varint(99) + PLAIN[1:], 1),
        ("an empty record", ZERO, 1),
        ("a key beyond its record", body(ZERO, ZERO, write_varint(9), b"k", NULL, ZERO), 1),
        ("a key of length -2", body(ZERO, ZERO, write_varint(-2), NULL, ZERO), 1),
        ("a value of length -2", body(ZERO, ZERO, NULL, write_varint(-2), ZERO), 1),
        ("a value of 2^31 bytes", body(ZERO, ZERO, NULL, write_varint(2**31), ZERO), 1),
        ("a negative number of headers", body(ZERO, ZERO, NULL, NULL, NULL), 1),
        ("more headers than bytes", body(ZERO, ZERO, NULL, NULL, write_varint(2)), 1),
        ("a header without a name", body(ZERO, ZERO, NULL, NULL, ONE, NULL, NULL), 1),
        ("a name beyond its record", body(ZERO, ZERO, NULL, NULL, ONE, write_varint(9), NULL), 1),
        ("a name not in UTF-8", body(ZERO, ZERO, NULL, NULL, ONE, ONE, b"\xff", NULL), 1),
        ("a header of length -2", body(ZERO, ZERO, NULL, NULL, ONE, ZERO, write_varint(-2)), 1),
        ("bytes after the headers", body(ZERO, ZERO, NULL, NULL, ONE, ZERO, NULL, b"x"), 1),
        ("bytes after the value", body(ZERO, ZERO, NULL, NULL, ZERO, b"x"), 1),
        (
            "attributes that aiokafka takes for a longer number",
            body(ZERO, ZERO, NULL, NULL, ZERO, attributes=b"\x80"),
            1,
        ),
        ("an offset delta of six bytes", body(ZERO, overlong(0, 6), NULL, NULL, ZERO), 1),
        ("a key's length of six bytes", body(ZERO, ZERO, overlong(0, 6), NULL, ZERO), 1),
        ("a length of six bytes", overlong(6, 6) + PLAIN[1:], 1),
        ("a timestamp of eleven bytes", body(overlong(0, 11), ZERO, NULL, NULL, ZERO), 1),
        ("a timestamp beyond 64 bits", encode_record(0, MAX_INT64, None, None), 1),
    ],
)
def test_records_that_lie_are_refused(claim: str, payload: bytes, count: int) -> None:
    assert fault(payload, count), claim


def test_a_time_before_all_that_64_bits_hold_is_refused() -> None:
    assert "timestamp" in fault(encode_record(0, MIN_INT64, None, None), first=-2)


@pytest.mark.parametrize(
    "payload",
    [
        body(overlong(0, 10), overlong(0, 5), overlong(0, 5), overlong(0, 5), overlong(0, 5)),
        body(ZERO, ZERO, NULL, NULL, ZERO, attributes=b"\x7f"),
        overlong(len(PLAIN) - 1, 5) + PLAIN[1:],
    ],
    ids=["long numbers", "attributes", "a long length"],
)
def test_what_readers_take_is_taken(payload: bytes) -> None:
    assert scanned(payload, 1).index == 1


def test_very_many_headers_are_read_in_pieces() -> None:
    """One record may have all the headers of a megabyte: they count as records do."""
    count = COPIED_BYTES
    payload = body(ZERO, ZERO, NULL, NULL, write_varint(count), (ZERO + NULL) * count)
    scan, pieces = RecordScan(payload, 1, 0, 0), 1
    while not scan.scan(1000):
        pieces += 1
    assert pieces > count / 1000
