"""The steps of a copy of a log's segments: what comes next, whatever was copied before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.storage.future.steps import (
    Close,
    Copied,
    Copy,
    Part,
    RemoveSegment,
    Step,
    bytes_left,
    next_steps,
)

OLD, NEXT_ONE, ACTIVE = Part(0, 100), Part(10, 50), Part(20, 30, is_closed=False)


def test_the_oldest_segment_comes_first_and_is_closed_when_all_of_it_is_there() -> None:
    assert next_steps([OLD, ACTIVE], {}, 60) == [Copy(0, 0, 60, 100)]
    assert next_steps([OLD, ACTIVE], {0: Copied(60)}, 60) == [
        Copy(0, 60, 100, 100),
        Close(0, 100),
        Copy(20, 0, 20, 30),
    ]
    assert next_steps([OLD, ACTIVE], {0: Copied(100)}, 60) == [Close(0, 100), Copy(20, 0, 30, 30)]
    done = {0: Copied(100, is_closed=True), 20: Copied(30)}
    assert next_steps([OLD, ACTIVE], done, 60) == []


def test_what_the_log_has_no_longer_is_removed_first() -> None:
    copied = {0: Copied(100, is_closed=True), 10: Copied(5)}
    assert next_steps([ACTIVE], copied, 60) == [
        RemoveSegment(0),
        RemoveSegment(10),
        Copy(20, 0, 30, 30),
    ]


def test_a_segment_that_became_shorter_is_compared_from_its_first_byte() -> None:
    assert next_steps([Part(0, 80)], {0: Copied(100, is_closed=True)}, 60) == [Copy(0, 0, 60, 80)]


def test_a_segment_that_was_closed_since_is_closed_in_the_copy() -> None:
    assert next_steps([Part(20, 30), Part(25, 0, is_closed=False)], {20: Copied(30)}, 60) == [
        Close(20, 30)
    ]


def test_one_trip_has_so_many_steps() -> None:
    parts = [Part(at, 1) for at in range(100)]
    assert len(next_steps(parts, {}, 1_000, most=10)) == 10


sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6)


@given(sizes, st.dictionaries(st.integers(0, 7), st.integers(0, 50)), st.integers(1, 30))
def test_whatever_was_copied_before_all_is_there_in_the_end(
    lengths: list[int], before: dict[int, int], most: int
) -> None:
    parts = [Part(at, size, at < len(lengths) - 1) for at, size in enumerate(lengths)]
    copied = {base: Copied(size) for base, size in before.items()}
    trips = 0
    while steps := next_steps(parts, copied, most):
        assert sum(each.end - each.position for each in steps if isinstance(each, Copy)) <= most
        for step in steps:
            _do(step, copied)
        trips += 1
        # Each trip but the last copies as much as it may.
        assert trips <= sum(lengths) // most + 1
    assert bytes_left(parts, copied) == 0
    assert all(copied[p.base_offset] == Copied(p.size, True) for p in parts if p.is_closed)
    assert set(copied) <= {part.base_offset for part in parts}


def _do(step: Step, copied: dict[int, Copied]) -> None:
    if isinstance(step, RemoveSegment):
        del copied[step.base_offset]
    elif isinstance(step, Copy):
        have = copied.get(step.base_offset, Copied())
        assert step.position in (0, have.size)
        copied[step.base_offset] = Copied(step.end)
    else:
        assert copied.setdefault(step.base_offset, Copied()).size == step.size
        copied[step.base_offset].is_closed = True
