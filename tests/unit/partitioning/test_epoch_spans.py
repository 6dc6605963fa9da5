"""What the fences of a topic say of records: their resize epoch, and the count of their home."""

from __future__ import annotations

import pytest

from tidelog.partitioning.epoch_spans import EpochSpan, counts_in_force, spans_of
from tidelog.partitioning.gates import Fence


def fences(*places: tuple[int, int]) -> list[Fence]:
    return [Fence(epoch, offset, offset) for epoch, offset in places]


@pytest.mark.parametrize(
    ("placed", "begin", "end", "spans"),
    [
        ([], 0, 10, [(0, 0, 10)]),
        ([], 10, 10, []),
        ([(1, 4), (2, 7)], 0, 10, [(0, 0, 4), (1, 4, 7), (2, 7, 10)]),
        # The first record of a child is its birth fence.
        ([(1, 0)], 0, 3, [(1, 0, 3)]),
        # Retention removed the epochs below 5; a fence above the end is of a later resize.
        ([(1, 4), (2, 5), (3, 20)], 5, 10, [(2, 5, 10)]),
        ([(1, 4), (2, 9)], 6, 8, [(1, 6, 8)]),
        # Two resizes without a record in between.
        ([(1, 4), (2, 5)], 0, 6, [(0, 0, 4), (1, 4, 5), (2, 5, 6)]),
    ],
)
def test_spans_of_a_log(
    placed: list[tuple[int, int]], begin: int, end: int, spans: list[tuple[int, int, int]]
) -> None:
    assert list(spans_of(fences(*placed), begin, end)) == [EpochSpan(*span) for span in spans]


@pytest.mark.parametrize(
    ("by_epoch", "births", "expected"),
    [
        ({}, (), {0: (4,)}),
        ({1: 8, 2: 6}, (1,), {0: (4,), 1: (8,), 2: (6,)}),
        # A growth whose children are listed was not undone; one without any may have been.
        ({1: 8, 2: 4}, (1,), {0: (4,), 1: (8,), 2: (4,)}),
        ({1: 8, 2: 4}, (), {0: (4,), 1: (4, 8), 2: (4,)}),
        # A shrink that was undone moves no key of a survivor.
        ({1: 8, 2: 6, 3: 8}, (1,), {0: (4,), 1: (8,), 2: (6,), 3: (8,)}),
        # The same count again: the order of keys begins with that epoch.
        ({1: 8, 2: 8, 3: 4}, (1,), {0: (), 1: (), 2: (8,), 3: (4,)}),
        # A growth that was undone before any fence of it was written is no such epoch.
        ({2: 4}, (), {0: (4,), 2: (4,)}),
        ({1: 2}, (), {0: (4,), 1: ()}),
    ],
)
def test_counts_by_which_keys_may_lie(
    by_epoch: dict[int, int], births: tuple[int, ...], expected: dict[int, tuple[int, ...]]
) -> None:
    assert counts_in_force(4, by_epoch, births) == expected
