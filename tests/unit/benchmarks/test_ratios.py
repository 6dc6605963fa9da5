"""The arithmetic of `make bench AGAINST=COMMIT`: intervals of ratios and their verdicts."""

from __future__ import annotations

import itertools
import os
import random
import signal
from contextlib import ExitStack

import pytest
from benchmarks.against import ALL_ROWS, chosen_rows
from benchmarks.ending import end_on_sigterm
from benchmarks.measuring import Metric
from benchmarks.ratios import Compared, Interval, Verdict, cut_off, interval, table, verdict

CPU = Metric("broker CPU, x", "s", "less")
LATENCY = Metric("latency", "ms", "less")
RATE = Metric("x", "1/s", "more")


@pytest.mark.parametrize(
    ("rounds", "cut"),
    # Critical values of Wilcoxon's signed-rank test, two-sided 10 %; tables print them less one.
    [
        (1, 0),
        (4, 0),
        (5, 1),
        (6, 3),
        (7, 4),
        (8, 6),
        (9, 9),
        (10, 11),
        (12, 18),
        (15, 31),
        (20, 61),
    ],
)
def test_as_many_averages_are_cut_off_as_the_exact_distribution_allows(
    rounds: int, cut: int
) -> None:
    assert cut_off(rounds) == cut


@pytest.mark.parametrize("rounds", [5, 6, 7])
def test_the_distribution_is_that_of_all_signs(rounds: int) -> None:
    sums = [
        sum(rank for rank, taken in enumerate(signs, 1) if taken)
        for signs in itertools.product((False, True), repeat=rounds)
    ]
    cut = cut_off(rounds)
    assert sum(x < cut for x in sums) / len(sums) <= 0.05 < sum(x <= cut for x in sums) / len(sums)


def test_equal_ratios_have_an_interval_of_no_width() -> None:
    found = interval([1.25] * 9)
    assert found.low == pytest.approx(found.middle) == pytest.approx(found.high) == 1.25


def test_one_wild_round_of_nine_moves_no_end_far() -> None:
    found = interval([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.01, 0.99, 40.0])
    assert 0.98 <= found.low <= found.middle <= found.high <= 1.0201


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(7)
    held = 0
    for _ in range(1000):
        found = interval([1.1 * 2 ** chance.gauss(0, 0.05) for _ in range(9)])
        held += found.low <= 1.1 <= found.high
    assert 870 <= held <= 940


def test_an_inverse_ratio_has_the_inverse_interval() -> None:
    ratios = [1.1, 0.9, 1.3, 1.0, 1.2]
    found, other = interval(ratios), interval([1 / ratio for ratio in ratios])
    assert found.low == pytest.approx(1 / other.high)
    assert found.middle == pytest.approx(1 / other.middle)


@pytest.mark.parametrize(
    ("metric", "low", "high", "expected"),
    [
        (CPU, 1.031, 1.2, Verdict.WORSE),
        (CPU, 1.029, 1.2, Verdict.UNSURE),
        (CPU, 0.98, 1.02, Verdict.SAME),
        (CPU, 0.8, 0.97, Verdict.BETTER),
        (LATENCY, 1.04, 1.2, Verdict.UNSURE),
        (LATENCY, 1.051, 1.2, Verdict.WORSE),
        (LATENCY, 0.8, 0.95, Verdict.BETTER),
        (RATE, 0.80, 0.949, Verdict.WORSE),
        (RATE, 0.80, 0.96, Verdict.UNSURE),
        (RATE, 0.96, 1.04, Verdict.SAME),
        (RATE, 1.06, 1.2, Verdict.BETTER),
    ],
)
def test_verdicts(metric: Metric, low: float, high: float, expected: Verdict) -> None:
    assert verdict(metric, Interval((low + high) / 2, low, high)) is expected


def test_fewer_than_five_rounds_decide_nothing() -> None:
    assert Compared(CPU, [1.0] * 4, [2.0] * 4).verdict is Verdict.NONE
    assert Compared(CPU, [1.0] * 5, [2.0] * 5).verdict is Verdict.WORSE


def test_a_row_says_both_medians_and_its_verdict() -> None:
    worse = Compared(CPU, [1.0, 2.0, 1.0, 1.0, 1.0], [1.1, 2.2, 1.1, 1.1, 1.1])
    nothing = Compared(RATE, [0.0], [0.0])
    assert (worse.verdict, nothing.verdict) == (Verdict.WORSE, Verdict.NONE)
    lines = table([worse, nothing], "02f3bcb", "this checkout").splitlines()
    assert lines[0].startswith("| work | unit | 02f3bcb | this checkout |")
    assert lines[2] == (
        "| broker CPU, x | s | 1 | 1.1 | 1.100 (1.100 to 1.100) | ≤ 1.03 | **worse** |"
    )
    assert lines[3] == "| x | 1/s | 0 | 0 | - | ≥ 0.95 | - |"


@pytest.mark.parametrize("words", [None, "start", "Java, latency"])
def test_rows_are_chosen_by_words_of_their_titles(words: str | None) -> None:
    found = [row.title for row in chosen_rows(words)]
    if words is None:
        assert found == [row.title for row in ALL_ROWS]
    else:
        wanted = [word.strip().lower() for word in words.split(",")]
        assert found and all(any(word in title.lower() for word in wanted) for title in found)


def test_unknown_rows_are_refused_with_the_names_of_all() -> None:
    with pytest.raises(SystemExit, match="no row is called like nothing; there are: Java producer"):
        chosen_rows("nothing")


def test_sigterm_ends_the_servers_that_run() -> None:
    before, stopped = signal.getsignal(signal.SIGTERM), list[str]()
    try:
        end_on_sigterm()
        with pytest.raises(SystemExit) as ended, ExitStack() as running:
            running.callback(stopped.append, "the node")
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == ["the node"]
    assert ended.value.code == 128 + signal.SIGTERM
