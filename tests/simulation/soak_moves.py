"""`make soak MOVERS=300`: pinned seeds with a mover, the planted bugs of moves, and their tables.

Owns the runs one after another, and the tables of docs/design/moving.md in Markdown. What one run
is: see ``scenarios/moves``; the planted bugs: ``planted/moves``.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter

from tests.simulation import promises
from tests.simulation.planted.moves import PLANTED
from tests.simulation.planted.search import survivors
from tests.simulation.scenarios.course import moving_course
from tests.simulation.scenarios.moves import run_moves

ENDS = frozenset(
    {
        "kill_broker",
        "bounce_broker",
        "kill_controller",
        "kill_two",
        "kill_all",
        "kill_in_a_write",
        "crash_in_an_operation",
        "lose_power",
        "lose_all_power",
        "lose_a_new_member",
        "wipe",
    }
)
"""Faults that end processes."""

SHOWN_EVERY = 10
"""Seeds between two looks at the table: hours of work must not be lost with their process."""

COLUMNS = {
    "seeds": "seeds",
    "moves started": "moves started",
    "moves changed": "changed",
    "moves cancelled": "cancelled",
    "moves completed": "completed",
    "brokers emptied": "brokers emptied",
    "ends": "kills and power losses",
    "faults": "faults in all",
    "elections": "elections",
    "strays kept": "quarantined copies kept",
    "findings": "seeds with findings",
}


def soak(seeds: int, first: int = 0) -> int:
    """Run so many seeds from ``first`` on, then the planted bugs; return how much failed.

    What ran is printed as a table even when the rest is interrupted.
    """
    rows: dict[int, Counter[str]] = {}
    findings: list[str] = []
    try:
        for seed in range(first, first + seeds):
            _run(seed, rows, findings)
            if (seed - first) % SHOWN_EVERY == SHOWN_EVERY - 1:
                print(_table(rows), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(_table(rows), flush=True)
    for line in findings:
        print(line, flush=True)
    return len(findings) + survivors(PLANTED)


def _run(seed: int, rows: dict[int, Counter[str]], findings: list[str]) -> None:
    began = time.monotonic()
    result = run_moves(seed)
    took = time.monotonic() - began
    row = rows.setdefault(moving_course(seed).brokers, Counter())
    row.update(result.counts)
    row["seeds"] += 1
    row["ends"] += sum(result.counts.get(f"struck {name}", 0) for name in ENDS)
    if result.violations:
        row["findings"] += 1
        findings.append(f"seed {seed}: {promises.first_of(result.violations)}")
        print(result.report(), file=sys.stderr, flush=True)
    print(f"seed {seed}: {'FOUND' if result.violations else 'good'}, {took:.1f} s", flush=True)
    gc.collect()


def _table(rows: dict[int, Counter[str]]) -> str:
    """Return a row for each number of brokers, and one for all."""
    named = {f"{brokers} brokers": row for brokers, row in sorted(rows.items())}
    named["all"] = sum(rows.values(), Counter())
    lines = [f"| | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, row in named.items():
        lines.append(f"| {name} | {' | '.join(f'{row[column]:,}' for column in COLUMNS)} |")
    return "\n".join(lines)
