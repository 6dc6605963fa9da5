"""`python -m tests.simulation.soak`: random, new seeds for some minutes, or pinned ones of a kind.

Owns the command of `make soak`: each scenario begins at a random seed, which is printed, so that
what it finds can be replayed. Not the pinned seeds: see ``soak_moves``, ``soak_resizes``
and ``soak_transactions``. Exit
status 1 when a promise is broken, or a planted bug survives.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import sys
import time

from tests.simulation import soak_moves, soak_resizes, soak_transactions
from tests.simulation.seeds import run_in_workers

HIGHEST_SEED = 10**9
SHARES = {"cluster": 0.7, "broker": 0.2, "log": 0.1}
"""Of the time; what is random in a cluster is of the widest kind. It has movers, too."""

AT_ONCE = {
    "cluster": 4,
    "broker": 20,
    "log": 40,
    "moves": 4,
    "resizes": 4,
    "autoscaling": 4,
    "transactions": 8,
}
"""Seeds of one round: some ten seconds to a minute."""

LIMIT_S = 1_800.0
"""Of one round; it only ends a hang."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, in all")
    parser.add_argument("--scenario", choices=sorted(AT_ONCE), help="only this one")
    parser.add_argument(
        "--movers",
        type=int,
        metavar="SEEDS",
        help="so many pinned seeds with a mover instead, then the planted bugs of moves",
    )
    parser.add_argument(
        "--resizes",
        type=int,
        metavar="SEEDS",
        help="so many pinned seeds of a topic that grows and shrinks, then their planted bugs",
    )
    parser.add_argument(
        "--transactions",
        type=int,
        metavar="SEEDS",
        help="so many pinned seeds of transactions",
    )
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--first", type=int, default=0, help="the first pinned seed")
    options = parser.parse_args(arguments)
    if options.movers is not None:
        logging.disable(logging.CRITICAL)
        return 1 if soak_moves.soak(options.movers, options.first) else 0
    if options.resizes is not None:
        logging.disable(logging.CRITICAL)
        seeds = range(options.first, options.first + options.resizes)
        return 1 if soak_resizes.soak(seeds, options.workers) else 0
    if options.transactions is not None:
        logging.disable(logging.CRITICAL)
        seeds = range(options.first, options.first + options.transactions)
        return 1 if soak_transactions.soak(seeds, options.workers) else 0
    return _random(options.minutes, [options.scenario] if options.scenario else list(SHARES))


def _random(minutes: float, names: list[str]) -> int:
    shares = sum(SHARES.get(name, 1.0) for name in names)
    broken = 0
    for name in names:
        end = time.monotonic() + minutes * 60 * SHARES.get(name, 1.0) / shares
        first = random.SystemRandom().randrange(HIGHEST_SEED)
        seeds = 0
        print(f"soak: scenario {name} begins at seed {first}", flush=True)
        while not seeds or time.monotonic() < end:
            try:
                run_in_workers(name, AT_ONCE[name], LIMIT_S, first=first + seeds)
            except AssertionError as error:
                print(error, file=sys.stderr, flush=True)
                broken += 1
            seeds += AT_ONCE[name]
        print(f"soak: scenario {name}, {seeds} seeds from {first} on", flush=True)
    print(f"{broken} rounds with a broken promise" if broken else "no promise was broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
