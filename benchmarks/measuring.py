"""What a measurement is: samples by metric, ratios round by round, and their spread.

Starts nothing and knows no row: see `run.py` and the scripts beside it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One line of the result table.

    `goal` is the ratio tidelog / Apache Kafka of docs/design/speed.md: at least, where more is
    better, and at most, where less is. `limit` is a goal in the metric's own unit.
    """

    name: str
    unit: str
    better: Literal["more", "less"]
    goal: float | None = None
    limit: float | None = None


@dataclass
class Samples:
    """The values of one metric, by target, one per round."""

    metric: Metric
    by_target: dict[str, list[float]] = field(default_factory=dict)

    def add(self, target: str, value: float) -> None:
        self.by_target.setdefault(target, []).append(value)

    def ratios(self, ours: str, theirs: str) -> list[float]:
        """Ours over theirs, round by round; empty where one of them was not measured."""
        pairs = zip(self.by_target.get(ours, []), self.by_target.get(theirs, []), strict=False)
        return [a / b for a, b in pairs if b]

    def reached(self, ours: str, theirs: str) -> bool | None:
        """Whether the medians meet the goal; None where there is no goal or no value."""
        metric = self.metric
        if metric.limit is not None and self.by_target.get(ours):
            middle = statistics.median(self.by_target[ours])
            return middle <= metric.limit if metric.better == "less" else middle >= metric.limit
        ratios = self.ratios(ours, theirs)
        if metric.goal is None or not ratios:
            return None
        middle = statistics.median(ratios)
        return middle >= metric.goal if metric.better == "more" else middle <= metric.goal


def spread(values: list[float], digits: int = 3) -> str:
    """`median (least to most)`; a dash where there is no value."""
    if not values:
        return "-"
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{number(middle, digits)} ({number(least, digits)} to {number(most, digits)})"


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, thousands grouped."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:g}"


def table(samples: list[Samples], ours: str, theirs: str) -> str:
    """The result table in Markdown."""
    lines = [
        f"| work | unit | {theirs} | {ours} | ratio | to reach | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in samples:
        metric = each.metric
        sign = "≥" if metric.better == "more" else "≤"
        if metric.limit is not None:
            goal = f"{sign} {number(metric.limit)} {metric.unit}"
        else:
            goal = f"{sign} {number(metric.goal)} ×" if metric.goal is not None else "-"
        verdict = {True: "yes", False: "**no**", None: "-"}[each.reached(ours, theirs)]
        lines.append(
            f"| {metric.name} | {metric.unit} | {spread(each.by_target.get(theirs, []))} "
            f"| {spread(each.by_target.get(ours, []))} | {spread(each.ratios(ours, theirs))} "
            f"| {goal} | {verdict} |"
        )
    return "\n".join(lines)
