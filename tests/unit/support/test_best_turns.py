"""The least that each turn of a piece of work took, of several runs."""

from __future__ import annotations

from tests.support.best_turns import BestTurns


def longest(*runs: list[float]) -> float:
    best = BestTurns()
    for costs_s in runs:
        best.add(costs_s)
    return best.longest_s


def test_a_turn_that_was_disturbed_in_one_run_counts_as_in_the_others() -> None:
    assert longest([1, 9, 2], [7, 1, 2], [1, 1, 8]) == 2


def test_a_turn_that_is_long_in_every_run_is_found() -> None:
    assert longest([1, 6, 2], [7, 5, 2], [1, 6, 8]) == 5


def test_runs_of_other_steps_are_not_mixed() -> None:
    assert longest([1, 6], [6, 1, 1]) == 6
    assert longest([1, 6], [6, 1, 1], [1, 4, 1]) == 1
