"""Running a scenario over many seeds: within a time, or until one fails.

Owns the loop and the count that is printed. `TIDELOG_SEED` sets the first seed (0 unless told).
`python -m tests.simulation.seeds SCENARIO FIRST STEP SECONDS` is one of several workers.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time

from tests.simulation.scenarios import SCENARIOS, Result

FIRST_SEED = int(os.environ.get("TIDELOG_SEED", "0"))

ran: list[str] = []
"""A line for each scenario that ran; printed when all tests are done."""


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
    ran.append(f"simulation: scenario {scenario}, seeds {FIRST_SEED} to {seed - 1}: {totals}")
    return totals


def run_in_workers(scenario: str, seconds: float, workers: int = 2) -> dict[str, int]:
    """Run seeds in several processes for so long; a violated promise raises as in `run_for`."""
    started = [
        subprocess.Popen(
            [
                sys.executable, "-m", __name__, scenario,
                str(FIRST_SEED + number), str(workers), str(seconds),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(workers)
    ]  # fmt: skip
    # The deadline only ends a hang: the last seed of a busy machine takes minutes.
    ended = [(worker, *worker.communicate(timeout=seconds * 4 + 900)) for worker in started]
    failures = [errors for worker, _, errors in ended if worker.returncode]
    if failures:
        raise AssertionError("\n".join(failures))
    totals: dict[str, int] = {}
    for _, output, _ in ended:
        for what, count in json.loads(output.splitlines()[-1]).items():
            totals[what] = totals.get(what, 0) + count
    ran.append(f"simulation: scenario {scenario}, from seed {FIRST_SEED} on: {totals}")
    return totals


def _work(scenario: str, first: int, step: int, seconds: float) -> int:
    logging.disable(logging.CRITICAL)
    end = time.monotonic() + seconds
    totals = {"seeds": 0}
    seed = first
    while not totals["seeds"] or time.monotonic() < end:
        result = SCENARIOS[scenario](seed)
        if result.violations:
            print(result.report(), file=sys.stderr)
            return 1
        for what, count in result.counts.items():
            totals[what] = totals.get(what, 0) + count
        totals["seeds"] += 1
        seed += step
    print(json.dumps(totals))
    return 0


def first_failure(scenario: str, seeds: int, *findings: str) -> Result | None:
    """Return the first of so many runs with a violation that contains one of ``findings``."""
    for seed in range(seeds):
        result = SCENARIOS[scenario](seed)
        if any(finding in line for line in result.violations for finding in findings):
            return result
    return None


if __name__ == "__main__":
    sys.exit(_work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
