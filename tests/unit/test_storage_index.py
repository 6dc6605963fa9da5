"""The two indexes: their bytes, their look-ups, what is no index."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.storage.index import OffsetIndex, TimeIndex

RISING = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30, unique=True).map(sorted)


@settings(deadline=None)
@given(RISING, st.integers(0, 2**40), st.integers(0, 31))
def test_the_bytes_of_an_offset_index(numbers: list[int], base: int, split: int) -> None:
    index = OffsetIndex(base)
    for at, number in enumerate(numbers):
        index.add(base + number, at * 7)
    position, content = index.unwritten()
    assert position == 0
    assert content == b"".join(struct.pack(">ii", n, at * 7) for at, n in enumerate(numbers))
    index.written = min(split, len(numbers))
    assert index.unwritten() == (8 * index.written, content[8 * index.written :])
    found = OffsetIndex.parse(base, content, 10**9)
    assert found is not None and found.offsets == index.offsets
    for at, number in enumerate(numbers):
        assert found.position_for(base + number) == at * 7
    assert found.position_for(base - 1) == 0
    at = min(1, len(numbers) - 1)
    assert found.entry_before(7) == (7 * at, base + numbers[at])
    assert found.entry_before(-1) == (0, -1)


@settings(deadline=None)
@given(RISING, st.integers(0, 2**40), st.integers(0, 31))
def test_the_bytes_of_a_time_index(numbers: list[int], base: int, split: int) -> None:
    index = TimeIndex(base)
    for at, number in enumerate(numbers):
        index.add(2**41 + number, base + at)
        index.add(2**41 + number, base + at)  # no news
    _, content = index.unwritten()
    expected = [struct.pack(">qi", 2**41 + n, at) for at, n in enumerate(numbers)]
    assert content == b"".join(expected)
    index.written = min(split, len(numbers))
    assert index.unwritten() == (12 * index.written, content[12 * index.written :])
    found = TimeIndex.parse(base, content)
    assert found is not None and found.timestamps == index.timestamps
    assert found.last() == (2**41 + numbers[-1], base + len(numbers) - 1)
    for at, number in enumerate(numbers):
        below = None if not at else (2**41 + numbers[at - 1], base + at - 1)
        assert found.entry_below(2**41 + number) == below
        assert found.entry_before(base + at) == below
    assert found.entry_below(2**50) == found.entry_before(base + 2**30) == found.last()


@pytest.mark.parametrize(
    "content",
    [
        b"1234567",
        bytes(16),
        struct.pack(">iiii", 5, 0, 4, 9),
        struct.pack(">iiii", 4, 9, 5, 9),
        struct.pack(">ii", -1, 0),
        struct.pack(">ii", 1, 100),
    ],
)
def test_what_is_no_offset_index(content: bytes) -> None:
    assert OffsetIndex.parse(0, content, 100) is None


@pytest.mark.parametrize(
    "content",
    [
        b"1234567",
        bytes(24),
        struct.pack(">qiqi", 5, 0, 4, 9),
        struct.pack(">qiqi", 4, 9, 5, 8),
        struct.pack(">qi", 1, -1),
    ],
)
def test_what_is_no_time_index(content: bytes) -> None:
    assert TimeIndex.parse(0, content) is None


def test_truncation_drops_what_is_behind() -> None:
    index, times = OffsetIndex(10), TimeIndex(10)
    for at in range(5):
        index.add(10 + at, at * 100)
        times.add(1000 + at, 10 + at)
    index.written = times.written = 5
    index.truncate(200)
    assert (list(index.positions), index.written) == ([0, 100], 2)
    times.truncate(13)
    assert (times.last(), times.written) == ((1002, 12), 3)
