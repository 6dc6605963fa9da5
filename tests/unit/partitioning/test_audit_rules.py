"""The rules of audits: each takes one value or a column, and says the same of both."""

from __future__ import annotations

import numpy as np
import pytest

from tidelog.partitioning.audit_rules import Remembered, TopicCounts, home_in
from tidelog.partitioning.hashing import partition_of

HASHES = range(2_000)


@pytest.mark.parametrize("initial", [1, 2, 3, 4])
@pytest.mark.parametrize("count", range(4, 17))
def test_a_hash_is_away_where_linear_hashing_does_not_put_it(initial: int, count: int) -> None:
    for partition in range(count + 2):
        home = home_in(partition, [(initial, count)])
        away = [partition_of(each, initial, count) != partition for each in HASHES]
        assert [home.is_away(each) for each in HASHES] == away
        if partition < count:
            column = home.is_away(np.array(HASHES, np.uint32))
            assert column.tolist() == away


def test_a_hash_is_at_home_where_one_of_several_counts_puts_it() -> None:
    counts = TopicCounts(2, {0: (2,), 1: (3, 4), 2: ()})
    for partition in range(5):
        home = counts.home_in(partition, 1)
        assert home is not None
        for each in HASHES:
            assert home.is_away(each) == (partition not in set(counts.homes_of(each, 1)))
    # No order was promised in epoch 2, and nothing is known of epoch 3.
    assert counts.home_in(0, 2) is counts.home_in(0, 3) is None


@pytest.mark.parametrize(("least", "most"), [(1, 1), (4, 4), (2, 5)])
def test_kafkas_hash_has_a_home_at_each_count_before_resizes(least: int, most: int) -> None:
    for partition in range(most + 1):
        home = home_in(partition, ((count, count) for count in range(least, most + 1)))
        for each in HASHES:
            homes = {each % count for count in range(least, most + 1)}
            assert home.is_away(each) == (partition not in homes)


@pytest.mark.parametrize(
    ("value", "partition", "epoch", "is_back"),
    [
        (4, 1, 3, True),
        (5, 1, 3, False),
        (6, 1, 3, False),
        # A child, or a survivor, in a later epoch.
        (4, 2, 4, True),
        # Two partitions in one epoch have no order.
        (4, 2, 3, False),
    ],
)
def test_a_value_runs_backwards_in_the_order_of_its_key(
    value: int, partition: int, epoch: int, is_back: bool
) -> None:
    before, now = Remembered(5, 1, 3, 10), Remembered(value, partition, epoch, 11)
    assert now.is_back_from(before) is is_back
    columns = [Remembered(*(np.array([each]) for each in one)) for one in (before, now)]
    assert columns[1].is_back_from(columns[0]).tolist() == [is_back]
