"""`make soak RESIZES=1000`: pinned seeds of a topic that grows and shrinks, and their verdict.

Owns the runs in workers, the file of what ran, from which a later call goes on, and the table in
docs/internals/order-checker.md. What one run is: see ``scenarios/resizes``; the planted bugs:
``planted/resizes``. A seed with findings runs again at another commit.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.simulation import promises
from tests.simulation.planted import compacted, stock
from tests.simulation.planted.resizes import PLANTED
from tests.simulation.planted.search import survivors
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.scenarios.compacted import CompactedRun
from tests.simulation.scenarios.resizes import ResizesRun
from tests.simulation.scenarios.stock import StockRun
from tests.simulation.soak_moves import ENDS

ROOT = Path(__file__).parents[2]
RAN = ROOT / "build" / "soak-resizes.jsonl"
"""What ran, a line for each seed: hours of work must not be lost with their process."""

PAGE = ROOT / "docs/internals/order-checker.md"
BEGIN, END = "<!-- verdict on resizes -->\n", "<!-- end of the verdict -->\n"

OTHER_PART = 4

WRITTEN_EVERY = 10
"""Seeds between two versions of the table."""

CUTS = ("cut", "isolate", "cut_from_controllers", "cut_off_store")
"""Faults that cut links."""

COLUMNS = {
    "seeds": "histories",
    "growths": "growths",
    "shrinks": "shrinks",
    "undone": "undone",
    "removed": "removed partitions",
    "elastic acked": "acknowledged records",
    "elastic deliveries": "deliveries",
    "elections": "elections",
    "unclean": "unclean",
    "ends": "kills and power losses",
    "cuts": "cuts",
    "faults": "faults in all",
    "failed": "with findings",
}


class Ran(NamedTuple):
    """One seed that ran."""

    scenario: str
    seed: int
    commit: str
    seconds: float
    counts: dict[str, int]
    findings: list[str]


def run(scenario: str, seed: int) -> tuple[Ran, str]:
    """Run one seed; return it with its report where it has findings."""
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    result = SCENARIOS[scenario](seed)
    took = time.process_time() - began
    gc.collect()
    ran = Ran(scenario, seed, "", round(took, 1), result.counts, result.violations)
    return ran, result.report() if result.violations else ""


def soak(seeds: Iterable[int], workers: int) -> int:
    """Run the seeds that have not run yet, then the planted bugs; return how much failed.

    A quarter of the numbers runs with a compacted topic, too, with stock clients, and with a
    controller that resizes by the load.
    """
    wanted = list(seeds)
    failed = run_left("resizes", wanted, workers)
    for scenario in ("compacted", "stock", "autoscaling"):
        failed += run_left(scenario, wanted[: len(wanted) // OTHER_PART], workers)
    failed += survivors(PLANTED, ResizesRun)
    failed += survivors(compacted.PLANTED, CompactedRun)
    return failed + survivors(stock.PLANTED, StockRun)


def run_left(scenario: str, seeds: Iterable[int], workers: int, file: Path = RAN) -> int:
    """Run the seeds that have not run yet; return how many of all have findings."""
    commit = _commit()
    wanted = list(seeds)
    before = {ran.seed: ran for ran in _read(file) if ran.scenario == scenario}
    left = [seed for seed in wanted if _is_open(before.get(seed), commit)]
    print(f"{len(wanted) - len(left)} of {len(wanted)} seeds have run", flush=True)
    file.parent.mkdir(exist_ok=True)
    spawning = multiprocessing.get_context("spawn")
    with spawning.Pool(workers, maxtasksperchild=WRITTEN_EVERY) as pool, file.open("a") as lines:
        try:
            work = pool.imap_unordered(_run, [(scenario, seed) for seed in left])
            for number, (ran, report) in enumerate(work, 1):
                ran = ran._replace(commit=commit)
                lines.write(json.dumps(ran._asdict()) + "\n")
                lines.flush()
                _print(ran, report)
                if number % WRITTEN_EVERY == 0:
                    write_page(file)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            pool.terminate()
    write_page(file)
    ran_now = {ran.seed: ran for ran in _read(file) if ran.scenario == scenario}
    return sum(bool(ran_now[seed].findings) for seed in wanted if seed in ran_now)


def _run(what: tuple[str, int]) -> tuple[Ran, str]:
    return run(*what)


def _is_open(ran: Ran | None, commit: str) -> bool:
    return ran is None or (bool(ran.findings) and ran.commit != commit)


def _print(ran: Ran, report: str) -> None:
    if report:
        print(report, file=sys.stderr, flush=True)
    said = f"FOUND {promises.first_of(ran.findings)}" if ran.findings else "good"
    print(f"{ran.scenario} seed {ran.seed}: {said}, {ran.seconds:.1f} s", flush=True)


def _commit() -> str:
    """Return the commit of this checkout, with a mark where files differ from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--abbrev=8", "--dirty=+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.strip()


def _read(file: Path) -> Iterator[Ran]:
    if file.exists():
        for line in file.read_text().splitlines():
            yield Ran(**json.loads(line))


# --- the page --------------------------------------------------------------------------------


def write_page(file: Path = RAN, page: Path = PAGE) -> None:
    """Write the verdict on all that ran between the marks of the page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{verdict(list(_read(file)))}\n{END}{after}")


def verdict(ran: list[Ran]) -> str:
    """Return the table of what ran, a row for each scenario and commit, and what was found."""
    rows: dict[str, Counter[str]] = {}
    for each in ran:
        row = rows.setdefault(f"`{each.scenario}` at {each.commit}", Counter())
        row.update(_counted(each))
    newest = {(each.scenario, each.seed): each for each in ran}
    rows["all, each seed once"] = sum((_counted(each) for each in newest.values()), Counter())
    lines = [f"| | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(f'{row[column]:,}' for column in COLUMNS)} |")
    return "\n".join([*lines, "", *_found(ran, newest)]) + "\n"


def _counted(ran: Ran) -> Counter[str]:
    row: Counter[str] = Counter(
        {name: count for name, count in ran.counts.items() if name in COLUMNS}
    )
    row["seeds"] = 1
    row["ends"] = sum(ran.counts.get(f"struck {name}", 0) for name in ENDS)
    row["cuts"] = sum(ran.counts.get(f"struck {name}", 0) for name in CUTS)
    row["failed"] = bool(ran.findings)
    return row


def _found(ran: list[Ran], newest: dict[tuple[str, int], Ran]) -> Iterator[str]:
    """Yield what was found: by rule, and each seed with what became of it."""
    kinds = Counter(kind_of(line) for each in newest.values() for line in each.findings)
    said = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
    yield f"Findings in the newest run of each seed: {said or 'none'}."
    found = [each for each in ran if each.findings]
    if found:
        yield ""
    for each in found:
        after = newest[each.scenario, each.seed]
        is_good = not after.findings
        became = f"good at {after.commit}" if is_good else "**open**"
        line = kind_of(promises.first_of(each.findings))
        yield f"- `{each.scenario}` seed {each.seed} at {each.commit}: {line}; {became}"


def kind_of(finding: str) -> str:
    """Return the rule of the order checker that a finding names, or the name of the finding."""
    name, _, rest = finding.partition(": ")
    if name == "order_of_keys":
        return rest.split(" ", 1)[0]
    return f"`{name}`" if promises.name_of(finding) else "the run failed"
