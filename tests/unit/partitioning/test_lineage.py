"""Lineage of partitions: its laws, for random counts and hashes (KIP-253)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.partitioning.hashing import partition_of
from tidelog.partitioning.lineage import (
    KeyMove,
    ancestors_of,
    first_child_of,
    level_of,
    moves_of_keys,
    nearest_ancestor,
    parent_of,
    share_of,
)

initials = st.integers(1, 9)
hashes = st.integers(0, 2**31 - 1)


@st.composite
def counts(draw: st.DrawFn, several: int) -> tuple[int, ...]:
    """An initial count, then counts that are not below it."""
    initial = draw(initials)
    return (initial, *(initial + draw(st.integers(0, 70)) for _ in range(several)))


@pytest.mark.parametrize(
    ("partition", "initial", "parents"),
    [
        (0, 4, []),
        (3, 4, []),
        (4, 4, [0]),
        (7, 4, [3]),
        (8, 4, [0]),
        (12, 4, [4, 0]),
        (15, 4, [7, 3]),
        (13, 3, [1]),
        (11, 3, [5, 2]),
    ],
)
def test_the_parents_of_known_partitions(partition: int, initial: int, parents: list[int]) -> None:
    assert list(ancestors_of(partition, initial)) == parents
    assert parent_of(partition, initial) == (parents[0] if parents else None)


@given(counts(1), hashes)
def test_a_hash_has_one_home_at_each_count(drawn: tuple[int, ...], key_hash: int) -> None:
    initial, count = drawn
    level = level_of(initial, count)
    # The residue classes of all partitions cover each hash once.
    homes = [
        partition
        for partition in range(count)
        if key_hash
        % (2 * level if share_of(partition, initial, count) < Fraction(1, level) else level)
        == partition
    ]
    assert homes == [partition_of(key_hash, initial, count)]


@given(counts(2), hashes)
def test_a_key_moves_only_as_the_resize_says(drawn: tuple[int, ...], key_hash: int) -> None:
    initial, before, after = drawn
    source = partition_of(key_hash, initial, before)
    target = partition_of(key_hash, initial, after)
    moves = {(move.source, move.target) for move in moves_of_keys(initial, before, after)}
    if source != target:
        assert (source, target) in moves
        # Never between two partitions that both counts have.
        assert min(before, after) <= max(source, target) < max(before, after)
        assert min(source, target) < min(before, after)
    assert partition_of(key_hash, initial, initial) in {
        target,
        *ancestors_of(target, initial),
    }


@given(counts(2))
def test_the_shares_of_a_resize_add_up(drawn: tuple[int, ...]) -> None:
    initial, before, after = drawn
    moves = moves_of_keys(initial, before, after)
    assert len(moves) == abs(after - before)
    for partition in range(max(before, after)):
        had = share_of(partition, initial, before) if partition < before else Fraction(0)
        has = share_of(partition, initial, after) if partition < after else Fraction(0)
        gained = sum(move.share for move in moves if move.target == partition)
        lost = sum(move.share for move in moves if move.source == partition)
        assert had + gained - lost == has
    assert sum(share_of(each, initial, after) for each in range(after)) == 1


def test_a_growth_back_undoes_a_shrink() -> None:
    for move, back in zip(moves_of_keys(4, 16, 5), moves_of_keys(4, 5, 16), strict=True):
        assert (move.source, move.target, move.share) == (back.target, back.source, back.share)
    assert moves_of_keys(4, 4, 6) == (
        KeyMove(0, 4, Fraction(1, 8)),
        KeyMove(1, 5, Fraction(1, 8)),
    )
    assert moves_of_keys(4, 4, 4) == ()


@pytest.mark.parametrize("initial", [1, 2, 3, 5])
def test_the_first_child_is_the_lowest_partition_with_that_parent(initial: int) -> None:
    for partition in range(4 * initial):
        children = (each for each in range(20 * initial) if parent_of(each, initial) == partition)
        assert first_child_of(partition, initial) == next(children)


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="a topic of 4 partitions cannot have 3"):
        moves_of_keys(4, 4, 3)
    with pytest.raises(ValueError, match="partition 2 is below the count of 4 partitions"):
        nearest_ancestor(2, 4, 4)
    with pytest.raises(ValueError, match="partition 4 is not below the count of 4 partitions"):
        share_of(4, 4, 4)
