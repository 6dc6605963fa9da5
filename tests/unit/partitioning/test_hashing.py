"""Hashes and partitions of keys, held against stock clients and against their own laws."""

from __future__ import annotations

import random

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from tidelog.partitioning.hashing import hash_of_key, hashes_of_keys, murmur2, partition_of


@given(st.binary(max_size=64))
def test_murmur2_is_that_of_stock_clients(key: bytes) -> None:
    assert murmur2(key) == murmur2_of_kafka_python(key) & 0xFFFFFFFF
    assert murmur2(key) == murmur2_of_aiokafka(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        # Values that Kafka's own test of its hash states.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_of_known_keys(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert hash_of_key(key) == signed & 0x7FFFFFFF  # as Kafka's toPositive


@given(
    st.lists(st.binary(max_size=13), max_size=60),
    st.integers(0, 40).flatmap(
        lambda length: st.lists(st.binary(min_size=length, max_size=length), max_size=60)
    ),
)
def test_many_keys_have_the_hashes_of_each(mixed: list[bytes], alike: list[bytes]) -> None:
    for keys in (mixed, alike, [*mixed, *alike]):
        assert hashes_of_keys(keys) == [hash_of_key(key) for key in keys]


@pytest.mark.parametrize("byte", [b"\x00", b"\xff", b"\x80"])
def test_no_lane_reaches_into_the_next(byte: bytes) -> None:
    """More keys than one integer holds, and a remainder that is hashed one by one."""
    for length in range(10):
        keys = [byte * length] * 4_099
        assert hashes_of_keys(keys) == [hash_of_key(keys[0])] * len(keys)


@given(st.integers(0, 2**31 - 1), st.integers(1, 40), st.integers(0, 6))
def test_at_powers_of_two_it_is_the_remainder(key_hash: int, initial: int, doublings: int) -> None:
    count = initial << doublings
    assert partition_of(key_hash, initial, count) == key_hash % count


@given(st.integers(0, 2**31 - 1), st.integers(1, 12), st.integers(0, 60))
def test_growing_by_one_moves_keys_from_the_parent_only(
    key_hash: int, initial: int, more: int
) -> None:
    count = initial + more
    before = partition_of(key_hash, initial, count)
    after = partition_of(key_hash, initial, count + 1)
    assert 0 <= before < count
    level = initial << ((count // initial).bit_length() - 1)
    parent = count - level
    assert after == before or (after == count and before == parent)


def test_every_partition_gets_keys() -> None:
    chance = random.Random(4)
    for initial, count in [(1, 7), (3, 8), (4, 4), (5, 31)]:
        found = {
            partition_of(hash_of_key(chance.randbytes(8)), initial, count) for _ in range(4000)
        }
        assert found == set(range(count))


@pytest.mark.parametrize(("initial", "count"), [(0, 1), (4, 3), (-1, 2)])
def test_impossible_counts_are_refused(initial: int, count: int) -> None:
    with pytest.raises(ValueError):
        partition_of(5, initial, count)
