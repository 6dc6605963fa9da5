"""Back-off: doubling, its bound, its jitter."""

from __future__ import annotations

import random

from tidelog.runtime.backoff import Backoff, steady


class NoRandom(random.Random):
    """Randomness that nothing may be drawn from."""

    def uniform(self, a: float, b: float) -> float:
        raise AssertionError("nothing is to be drawn")


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(50, 1000, NoRandom(), jitter=0)
    assert [backoff.pause_ms(n) for n in range(7)] == [50, 100, 200, 400, 800, 1000, 1000]
    assert backoff.pause_ms(1_000_000) == 1000
    assert backoff.pause_s(1) == 0.1


def test_without_a_bound_in_reach_the_doubling_ends() -> None:
    backoff = steady(1, 2**62)
    assert backoff.pause_ms(20) == backoff.pause_ms(10_000) == 2**20


def test_jitter_varies_a_pause_by_its_share_both_ways() -> None:
    backoff = Backoff(100, 1000, random.Random(7))
    pauses = [backoff.pause_ms(2) for _ in range(500)]
    assert all(320 <= pause <= 480 for pause in pauses)
    assert min(pauses) < 330 and max(pauses) > 470


def test_the_same_seed_gives_the_same_pauses() -> None:
    one, other = (Backoff(random=random.Random(3)) for _ in range(2))
    assert [one.pause_ms(n) for n in range(9)] == [other.pause_ms(n) for n in range(9)]
