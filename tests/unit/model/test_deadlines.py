"""Deadlines: never too late, and bounded however often they move."""

from __future__ import annotations

import random

from tidelog.model.deadlines import Deadlines


def test_earliest_first_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next_ms is None
    deadlines.set("b", 20)
    deadlines.set("a", 10)
    deadlines.set("c", 30)
    assert deadlines.next_ms == 10
    assert deadlines.due(9) == []
    assert deadlines.due(20) == ["a", "b"]
    assert deadlines.due(20) == []
    assert deadlines.next_ms == 30


def test_moving_later_and_earlier() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 50)
    assert deadlines.due(49) == []
    assert deadlines.due(50) == ["a"]
    deadlines.set("a", 50)
    deadlines.set("a", 5)
    assert deadlines.next_ms == 5
    assert deadlines.due(5) == ["a"]
    assert deadlines.due(100) == []
    deadlines.set("a", 50)
    deadlines.drop("a")
    deadlines.drop("a")
    assert deadlines.next_ms is None
    assert deadlines.due(100) == []


def test_against_a_plain_dictionary() -> None:
    seed = 20261121
    source = random.Random(seed)
    deadlines: Deadlines[int] = Deadlines()
    plain: dict[int, int] = {}
    now = 0
    for step in range(20_000):
        name = source.randrange(20)
        roll = source.random()
        if roll < 0.6:
            at = now + source.randrange(200)
            deadlines.set(name, at)
            plain[name] = at
        elif roll < 0.7:
            deadlines.drop(name)
            plain.pop(name, None)
        else:
            now += source.randrange(30)
            expected = sorted((at, name) for name, at in plain.items() if at <= now)
            found = deadlines.due(now)
            assert sorted(found) == sorted(name for _, name in expected), (seed, step)
            assert [plain[name] for name in found] == [at for at, _ in expected], (seed, step)
            for name in found:
                del plain[name]
        if plain:
            assert deadlines.next_ms is not None, (seed, step)
            assert deadlines.next_ms <= min(plain.values()), (seed, step)
        assert len(deadlines._heap) <= 2 * 20 + 65, (seed, step)
