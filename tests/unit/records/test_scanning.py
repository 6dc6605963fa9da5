"""The keys of a payload, read some at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.batch import HEADER_SIZE
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.record import CorruptRecords
from tidelog.records.scanning import KeyReader

KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=200)), min_size=1, max_size=30)


def payload(keys: list[bytes | None]) -> bytes:
    return build_batch([NewRecord(1, key, b"value") for key in keys])[HEADER_SIZE:]


@given(KEYS, st.integers(1, 7))
def test_every_key_is_read_once(keys: list[bytes | None], at_once: int) -> None:
    reader, found = KeyReader(memoryview(payload(keys)), len(keys)), []
    while not reader.is_over:
        found += reader.read(at_once)
    assert found == [key for key in keys if key is not None]


@given(KEYS, st.integers(0, 10_000), st.integers(0, 255))
def test_damage_is_found_or_read_within_the_payload(
    keys: list[bytes | None], at: int, byte: int
) -> None:
    damaged = bytearray(payload(keys))
    damaged[at % len(damaged)] = byte
    for content in (bytes(damaged), bytes(damaged[: at % len(damaged)])):
        reader = KeyReader(content, len(keys))
        try:
            found = reader.read(len(keys))
        except CorruptRecords:
            continue
        assert sum(map(len, found)) <= len(content)


def test_more_records_than_there_are() -> None:
    with pytest.raises(CorruptRecords):
        KeyReader(payload([b"k"]), 2).read(2)
