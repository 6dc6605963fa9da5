"""Running a scenario over many seeds: within a time, or until one fails.

Owns the loop and the count that is printed. `TIDELOG_SEED` sets the first seed (0 unless told).
"""

from __future__ import annotations

import os
import time

from tests.simulation.scenarios import SCENARIOS, Result

FIRST_SEED = int(os.environ.get("TIDELOG_SEED", "0"))


def run_for(scenario: str, seconds: float, *, at_least: int = 1) -> dict[str, int]:
    """Run seed after seed for so long; a violated promise raises with all that a replay needs.

    Returns the sums of what happened, so that a test can assert that it was not idle.
    """
    end = time.monotonic() + seconds
    totals: dict[str, int] = {"seeds": 0}
    seed = FIRST_SEED
    while totals["seeds"] < at_least or time.monotonic() < end:
        result = SCENARIOS[scenario](seed)
        if result.violations:
            raise AssertionError(result.report())
        for what, count in result.counts.items():
            totals[what] = totals.get(what, 0) + count
        totals["seeds"] += 1
        seed += 1
    print(f"simulation: scenario {scenario}, seeds {FIRST_SEED} to {seed - 1}: {totals}")
    return totals


def first_failure(scenario: str, seeds: int, *findings: str) -> Result | None:
    """Return the first of so many runs with a violation that contains one of ``findings``."""
    for seed in range(seeds):
        result = SCENARIOS[scenario](seed)
        if any(finding in line for line in result.violations for finding in findings):
            return result
    return None
