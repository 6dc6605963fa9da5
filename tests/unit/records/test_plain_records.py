"""The fast pass over plain records takes what the plain reference takes, and nothing else."""

from __future__ import annotations

import random

import pytest

from tests.support.drawn_seed import drawn_seed
from tests.support.strict_records import Taken, Untaken, strict_records
from tidelog.records.batch import HEADER_SIZE, NO_TIMESTAMP
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.record import CorruptRecords, encode_record
from tidelog.records.record_scan import COPIED_BYTES, RecordScan

NOW_MS = 1_700_000_000_000
BATCHES = 1500
SIZES = (0, 1, 5, 20, 63, 64, 100, 8191, 8192)


def _records(dice: random.Random) -> list[NewRecord]:
    """Records with rows of one layout among others: lengths, times, nulls and headers vary."""
    records: list[NewRecord] = []
    count = dice.choice((1, 2, 5, 9, 30, 70, 150, 300))
    step, habit = dice.choice((0, 0, 0, 1, 40)), dice.random()
    time = dice.choice((NOW_MS, NOW_MS, 0, NO_TIMESTAMP))
    sizes = dice.sample(SIZES[:-3], 2)
    while len(records) < count:
        key: bytes | None = dice.randbytes(dice.choice(sizes))
        value: bytes | None = dice.randbytes(dice.choice(sizes))
        headers: list[tuple[str, bytes | None]] = []
        if dice.random() < 0.2 * habit:
            key = dice.choice((None, b"", dice.randbytes(dice.choice(SIZES))))
        if dice.random() < 0.2 * habit:
            value = dice.choice((None, b"", dice.randbytes(dice.choice(SIZES))))
        if dice.random() < 0.1 * habit:
            headers = [("name", dice.choice((None, b"", b"content")))] * dice.randrange(1, 4)
        if dice.random() < 0.1 * habit:
            time = dice.choice((NOW_MS + dice.randrange(-90, 90), NO_TIMESTAMP, 2 * NOW_MS))
        for _ in range(dice.choice((1, 1, 12, 60))):
            time += step
            same = key if key is None else dice.randbytes(len(key))
            records.append(NewRecord(time, same, value, headers))
    return records[:count]


def _changed(dice: random.Random, payload: bytes, count: int) -> tuple[bytes, int]:
    """The payload with at most two bytes changed, or cut, or longer, or said to have others."""
    changed = bytearray(payload)
    for _ in range(dice.randrange(3)):
        at = dice.randrange(len(changed))
        changed[at] = dice.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, changed[at] ^ 1, changed[at] ^ 2))
    end = dice.random()
    if end < 0.05:
        del changed[dice.randrange(len(changed)) :]
    elif end < 0.1:
        changed += bytes(dice.randrange(1, 9))
    elif end < 0.15:
        count = max(0, count + dice.choice((-1, 1)))
    return bytes(changed), count


def _scanned(payload: bytes, count: int, first: int, most: int, step: int) -> Taken | None:
    scan = RecordScan(payload, count, first, most)
    try:
        while not scan.scan(step):
            pass
    except CorruptRecords:
        return None
    return Taken(scan.missing, scan.newest, scan.oldest)


def _taken(payload: bytes, count: int, first: int, most: int) -> Taken | None:
    try:
        taken = strict_records(payload, count, first)
    except Untaken:
        return None
    return taken._replace(missing=taken.missing[:most])


def test_drawn_batches_are_taken_as_the_reference_takes_them() -> None:
    """Decision 0088: whatever their layout, one or two wrong bytes, and the steps of the scan."""
    dice = random.Random(drawn_seed())
    refused = 0
    for _ in range(BATCHES):
        records = _records(dice)
        payload, count = build_batch(records)[HEADER_SIZE:], len(records)
        if dice.random() < 0.7:
            payload, count = _changed(dice, payload, count)
        first, most = records[0].timestamp, dice.choice((0, 3, 1000))
        expected = _taken(payload, count, first, most)
        refused += expected is None
        step = dice.choice((1, 7, 64, 1 << 30))
        assert _scanned(payload, count, first, most, step) == expected, (count, step, most)
    assert BATCHES // 10 < refused < BATCHES * 9 // 10, "of both kinds"


def _rows(count: int) -> bytes:
    return b"".join(encode_record(index, 5, b"key", b"v" * 40) for index in range(count))


@pytest.mark.parametrize("index", [0, 1, 7, 8, 63, 64, 90, 127, 128, 199])
def test_each_byte_of_a_row_is_compared(index: int) -> None:
    """One wrong bit anywhere in a record of a long row: as the reference has it."""
    count = 200
    payload = _rows(count)
    start, length = len(_rows(index)), len(_rows(index + 1)) - len(_rows(index))
    assert _scanned(payload, count, NOW_MS, 0, count) == _taken(payload, count, NOW_MS, 0)
    for at in range(start, start + length):
        for bit in range(8):
            wrong = bytearray(payload)
            wrong[at] ^= 1 << bit
            expected = _taken(bytes(wrong), count, NOW_MS, 0)
            assert _scanned(bytes(wrong), count, NOW_MS, 0, count) == expected, (at - start, bit)


@pytest.mark.parametrize("index", [2, 20])
def test_each_byte_of_a_record_with_a_longer_value_is_compared(index: int) -> None:
    """A length of two bytes may be below that of null, too; read alone, and in a row."""
    count, value = 30, b"v" * 100
    records = [encode_record(each, 5, b"key", value) for each in range(count)]
    start = len(records[0]) * index
    payload = b"".join(records)
    assert _scanned(payload, count, NOW_MS, 0, count) is not None
    for at in range(start, start + len(records[index])):
        for bit in range(8):
            wrong = bytearray(payload)
            wrong[at] ^= 1 << bit
            expected = _taken(bytes(wrong), count, NOW_MS, 0)
            assert _scanned(bytes(wrong), count, NOW_MS, 0, count) == expected, (at - start, bit)


def test_more_records_than_the_two_bytes_of_an_offset_delta_hold() -> None:
    count = 9_000
    payload = _rows(count)
    assert _scanned(payload, count, NOW_MS, 0, 64) == _taken(payload, count, NOW_MS, 0)


def test_a_payload_that_is_not_copied() -> None:
    count = COPIED_BYTES // len(_rows(1)) + 1
    payload = _rows(count)
    assert len(payload) > COPIED_BYTES
    scan = RecordScan(memoryview(payload), count, NOW_MS, 0)
    while not scan.scan(1000):
        pass
    assert scan.newest == (NOW_MS + 5, 0)
