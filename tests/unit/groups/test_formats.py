"""The bytes of ``__consumer_offsets``, the placement of groups, and subscriptions."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from tests.support.group_driver import subscription
from tidelog.groups.consumer_protocol import subscribed_topics
from tidelog.groups.placement import java_hash, partition_for
from tidelog.groups.records import (
    CommittedOffset,
    FirstSight,
    FirstSightRecord,
    GroupRecord,
    OffsetRecord,
    Record,
    StoredGeneration,
    StoredMember,
    UnknownRecord,
    decode,
    encode,
)

OFFSET = OffsetRecord("g", "t", 3, CommittedOffset(42, 5, "m", 1_000))
OFFSET_WITH_EXPIRY = OffsetRecord("g", "t", 3, CommittedOffset(42, -1, "m", 1_000, 9_000))
GENERATION = GroupRecord(
    "g",
    StoredGeneration(
        "consumer",
        2,
        "range",
        "a-1",
        77,
        (
            StoredMember("a-1", "i", "a", "/h", 60_000, 10_000, b"sub", b"asg"),
            StoredMember("b-2", None, "b", "/h", 60_000, 10_000, b"", b""),
        ),
    ),
)
EMPTY_GENERATION = GroupRecord("g", StoredGeneration("consumer", 3, None, None, 88, ()))
SIGHT = FirstSightRecord("g", "t", FirstSight(UUID(int=9), 4, -1))

# Key, value; written out by hand from Kafka's record schemas.
GOLDEN: list[tuple[Record, str, str | None]] = [
    (
        OFFSET,
        "0001 0001 67 0001 74 00000003",
        "0003 000000000000002a 00000005 0001 6d 00000000000003e8",
    ),
    (
        OFFSET_WITH_EXPIRY,
        "0001 0001 67 0001 74 00000003",
        "0001 000000000000002a 0001 6d 00000000000003e8 0000000000002328",
    ),
    (OffsetRecord("g", "t", 3, None), "0001 0001 67 0001 74 00000003", None),
    (
        GENERATION,
        "0002 0001 67",
        "0003 0008 636f6e73756d6572 00000002 0005 72616e6765 0003 612d31 000000000000004d 00000002"
        "0003 612d31 0001 69 0001 61 0002 2f68 0000ea60 00002710 00000003 737562 00000003 617367"
        "0003 622d32 ffff 0001 62 0002 2f68 0000ea60 00002710 00000000 00000000",
    ),
    (
        EMPTY_GENERATION,
        "0002 0001 67",
        "0003 0008 636f6e73756d6572 00000003 ffff ffff 0000000000000058 00000000",
    ),
    (GroupRecord("g", None), "0002 0001 67", None),
    (
        SIGHT,
        "04e5 0001 67 0001 74",
        "0000 00000000000000000000000000000009 00000004 ffffffff",
    ),
    (FirstSightRecord("g", "t", None), "04e5 0001 67 0001 74", None),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "value"), GOLDEN)
def test_golden_bytes(record: Record, key: str, value: str | None) -> None:
    expected = (bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert encode(record) == expected
    assert decode(*expected) == record


# Values of older versions, as older brokers left them.
OLDER = [
    ("0000 0001 67 0001 74 00000003", "0000 0000000000000007 0000 0000000000000064",
     OffsetRecord("g", "t", 3, CommittedOffset(7, -1, "", 100))),
    ("0001 0001 67 0001 74 00000003", "0002 0000000000000007 0000 0000000000000064",
     OffsetRecord("g", "t", 3, CommittedOffset(7, -1, "", 100))),
    ("0002 0001 67", "0000 0001 63 00000001 0001 72 0001 6d 00000001"
     "0001 6d 0001 63 0001 68 00000bb8 00000000 00000000",
     GroupRecord("g", StoredGeneration("c", 1, "r", "m", -1, (
         StoredMember("m", None, "c", "h", 3_000, 3_000, b"", b""),)))),
    ("0002 0001 67", "0001 0001 63 00000001 0001 72 0001 6d 00000001"
     "0001 6d 0001 63 0001 68 00001388 00000bb8 00000000 00000000",
     GroupRecord("g", StoredGeneration("c", 1, "r", "m", -1, (
         StoredMember("m", None, "c", "h", 5_000, 3_000, b"", b""),)))),
    ("0002 0001 67", "0002 0001 63 00000001 0001 72 0001 6d 0000000000000009 00000000",
     GroupRecord("g", StoredGeneration("c", 1, "r", "m", 9, ()))),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "record"), OLDER)
def test_older_versions_are_read(key: str, value: str, record: Record) -> None:
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("0003 0001 67", "0000"),  # a group of the newer protocol
        ("0001 0001 67 0001 74 00000003", "0005 00"),
        ("0002 0001 67", "0004 00"),
        ("04e5 0001 67 0001 74", "0001"),
    ],
)
def test_newer_versions_are_skipped(key: str, value: str) -> None:
    assert isinstance(decode(bytes.fromhex(key), bytes.fromhex(value)), UnknownRecord)


# What Kafka 4.3's own class writes in version 4: without a topic id, with one, and with a tag that
# no version knows yet.
HEAD = "0004 000000000000002a 00000005 02 6d 00000000000003e8"
WITH_TOPIC_ID = HEAD + "01 00 10 00000000000000000000000000000009"


@pytest.mark.parametrize(
    ("value", "topic_id"),
    [
        (HEAD + "00", UUID(int=0)),
        (WITH_TOPIC_ID, UUID(int=9)),
        (HEAD + "02 00 10 00000000000000000000000000000009 07 01 ff", UUID(int=9)),
    ],
)
def test_version_4_of_an_offset_is_read_with_its_topic_id(value: str, topic_id: UUID) -> None:
    key = bytes.fromhex("0001 0001 67 0001 74 00000003")
    record = decode(key, bytes.fromhex(value))
    assert record == OFFSET
    assert isinstance(record, OffsetRecord) and record.value is not None
    assert record.value.topic_id == topic_id
    # What is written again is in a version that all brokers of the cluster read.
    assert encode(record) == encode(OFFSET)


def test_damaged_bytes_of_version_4_are_unknown() -> None:
    key, value = bytes.fromhex("0001 0001 67 0001 74 00000003"), bytes.fromhex(WITH_TOPIC_ID)
    for end in range(len(value)):
        assert isinstance(decode(key, value[:end]), UnknownRecord)
    no_metadata = bytes.fromhex("0004 000000000000002a 00000005 00 00000000000003e8 00")
    assert isinstance(decode(key, no_metadata), UnknownRecord)


@pytest.mark.parametrize("record", [OFFSET, OFFSET_WITH_EXPIRY, GENERATION, SIGHT])
def test_damaged_bytes_are_never_more_than_unknown(record: Record) -> None:
    key, value = encode(record)
    assert value is not None
    for end in range(len(value)):
        assert isinstance(decode(key, value[:end]), UnknownRecord)
    for end in range(len(key)):
        decode(key[:end], value)
    seed = 4711
    source = random.Random(seed)
    for _ in range(2_000):
        flipped = bytearray(value)
        flipped[source.randrange(len(flipped))] ^= 1 << source.randrange(8)
        decode(key, bytes(flipped))


def test_a_huge_count_ends_at_once() -> None:
    value = bytes.fromhex("0003 0001 63 00000001 0001 72 0001 6d 0000000000000009 7fffffff")
    assert isinstance(decode(bytes.fromhex("0002 0001 67"), value), UnknownRecord)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -(2**31)),  # the well-known string with the smallest hash
        ("\u00fcber", 7604755),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert 0 <= partition_for(text, 50) < 50


def test_placement() -> None:
    assert partition_for("hello", 50) == 99162322 % 50
    assert partition_for("polygenelubricants", 50) == 0


def test_subscriptions() -> None:
    assert subscribed_topics(subscription("a", "b")) == {"a", "b"}
    assert subscribed_topics(subscription()) == frozenset()
    for bad in (b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\5ab"):
        assert subscribed_topics(bad) is None
