"""The two indexes: their bytes, their look-ups, what is no index."""

from __future__ import annotations

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.storage.segments.index import OffsetIndex, TimeIndex
from tidelog.storage.segments.stored_entries import Read

RISING = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30, unique=True).map(sorted)


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
    assert found is not None and len(found) == len(index)
    assert [found.fields(at) for at in range(len(found))] == [
        index.fields(at) for at in range(len(index))
    ]
    for at, number in enumerate(numbers):
        assert found.position_for(base + number) == at * 7
    assert found.position_for(base - 1) == 0
    at = min(1, len(numbers) - 1)
    assert found.entry_before(7) == (7 * at, base + numbers[at])
    assert found.entry_before(-1) == (0, -1)


@given(RISING, st.integers(0, 2**40), st.integers(0, 31))
def test_the_bytes_of_a_time_index(numbers: list[int], base: int, split: int) -> None:
    index = TimeIndex(base)
    for at, number in enumerate(numbers):
        index.add(2**41 + number, base + at)
        index.add(2**41 + number, base + at)  # no change
    _, content = index.unwritten()
    expected = [struct.pack(">qi", 2**41 + n, at) for at, n in enumerate(numbers)]
    assert content == b"".join(expected)
    index.written = min(split, len(numbers))
    assert index.unwritten() == (12 * index.written, content[12 * index.written :])
    found = TimeIndex.parse(base, content)
    assert found is not None and len(found) == len(index)
    assert [found.fields(at) for at in range(len(found))] == [
        index.fields(at) for at in range(len(index))
    ]
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


def test_truncation_drops_later_entries() -> None:
    index, times = OffsetIndex(10), TimeIndex(10)
    for at in range(5):
        index.add(10 + at, at * 100)
        times.add(1000 + at, 10 + at)
    index.written = times.written = 5
    index.truncate(200)
    assert (list(index.second), index.written) == ([0, 100], 2)
    times.truncate(13)
    assert (times.last(), times.written) == ((1002, 12), 3)


@given(st.integers(0), st.integers(0, 1500), st.integers(0, 600))
def test_a_stored_index_with_added_entries_answers_as_one_in_memory(
    seed: int, stored: int, added: int
) -> None:
    """Look-ups, in any order, before and after a cut."""
    random = Random(seed)
    offsets = sorted(random.sample(range(100_000), stored + added))
    positions = sorted(random.sample(range(10**6), stored + added))
    plain, times = OffsetIndex(7), TimeIndex(7)
    for at in range(stored):
        plain.add(offsets[at] + 7, positions[at])
        times.add(offsets[at] * 3, offsets[at] + 7)
    files = plain.unwritten()[1], times.unwritten()[1]
    mixed = OffsetIndex(7, reader(files[0]), stored), TimeIndex(7, reader(files[1]), stored)
    for at in range(stored, stored + added):
        for index in (plain, mixed[0]):
            index.add(offsets[at] + 7, positions[at])
        for each in (times, mixed[1]):
            each.add(offsets[at] * 3, offsets[at] + 7)
    for cut in (None, random.randrange(10**6)):
        if cut is not None:
            plain.truncate(cut)
            mixed[0].truncate(cut)
            times.truncate(cut // 10)
            mixed[1].truncate(cut // 10)
            assert mixed[0].written <= len(mixed[0])
        assert (len(plain), len(times)) == (len(mixed[0]), len(mixed[1]))
        for _ in range(30):
            offset, position = random.randrange(-5, 100_100), random.randrange(-5, 10**6)
            if offsets and random.random() < 0.5:
                offset, position = random.choice(offsets), random.choice(positions)
            assert plain.entry_for(offset + 7) == mixed[0].entry_for(offset + 7)
            assert plain.position_for(offset + 7) == mixed[0].position_for(offset + 7)
            assert plain.entry_before(position) == mixed[0].entry_before(position)
            assert times.entry_below(offset * 3) == mixed[1].entry_below(offset * 3)
            assert times.entry_before(offset + 7) == mixed[1].entry_before(offset + 7)
        assert times.last() == mixed[1].last()
        assert plain.last_position() == mixed[0].last_position()


def reader(content: bytes) -> Read:
    return lambda position, size: content[position : position + size]


def test_a_look_up_reads_little_of_a_full_index() -> None:
    count = 262_144
    content = b"".join(struct.pack(">ii", at * 40, at * 4100) for at in range(count))
    reads: list[int] = []

    def read(position: int, size: int) -> bytes:
        reads.append(size)
        return content[position : position + size]

    index = OffsetIndex(0, read, count)
    assert len(index) == count and not reads
    assert index.position_for(40 * 100_000 + 3) == 4100 * 100_000
    assert len(reads) <= 11 and sum(reads) <= 2200
    for at in range(100_000, 100_090):
        assert index.entry_before(at * 4100 + 1) == (at * 4100, at * 40)
    assert len(reads) <= 11 + 12, "the next look-up finds the leaf that was read"
