"""What a dry run says that a resize moves, and what would wait for what."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.resizing.preview import (
    GroupStanding,
    moves_of,
    percent,
    total_share,
    total_size,
    waits_of,
)


def test_a_child_takes_its_share_of_the_log_of_its_parent() -> None:
    moves = moves_of(4, 4, 16, {0: 1_000, 1: 400, 2: 0})
    assert [(x.source, x.target) for x in moves][:5] == [(0, 4), (1, 5), (2, 6), (3, 7), (0, 8)]
    assert {x.share for x in moves} == {Fraction(1, 16)}
    assert {x.share_of_source for x in moves} == {Fraction(1, 4)}
    assert [x.size for x in moves][:4] == [250, 100, 0, None]
    assert total_share(moves) == Fraction(3, 4)
    assert total_size(moves) is None, "the size of one log is not known"


def test_a_retired_partition_loses_all_its_keys_to_its_survivor() -> None:
    moves = moves_of(4, 8, 6, {6: 30, 7: 12})
    assert [(x.source, x.target, x.share_of_source) for x in moves] == [(6, 2, 1), (7, 3, 1)]
    assert total_size(moves) == 42
    assert total_share(moves) == Fraction(1, 4)


@pytest.mark.parametrize(
    ("initial", "before", "after"), [(-1, 4, 8), (4, 8, 8), (4, 8, 3), (4, 3, 8)]
)
def test_a_count_that_no_resize_can_have_moves_nothing(
    initial: int, before: int, after: int
) -> None:
    assert moves_of(initial, before, after, {}) == ()


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 60))
def test_no_parent_gives_more_than_it_has(initial: int, more: int, change: int) -> None:
    before, after = initial + more, initial + change
    sizes = dict.fromkeys(range(before), 1_000)
    moves = moves_of(initial, before, after, sizes)
    given_away: dict[int, Fraction] = {}
    for move in moves:
        given_away[move.source] = given_away.get(move.source, Fraction()) + move.share_of_source
    assert all(0 < each <= 1 for each in given_away.values())
    assert (total_size(moves) or 0) <= 1_000 * before
    assert total_share(moves) < 1 or not moves


def test_a_group_waits_for_what_it_has_not_read() -> None:
    moves = moves_of(2, 2, 4, {})
    done = GroupStanding("done", 9, 9, 0, "m")
    late = GroupStanding("late", 4, 9, 5, "m")
    fresh = GroupStanding("fresh", None, 9, None, None)
    waits = waits_of(moves, {0: [done, late], 1: [fresh]})
    assert [(x.partition, x.source, x.standing.group) for x in waits] == [
        (2, 0, "late"),
        (3, 1, "fresh"),
    ]


@pytest.mark.parametrize(
    ("share", "text"),
    [(Fraction(1, 2), "50 %"), (Fraction(1, 16), "6.25 %"), (Fraction(1, 96), "1.042 %")],
)
def test_shares_are_readable(share: Fraction, text: str) -> None:
    assert percent(share) == text
