"""The brokers of new partitions: turns, racks, and brokers that are not fit."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tidelog.model.racks import within
from tidelog.planning.placement import place, place_on
from tidelog.planning.plan import span, widest


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


def test_replicas_are_on_different_machines_within_as_many_racks_as_can_be() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        count = chance.randrange(1, 12)
        racks = {b: f"{chance.choice('abc')}/{chance.choice('mno')}" for b in range(count)}
        factor = chance.randrange(1, min(5, count) + 1)
        for replicas in place(racks, 40, factor, chance.randrange(500)):
            assert span(replicas, racks) == widest(replicas, racks, racks)
            machines = {racks[broker] for broker in replicas}
            assert len(machines) == min(factor, len(set(racks.values())))


@pytest.mark.parametrize("rack", [None, "a"])
def test_three_machines_of_eight_have_one_replica_each_and_an_even_load(rack: str | None) -> None:
    racks = {100 * m + w: within(rack, f"m{m}") for m in (1, 2, 3) for w in range(8)}
    placed = place(racks, 24 * 23, 3, start=5)
    assert all(len({broker // 100 for broker in replicas}) == 3 for replicas in placed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {23}
    hosted = Counter(broker for replicas in placed for broker in replicas)
    assert max(hosted.values()) - min(hosted.values()) <= 8
