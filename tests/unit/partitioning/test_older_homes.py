"""Where older values of a partition's keys may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.partitioning.hashing import partition_of
from tidelog.partitioning.older_homes import (
    ancestors_with_older_values,
    has_no_older_values,
    survives_retired,
)


def test_of_a_topic_that_grew_from_4_to_16() -> None:
    assert ancestors_with_older_values(13, 4, 2) == (5, 1)
    assert ancestors_with_older_values(5, 4, 1) == (1,)
    assert ancestors_with_older_values(1, 4, 0) == ()
    # It was created with the topic, whatever its number says.
    assert ancestors_with_older_values(5, 4, 0) == ()
    assert survives_retired(5, 4, [13])
    assert survives_retired(1, 4, [12, 13])
    assert not survives_retired(13, 4, [13])
    assert not survives_retired(0, 4, [])


def test_an_unknown_fence_says_no() -> None:
    assert not has_no_older_values(100, None)
    assert not has_no_older_values(9, 10)
    assert has_no_older_values(10, 10)


@given(
    key_hash=st.integers(0, 2**31 - 1),
    initial=st.integers(1, 6),
    counts=st.lists(st.integers(0, 60), min_size=2, max_size=6),
)
def test_all_homes_of_a_key_lie_on_one_line_of_descent(
    key_hash: int, initial: int, counts: list[int]
) -> None:
    homes = [partition_of(key_hash, initial, initial + more) for more in counts]
    last = homes[-1]
    for home in homes[:-1]:
        is_above = home in ancestors_with_older_values(last, initial, 1)
        assert home == last or is_above or survives_retired(last, initial, [home])
