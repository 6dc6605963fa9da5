"""Batch headers and the checks of a client's batch, as tables."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from tests.support.storage_logs import NOW_MS, batch
from tidelog.model.configs.topic import TimestampType, TopicConfigs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAX_INT32,
    OUTSIDE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Rejected,
    assign,
    check_batch_in_transaction,
    check_client_batch,
    crc_is_right,
    pack_header,
    read_header,
    seal_batch,
    split,
    stamped_header,
    walk,
)
from tidelog.records.builder import NewRecord, Producer, build_batch, recompress
from tidelog.records.reader import read_batch

CONFIGS = TopicConfigs()
PAYLOAD = batch(3)[HEADER_SIZE:]


def made(**changes: int) -> bytes:
    """A batch of three records with some header fields changed, and the right CRC."""
    return seal_batch(
        read_header(batch(3, producer=Producer(5, 0, 0)))._replace(**changes), PAYLOAD
    )


def verdict(content: bytes, configs: TopicConfigs = CONFIGS) -> ErrorCode | None:
    found = split(content)
    if isinstance(found, Rejected):
        return found.error
    for header, view in found:
        refusal = check_client_batch(header, view, configs, NOW_MS)
        if refusal is not None:
            assert refusal.reason
            return refusal.error
    return None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"base_offset": 1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 2}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": MAX_INT32}, ErrorCode.INVALID_RECORD),
        ({"attributes": CONTROL_BIT}, ErrorCode.INVALID_RECORD),
        ({"attributes": DELETE_HORIZON_BIT}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": LOG_APPEND_TIME_BIT}, ErrorCode.INVALID_TIMESTAMP),
        ({"base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_epoch": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}, None),
        ({"max_timestamp": NOW_MS + 3_600_000}, None),
        ({"max_timestamp": NOW_MS + 3_600_001}, ErrorCode.INVALID_TIMESTAMP),
        ({"base_timestamp": NOW_MS + 3_600_001}, ErrorCode.INVALID_TIMESTAMP),
        ({"base_timestamp": 0}, None),
        ({"base_timestamp": -1, "max_timestamp": -1}, None),
    ],
)
def test_what_the_leader_accepts(changes: dict[str, int], expected: ErrorCode | None) -> None:
    assert verdict(made(**changes)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"attributes": TRANSACTIONAL_BIT}, None),
        ({"attributes": TRANSACTIONAL_BIT, "producer_id": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL_BIT, "producer_epoch": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL_BIT, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL_BIT | CONTROL_BIT}, ErrorCode.INVALID_RECORD),
        ({"attributes": CONTROL_BIT}, ErrorCode.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL_BIT | LOG_APPEND_TIME_BIT}, ErrorCode.INVALID_TIMESTAMP),
        ({"attributes": TRANSACTIONAL_BIT, "base_offset": 7}, ErrorCode.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL_BIT, "record_count": 4}, ErrorCode.INVALID_RECORD),
    ],
)
def test_what_the_leader_accepts_in_a_request_with_a_transactional_id(
    changes: dict[str, int], expected: ErrorCode | None
) -> None:
    content = made(**changes)
    header = read_header(content)
    refusal = check_batch_in_transaction(header, memoryview(content), CONFIGS, NOW_MS)
    assert (None if refusal is None else refusal.error) == expected
    without_id = check_client_batch(header, memoryview(content), CONFIGS, NOW_MS)
    is_in_transaction = changes.get("attributes") == TRANSACTIONAL_BIT
    if expected is None:
        assert without_id is (OUTSIDE if is_in_transaction else None)


def test_the_crc_of_a_batch_in_a_transaction_covers_its_attributes() -> None:
    header = read_header(made())
    content = pack_header(header._replace(attributes=TRANSACTIONAL_BIT)) + PAYLOAD
    refusal = check_batch_in_transaction(read_header(content), memoryview(content), CONFIGS, NOW_MS)
    assert refusal is not None and refusal.error is ErrorCode.CORRUPT_MESSAGE


def test_timestamps_have_an_earliest_too() -> None:
    configs = replace(CONFIGS, message_timestamp_before_max_ms=1000)
    assert verdict(made(base_timestamp=NOW_MS - 1000), configs) is None
    assert verdict(made(base_timestamp=NOW_MS - 1001), configs) is ErrorCode.INVALID_TIMESTAMP
    stamped = replace(configs, message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert verdict(made(base_timestamp=5), stamped) is None, "the broker's time replaces it"


def test_a_batch_may_be_as_large_as_max_message_bytes() -> None:
    content = made()
    assert verdict(content, replace(CONFIGS, max_message_bytes=len(content))) is None
    smaller = replace(CONFIGS, max_message_bytes=len(content) - 1)
    assert verdict(content, smaller) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"short", ErrorCode.CORRUPT_MESSAGE),
        (made()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (made() + b"x", ErrorCode.CORRUPT_MESSAGE),
        (made() + made()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (made() + made(), None),
        (bytes(16) + b"\0" + bytes(20), ErrorCode.INVALID_RECORD),  # a message set of 0.9
        (bytes(16) + b"\1" + bytes(100), ErrorCode.INVALID_RECORD),
        (bytes(16) + b"\3" + bytes(100), ErrorCode.CORRUPT_MESSAGE),
        (bytes(8) + b"\xff\xff\xff\xff" + made()[12:], ErrorCode.CORRUPT_MESSAGE),
        (bytes(8) + b"\0\0\0\0" + made()[12:], ErrorCode.CORRUPT_MESSAGE),
        (bytes(8) + b"\x7f\xff\xff\xff" + made()[12:], ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_bytes_that_are_batches_or_not(content: bytes, expected: ErrorCode | None) -> None:
    assert verdict(content) == expected


def test_every_flipped_bit_is_refused_or_harmless() -> None:
    content = made()
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            found = verdict(bytes(flipped))
            # Base offset is checked; the leader epoch is the server's to assign.
            assert (found is None) == (12 <= position < 16), position


def test_a_header_is_what_its_fields_say() -> None:
    content = build_batch(
        [NewRecord(10, b"k", b"v"), NewRecord(5, None, None)],
        producer=Producer(77, 3, MAX_INT32),
        base_offset=1000,
        leader_epoch=4,
    )
    header = read_header(content)
    assert (header.size, header.last_offset, header.next_offset) == (len(content), 1001, 1002)
    assert (header.base_timestamp, header.max_timestamp, header.leader_epoch) == (10, 10, 4)
    assert (header.base_sequence, header.last_sequence) == (MAX_INT32, 0), "it wraps"
    assert struct.unpack_from(">b", content, 16) == (2,)
    assert crc_is_right(content, header.crc)
    assert pack_header(header) == content[:HEADER_SIZE]


def test_assigning_offset_and_epoch_keeps_the_crc() -> None:
    content = bytearray(made())
    assign(content, 12345, 6)
    header = read_header(content)
    assert (header.base_offset, header.leader_epoch) == (12345, 6)
    assert crc_is_right(content, header.crc)
    assert [record.offset for record in read_batch(content)] == [12345, 12346, 12347]


def test_append_time_stands_for_all_records() -> None:
    content = made()
    header = stamped_header(read_header(content), content, NOW_MS + 9)
    stamped = pack_header(header) + content[HEADER_SIZE:]
    assert crc_is_right(stamped, read_header(stamped).crc)
    assert {record.timestamp for record in read_batch(stamped)} == {NOW_MS + 9}


def test_recompressing_moves_the_records_as_a_block() -> None:
    content = made()
    for codec in (1, 2, 3, 4, 0):
        content = recompress(read_header(content), content, codec)
        header = read_header(content)
        assert header.codec == codec and crc_is_right(content, header.crc)
        assert (header.producer_id, header.record_count) == (5, 3)
    assert content == made()


def test_walking_stops_at_the_first_incomplete_batch() -> None:
    content = made() + made() + made()[:-1]
    assert [position for position, _ in walk(content)] == [0, len(made())]
    noise = random.Random(4).randbytes(300)
    assert list(walk(noise)) == []


def test_the_header_is_a_plain_tuple_of_the_struct() -> None:
    assert BatchHeader._fields[7:9] == ("base_timestamp", "max_timestamp")
    with pytest.raises(struct.error):
        read_header(bytes(60))
