"""Running a scenario over a fixed number of seeds, or until one fails.

Owns the loops and the counts that are printed. What is covered is the same on every machine: time
is only a limit, and one that fails. `TIDELOG_SEED` sets the first seed (default 0); random
first seeds are ``soak``'s.
`python -m tests.simulation.seeds SCENARIO FIRST STEP SEEDS SECONDS` is one of several workers.
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


class TooSlow(Exception):
    """The seeds did not all run within their limit: nothing is known of those that are left."""


def run_seeds(
    scenario: str, seeds: int, limit_s: float, *, first: int = FIRST_SEED, step: int = 1
) -> dict[str, int]:
    """Run so many seeds, one after another; a violated promise raises with all a replay needs.

    Returns the sums of what happened, so that a test can assert that it was not idle. TooSlow when
    they take longer than ``limit_s``.
    """
    began = time.monotonic()
    totals: dict[str, int] = {"seeds": 0}
    for seed in range(first, first + seeds * step, step):
        took = time.monotonic() - began
        if took > limit_s:
            raise TooSlow(f"{totals['seeds']} of {seeds} seeds of {scenario} took {took:.0f} s")
        result = SCENARIOS[scenario](seed)
        if result.violations:
            raise AssertionError(result.report())
        for what, count in result.counts.items():
            totals[what] = totals.get(what, 0) + count
        totals["seeds"] += 1
    ran.append(f"simulation: scenario {scenario}, {seeds} seeds from {first} on: {totals}")
    return totals


def run_in_workers(
    scenario: str, seeds: int, limit_s: float, workers: int = 2, *, first: int = FIRST_SEED
) -> dict[str, int]:
    """Do as ``run_seeds`` in several processes, which share out the seeds."""
    started = [
        subprocess.Popen(
            [
                sys.executable, "-m", __name__, scenario, str(first + number), str(workers),
                str(len(range(number, seeds, workers))), str(limit_s),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(workers)
    ]  # fmt: skip
    # The deadline only ends a hang: the last seed of a busy machine takes minutes.
    ended = [(worker, *worker.communicate(timeout=limit_s + 900)) for worker in started]
    # A report comes before what Python warned of, so that its first lines are read first.
    failures = [output + errors for worker, output, errors in ended if worker.returncode]
    if failures:
        raise AssertionError("\n".join(failures))
    totals: dict[str, int] = {}
    for _, output, _ in ended:
        for what, count in json.loads(output.splitlines()[-1]).items():
            totals[what] = totals.get(what, 0) + count
    ran.append(f"simulation: scenario {scenario}, {seeds} seeds from {first} on: {totals}")
    return totals


def _work(scenario: str, first: int, step: int, seeds: int, limit_s: float) -> int:
    logging.disable(logging.CRITICAL)
    try:
        totals = run_seeds(scenario, seeds, limit_s, first=first, step=step)
    except (AssertionError, TooSlow) as error:
        print(error)
        return 1
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
    sys.exit(
        _work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    )
