"""Runs the parts of the test suite one after another, each within its budget of time.

`python -m tests.support.run_all` is what `make test` calls. Each part has a budget of seconds on
two quiet cores; one that takes ``PATIENCE`` times as long hangs: it is ended and fails. A part of
which neither core would be busy alone is cut in two by a mark, and both halves run side by side.
The last line counts all parts.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.support.processes import PORT_SHARE


@dataclass(frozen=True)
class Part:
    """One run of pytest: its arguments and how many seconds it should take on two cores.

    ``beside`` is an expression of marks: the tests with it run in a second process meanwhile.
    """

    name: str
    arguments: tuple[str, ...]
    budget_s: int
    beside: str = ""


PATIENCE = 4

SEEDS_OF_CLUSTERS = "tests/simulation/test_simulation_cluster.py"
"""It uses both cores itself."""

PARTS = (
    Part("unit", ("tests/unit",), 90),
    Part("wire", ("tests/wire",), 60),
    Part("simulated clusters", (SEEDS_OF_CLUSTERS,), 240),
    Part("simulation", ("tests/simulation", f"--ignore={SEEDS_OF_CLUSTERS}"), 180, beside="second"),
    Part("stock clients and tools", ("tests/cluster",), 400, beside="java or second"),
    Part("kill", ("tests/chaos",), 200, beside="second"),
    Part("spark", ("tests/spark",), 180, beside="kill or java"),
    Part("package", ("tests/package",), 60),
)


def run(part: Part) -> tuple[int, str, float]:
    """Run one part; return its exit status, its last lines and the seconds it took."""
    started = time.monotonic()
    halves = [f"not ({part.beside})", part.beside] if part.beside else [""]
    with ThreadPoolExecutor(len(halves)) as threads:
        ends = list(threads.map(lambda at: _run_half(part, halves, at), range(len(halves))))
    for _, lines in ends[1:]:
        sys.stdout.write("".join(lines))
    sys.stdout.flush()
    # 5: no test was collected; one half may well have none.
    failed = [status for status, _ in ends if status not in (0, 5)]
    tails = "".join("".join(lines[-5:]) for _, lines in ends)
    return (failed or [0])[0], tails, time.monotonic() - started


def _run_half(part: Part, halves: list[str], at: int) -> tuple[int, list[str]]:
    """Run pytest to its end, or to the end of patience; its exit status and what it said."""
    command = [sys.executable, "-m", "pytest", "--durations=5", *part.arguments]
    if halves[at]:
        command += ["-m", halves[at]]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        errors="replace",
        env={**os.environ, PORT_SHARE: f"{at}/{len(halves)}"},
    )
    assert process.stdout is not None
    patience = threading.Timer(
        part.budget_s * PATIENCE, lambda: os.killpg(process.pid, signal.SIGKILL)
    )
    patience.start()
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if at == 0:
                sys.stdout.write(line)
                sys.stdout.flush()
        return process.wait(), lines
    finally:
        patience.cancel()


def main() -> int:
    """Run all parts, or those named on the command line; return the exit status."""
    names = set(sys.argv[1:])
    passed = failed = skipped = 0
    table = []
    for part in PARTS:
        if names and part.name not in names:
            continue
        print(f"== {part.name} (budget {part.budget_s} s)", flush=True)
        status, tail, seconds = run(part)
        counts: Counter[str] = Counter()
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", tail):
            counts[word] += int(number)
        passed += counts["passed"]
        skipped += counts["skipped"]
        broken = counts["failed"] + counts["error"]
        if status not in (0, 5) and not broken:
            broken = 1
        failed += broken
        verdict = "ok" if status in (0, 5) else "FAILED"
        table.append(f"{part.name:26} {seconds:6.1f} s of {part.budget_s:4} s   {verdict}")
    print("\n".join(table))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
