"""The brokers of new partitions: turns, racks, and brokers that are not fit."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tidelog.planning.placement import place, place_on


def test_placement_takes_turns() -> None:
    placed = place({1: None, 2: None, 3: None}, 6, 2, start=0)
    assert placed == [[1, 2], [2, 3], [3, 1], [1, 3], [2, 1], [3, 2]]
    assert place({5: None}, 3, 1, start=2) == [[5], [5], [5]]


@pytest.mark.parametrize(
    ("fit", "factor", "expected"),
    [
        # Enough are fit: no other broker gets a replica.
        ({1, 2, 3}, 3, [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]]),
        ({1, 3}, 2, [[1, 3], [3, 1], [1, 3], [3, 1]]),
        ({2}, 1, [[2], [2], [2], [2]]),
        # Too few: all of them have each partition, and the others take turns for the rest.
        ({3}, 2, [[3, 1], [2, 3], [3, 1], [2, 3]]),
        ({1, 3}, 3, [[1, 3, 2], [3, 2, 1], [2, 1, 3], [1, 3, 2]]),
        # No broker is fit: as if all were.
        (set(), 2, [[1, 2], [2, 3], [3, 1], [1, 3]]),
    ],
)
def test_placement_prefers_fit_brokers(
    fit: set[int], factor: int, expected: list[list[int]]
) -> None:
    assert place_on({1: None, 2: None, 3: None}, fit, 4, factor, start=0) == expected


def test_placement_is_even_and_spreads_over_racks() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(100):
        count = chance.randrange(1, 10)
        racks = {broker: chance.choice("abc") for broker in range(count)}
        factor = chance.randrange(1, min(3, count) + 1)
        partitions = count * count
        placed = place(racks, partitions, factor, chance.randrange(100))
        leaders = Counter(replicas[0] for replicas in placed)
        assert set(leaders.values()) == {count}
        for replicas in placed:
            assert len(set(replicas)) == factor
            spread = len({racks[broker] for broker in replicas})
            assert spread == min(factor, len(set(racks.values())))
