"""Runs the parts of the test suite one after another, each within its budget of time.

`python -m tests.support.run_all` is what `make test` calls. Each part has a budget of seconds on
two quiet cores; one that takes ``PATIENCE`` times as long hangs: it is ended and fails. The last
line counts all parts.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One run of pytest: its arguments and how many seconds it should take on two cores."""

    name: str
    arguments: tuple[str, ...]
    budget_s: int


PATIENCE = 4

PARTS = (
    Part("unit", ("tests/unit",), 90),
    Part("wire", ("tests/wire",), 60),
    Part("simulation", ("tests/simulation",), 120),
    Part("stock clients and tools", ("tests/cluster",), 240),
    Part("kill", ("tests/chaos",), 120),
    Part("spark", ("tests/spark",), 180),
    Part("package", ("tests/package",), 60),
)


def run(part: Part) -> tuple[int, str, float]:
    """Run one part; return its exit status, its last lines and the seconds it took."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "--durations=5", *part.arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, errors="replace"
    )
    assert process.stdout is not None
    lines: list[str] = []
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
    signal.alarm(part.budget_s * PATIENCE)
    try:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
        status = process.wait()
    finally:
        signal.alarm(0)
    return status, "".join(lines[-5:]), time.monotonic() - started


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
        counts = {
            word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", tail)
        }
        passed += counts.get("passed", 0)
        skipped += counts.get("skipped", 0)
        broken = counts.get("failed", 0) + counts.get("error", 0)
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
