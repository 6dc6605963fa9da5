"""The bytes of ``__transaction_state``: Kafka's, in both versions of the value."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.drawn_seed import drawn_seed
from tests.support.drawn_transactions import drawn_transaction
from tidelog.model.topics import TopicPartition
from tidelog.transactions.records import (
    TransactionRecord,
    UnreadableRecord,
    decode,
    encode,
    encode_value,
)
from tidelog.transactions.state import Transaction, TransactionState

EMPTY = Transaction(7, 0, 60_000, TransactionState.EMPTY, (), 1_000)
PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 5), TopicPartition("uv", 1))
ONGOING = Transaction(7, 3, 60_000, TransactionState.ONGOING, PARTITIONS, 1_002, 1_001)
FULL = replace(
    ONGOING,
    state=TransactionState.PREPARE_COMMIT,
    previous_producer_id=6,
    next_producer_id=8,
    client_version=2,
    next_producer_epoch=4,
)
DONE = Transaction(7, 3, 60_000, TransactionState.COMPLETE_ABORT, (), 1_003, 1_001)

KEY = "0000 0002 6964"

# Version, value; written out by hand from Kafka's record schemas.
GOLDEN = [
    (1, EMPTY, "0001 0000000000000007 0000 0000ea60 00 00 00000000000003e8 ffffffffffffffff 00"),
    (
        1,
        ONGOING,
        "0001 0000000000000007 0003 0000ea60 01"
        "03 02 74 03 00000000 00000005 00  03 7576 02 00000001 00"
        "00000000000003ea 00000000000003e9 00",
    ),
    (
        1,
        FULL,
        "0001 0000000000000007 0003 0000ea60 02"
        "03 02 74 03 00000000 00000005 00  03 7576 02 00000001 00"
        "00000000000003ea 00000000000003e9"
        "04  00 08 0000000000000006  01 08 0000000000000008  02 02 0002  03 02 0004",
    ),
    (1, DONE, "0001 0000000000000007 0003 0000ea60 05 01 00000000000003eb 00000000000003e9 00"),
    (0, EMPTY, "0000 0000000000000007 0000 0000ea60 00 ffffffff 00000000000003e8 ffffffffffffffff"),
    (
        0,
        ONGOING,
        "0000 0000000000000007 0003 0000ea60 01"
        "00000002 0001 74 00000002 00000000 00000005  0002 7576 00000001 00000001"
        "00000000000003ea 00000000000003e9",
    ),
    (0, DONE, "0000 0000000000000007 0003 0000ea60 05 00000000 00000000000003eb 00000000000003e9"),
]


@pytest.mark.parametrize(("version", "value", "text"), GOLDEN)
def test_golden_bytes(version: int, value: Transaction, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_value(value, version) == data
    assert decode(bytes.fromhex(KEY), data) == TransactionRecord("id", value)


def test_records_are_written_in_version_1() -> None:
    key, value = encode(TransactionRecord("id", ONGOING))
    assert (key, value) == (bytes.fromhex(KEY), encode_value(ONGOING, 1))


def test_a_null_value_removes_the_id() -> None:
    assert encode(TransactionRecord("id", None)) == (bytes.fromhex(KEY), None)
    assert decode(bytes.fromhex(KEY), None) == TransactionRecord("id", None)


def test_random_transactions_come_back() -> None:
    rng = random.Random(drawn_seed())
    for _ in range(500):
        record = TransactionRecord(f"id-{rng.random()}", drawn_transaction(rng))
        assert decode(*encode(record)) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("0001 0002 6964", "0001"),
        (KEY, "0002 00"),
        (KEY, "ffff 00"),
        # The state PrepareEpochFence (7) is never written, by Kafka either.
        (KEY, "0000 0000000000000007 0000 0000ea60 07 ffffffff 0000000000000000 0000000000000000"),
    ],
)
def test_what_newer_code_wrote_is_unknown(key: str, value: str) -> None:
    assert isinstance(decode(bytes.fromhex(key), bytes.fromhex(value)), UnreadableRecord)


def test_an_unknown_record_names_its_id_where_the_key_has_one() -> None:
    unknown = decode(bytes.fromhex(KEY), b"\0\2")
    assert isinstance(unknown, UnreadableRecord)
    assert (unknown.transactional_id, unknown.reason) == ("id", "value version 2")
    nameless = decode(b"\0\1", b"\0\2")
    assert isinstance(nameless, UnreadableRecord)
    assert (nameless.transactional_id, nameless.reason) == (None, "key version 1")


@pytest.mark.parametrize("version", [0, 1])
def test_damaged_bytes_are_never_more_than_unknown(version: int) -> None:
    key, value = bytes.fromhex(KEY), encode_value(ONGOING, version)
    for end in range(len(value)):
        assert isinstance(decode(key, value[:end]), UnreadableRecord)
    for end in range(len(key)):
        assert isinstance(decode(key[:end], value), UnreadableRecord)
    rng = random.Random(drawn_seed())
    for _ in range(3_000):
        flipped = bytearray(value)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        decode(key, bytes(flipped))


def test_a_huge_count_ends_at_once() -> None:
    head = "0001 0000000000000007 0003 0000ea60 01"
    for count in ("ffffffff0f", "ffffffffff", "ffffffffffffffff7f", "80808080"):
        assert isinstance(decode(bytes.fromhex(KEY), bytes.fromhex(head + count)), UnreadableRecord)
    many_tags = "0001 0000000000000007 0000 0000ea60 00 00" + "00" * 16 + "ffff03"
    assert isinstance(decode(bytes.fromhex(KEY), bytes.fromhex(many_tags)), UnreadableRecord)


def test_unknown_tags_are_skipped() -> None:
    value = encode_value(EMPTY)[:-1] + bytes.fromhex("01 7f 03 616263")
    assert decode(bytes.fromhex(KEY), value) == TransactionRecord("id", EMPTY)


def test_states_have_the_names_of_kafkas_tools() -> None:
    assert [state.spoken for state in TransactionState] == [
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort"),
        *("CompleteCommit", "CompleteAbort", "Dead"),
    ]
