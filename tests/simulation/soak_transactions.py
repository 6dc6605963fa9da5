"""`make soak TRANSACTIONS=300`: pinned seeds of transactions under faults, and their planted bugs.

Owns the runs in workers and the table that is printed. What one run is: see
``scenarios/transactions``.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from collections.abc import Sequence

from tests.simulation import promises, soak_resizes
from tests.simulation.planted.search import survivors
from tests.simulation.planted.transactions import PLANTED
from tests.simulation.scenarios.transactions import TransactionsRun

COLUMNS = (
    "seeds",
    "transactions committed",
    "transactions aborted",
    "transactions unknown",
    "committed reads",
    "elections",
    "faults",
    "with findings",
)


def soak(seeds: Sequence[int], workers: int) -> int:
    """Run the seeds, then the planted bugs; print it all; return how much failed."""
    totals: Counter[str] = Counter()
    spawning = multiprocessing.get_context("spawn")
    with spawning.Pool(workers, maxtasksperchild=10) as pool:
        try:
            for ran, report in pool.imap_unordered(_run, seeds):
                totals.update({name: ran.counts.get(name, 0) for name in COLUMNS})
                totals.update({"seeds": 1, "with findings": int(bool(ran.findings))})
                if report:
                    print(report, file=sys.stderr, flush=True)
                said = f"FOUND {promises.first_of(ran.findings)}" if ran.findings else "good"
                print(f"seed {ran.seed}: {said}, {ran.seconds:.1f} s", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            pool.terminate()
    print(", ".join(f"{totals[name]:,} {name}" for name in COLUMNS), flush=True)
    return totals["with findings"] + survivors(PLANTED, TransactionsRun)


def _run(seed: int) -> tuple[soak_resizes.Ran, str]:
    return soak_resizes.run("transactions", seed)
