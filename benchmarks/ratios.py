"""How two versions compare: a ratio per round, its exact 90 % interval, and what that says.

The interval is that of Wilcoxon's signed-rank test, turned around: the logarithms of the rounds'
ratios, their Walsh averages (the mean of each pair, and of each with itself) in order, and as many
of them cut off at both ends as the test's exact distribution allows. It asks nothing of the noise
but that it is as often above as below. Starts nothing and knows no row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.measuring import Metric, number

CONFIDENCE = 0.9
CPU_BOUND = 1.03
"""A CPU row may cost so much more; the others may be worse by ``OTHER_BOUND``."""

OTHER_BOUND = 1.05
LEAST_ROUNDS = 5
"""Fewer decide nothing: the whole spread of their ratios is no interval of 90 %."""


class Verdict(Enum):
    """What the interval of a row says of the new version."""

    WORSE = "**worse**"
    BETTER = "better"
    SAME = "same"
    UNSURE = "not worse"
    NONE = "-"


@dataclass(frozen=True)
class Interval:
    """The middle of the ratios and its 90 % interval."""

    middle: float
    low: float
    high: float


def cut_off(rounds: int, confidence: float = CONFIDENCE) -> int:
    """Return how many Walsh averages are cut off at each end: the largest count that leaves
    ``confidence``; 0 when that cannot be reached."""
    # How many subsets of the ranks 1..n have each sum.
    ways = [1]
    for rank in range(1, rounds + 1):
        longer = ways + [0] * rank
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    tail = (1 - confidence) / 2 * 2**rounds
    seen = 0
    for total, count in enumerate(ways):
        seen += count
        if seen > tail:
            return total
    return 0


def interval(ratios: Sequence[float]) -> Interval:
    """Return the interval of positive ratios, one per round."""
    logs = [math.log(ratio) for ratio in ratios]
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs)))
    cut = cut_off(len(logs))
    low, high = walsh[cut], walsh[-1 - cut]
    return Interval(math.exp(statistics.median(walsh)), math.exp(low), math.exp(high))


def bound_of(metric: Metric) -> float:
    """Return by which factor a row may be worse."""
    return CPU_BOUND if "CPU" in metric.name else OTHER_BOUND


def verdict(metric: Metric, found: Interval) -> Verdict:
    """Return what the ratio new / old of a metric says."""
    bound = bound_of(metric)
    low, high = found.low, found.high
    if metric.better == "more":
        low, high = 1 / high, 1 / low
    if low > bound:
        return Verdict.WORSE
    if high < 1 / bound:
        return Verdict.BETTER
    return Verdict.SAME if 1 / bound <= low and high <= bound else Verdict.UNSURE


@dataclass
class Compared:
    """One row of the table: the values of both versions by round."""

    metric: Metric
    old: list[float]
    new: list[float]

    @property
    def interval(self) -> Interval | None:
        """The interval of new / old; None where a value is 0 and there is no ratio."""
        pairs = list(zip(self.old, self.new, strict=True))
        if not pairs or any(a <= 0 or b <= 0 for a, b in pairs):
            return None
        return interval([b / a for a, b in pairs])

    @property
    def verdict(self) -> Verdict:
        found = self.interval
        if found is None or len(self.old) < LEAST_ROUNDS:
            return Verdict.NONE
        return verdict(self.metric, found)


def table(rows: Sequence[Compared], old: str, new: str) -> str:
    """Return the table in Markdown."""
    lines = [
        f"| work | unit | {old} | {new} | ratio (90 %) | may be | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row.interval
        ratio = "-"
        if found is not None:
            ratio = f"{found.middle:.3f} ({found.low:.3f} to {found.high:.3f})"
        bound = bound_of(row.metric)
        may = f"≤ {bound:.2f}" if row.metric.better == "less" else f"≥ {1 / bound:.2f}"
        lines.append(
            f"| {row.metric.name} | {row.metric.unit} | {number(statistics.median(row.old))} "
            f"| {number(statistics.median(row.new))} | {ratio} | {may} | {row.verdict.value} |"
        )
    return "\n".join(lines)
