"""`python -m tests.simulation.run --seed N`: every scenario with one seed, twice.

Owns the command of `make simulate SEED=N`. Exit status 0 when all promises hold and both runs of
each scenario have the same digest, 1 otherwise.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.simulation.scenarios import SCENARIOS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after another")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="only this one")
    parser.add_argument("--trace", action="store_true", help="print the last events even if good")
    options = parser.parse_args(arguments)
    if not options.trace:
        logging.disable(logging.CRITICAL)
    names = [options.scenario] if options.scenario else sorted(SCENARIOS)
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        for name in names:
            failed += not _run(name, seed, show=options.trace)
    return 1 if failed else 0


def _run(name: str, seed: int, *, show: bool) -> bool:
    began = time.monotonic()
    result = SCENARIOS[name](seed)
    good = not result.violations
    # Before the second run: that takes as long again, and may end with an error.
    if not good:
        print(result.report(), file=sys.stderr, flush=True)
    elif show:
        print(result.trace)
    again = SCENARIOS[name](seed)
    took = time.monotonic() - began
    if again.digest != result.digest:
        print(f"scenario {name}, seed {seed}: two runs differ, so it cannot be replayed")
        good = False
    counts = ", ".join(f"{value} {what}" for what, value in sorted(result.counts.items()))
    print(
        f"{name} seed {seed}: {'good' if good else 'FAILED'} {result.digest[:16]} "
        f"({took:.1f} s for two runs; {counts})"
    )
    return good


if __name__ == "__main__":
    sys.exit(main())
