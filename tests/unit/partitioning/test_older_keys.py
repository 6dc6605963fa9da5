"""Which partitions have keys in common under two counts, by all hashes one by one (KIP-253)."""

from __future__ import annotations

import itertools
from math import gcd, lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.partitioning.hashing import partition_of
from tidelog.partitioning.lineage import level_of, modulus_of
from tidelog.partitioning.older_keys import ALONE, ANY, OlderKeys

INITIALS = (1, 2, 3, 5)
MOST = 13


def homes(initial: int, count: int) -> list[int]:
    """Return the home of each hash: they repeat after this many."""
    return [partition_of(each, initial, count) for each in range(2 * level_of(initial, count))]


def pairs(initial: int, before: int, after: int) -> set[tuple[int, int]]:
    """Return each pair of partitions that some hash has as its homes, by all hashes."""
    old, new = homes(initial, before), homes(initial, after)
    every = range(lcm(len(old), len(new)))
    return {(old[each % len(old)], new[each % len(new)]) for each in every}


def have_keys_in_common(initial: int, before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Return the rule of ``older_keys``, of two partitions with their counts."""
    (one, count), (other, newer) = before, after
    moduli = modulus_of(one, initial, count), modulus_of(other, initial, newer)
    return (one - other) % gcd(*moduli) == 0


@pytest.mark.parametrize("initial", INITIALS)
def test_two_partitions_have_a_key_in_common_if_some_hash_has_both_homes(initial: int) -> None:
    for before, after in itertools.product(range(initial, initial + MOST), repeat=2):
        common = pairs(initial, before, after)
        for one, other in itertools.product(range(before), range(after)):
            found = have_keys_in_common(initial, (one, before), (other, after))
            assert found is ((one, other) in common), (initial, before, after, one, other)


@pytest.mark.parametrize("initial", INITIALS)
def test_a_partition_waits_for_all_older_batches_of_its_line_and_for_no_other(
    initial: int,
) -> None:
    """One older batch alone, of each partition and each count."""
    for before, after in itertools.product(range(initial, initial + MOST), repeat=2):
        common = pairs(initial, before, after)
        for one in range(before):
            keys = OlderKeys(initial, after)
            keys.add(one, modulus_of(one, initial, before))
            held = {other for other in range(after) if keys.holds(other)}
            assert held == {other for left, other in common if left == one} | ({one} & held)
            assert one >= after or one in held


@given(
    st.sampled_from(INITIALS),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 80)), max_size=6),
)
def test_older_batches_of_several_epochs_hold_up_what_each_alone_does(
    initial: int, more: int, older: list[tuple[int, int]]
) -> None:
    count = initial + more
    keys = OlderKeys(initial, count)
    batches = [(place % (initial + extra), initial + extra) for extra, place in older]
    for partition, before in batches:
        keys.add(partition, modulus_of(partition, initial, before))
    for other in range(count):
        alone = [have_keys_in_common(initial, each, (other, count)) for each in batches]
        same = [partition == other for partition, _ in batches]
        assert keys.holds(other) is any(alone + same)


def test_after_an_undo_a_partition_waits_for_itself_alone() -> None:
    for initial, count in itertools.product(INITIALS, range(1, 20)):
        if count < initial:
            continue
        for one in range(count):
            keys = OlderKeys(initial, count)
            keys.add(one, modulus_of(one, initial, count))
            assert [other for other in range(count) if keys.holds(other)] == [one]


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 4), (4, 6), (5, 5)])
def test_a_topic_that_was_created_again_with_another_count_waits_for_no_key_too_few(
    first: int, second: int
) -> None:
    for before, after in itertools.product(range(first, first + 9), range(second, second + 9)):
        old, new = homes(first, before), homes(second, after)
        common = {(old[n % len(old)], new[n % len(new)]) for n in range(lcm(len(old), len(new)))}
        for one in range(before):
            keys = OlderKeys(second, after)
            keys.add(one, modulus_of(one, first, before))
            held = {other for other in range(after) if keys.holds(other)}
            assert held - {one} == {other for left, other in common if left == one} - {one}
            assert gcd(len(old), len(new)) >= 1


def test_a_batch_whose_partition_was_named_holds_up_that_partition_alone() -> None:
    keys = OlderKeys(2, 8)
    keys.add(1, ALONE)
    assert [other for other in range(8) if keys.holds(other)] == [1]


def test_a_batch_that_may_have_any_key_holds_all_partitions_up() -> None:
    keys = OlderKeys(2, 7)
    keys.add(1, ANY)
    assert all(keys.holds(other) for other in range(7))


def test_in_a_topic_that_is_not_ordered_each_partition_waits_for_itself() -> None:
    keys = OlderKeys(None, 8)
    keys.add(1, modulus_of(1, 2, 2))
    assert [other for other in range(8) if keys.holds(other)] == [1]


def test_a_partition_has_a_modulus_at_counts_that_have_it_alone() -> None:
    with pytest.raises(ValueError, match="not below the count of 4"):
        modulus_of(4, 2, 4)
