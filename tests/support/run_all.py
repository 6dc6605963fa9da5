"""Runs the parts of the test suite one after another, each within its budget of time.

`python -m tests.support.run_all` is what `make test` calls. Each part has a budget of seconds on
two quiet cores; one that takes ``PATIENCE`` times as long, and ``LEAST_PATIENCE_S``, hangs: it is
ended and fails. The files of a part are shared out among processes (pytest-xdist), those with a
test marked ``long`` first: two where tests compute, more where they mostly wait. The last lines
name what failed and count all parts.

With ``TIDELOG_EVERY_TEST`` set, as CI sets it, a skip that ``LONG_FORMS`` does not name is a
failure, and so is anything that could not be fetched: a machine without Maven is not green.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One run of pytest: its arguments, how many seconds it should take on two cores, and how many
    processes its files are shared out among."""

    name: str
    arguments: tuple[str, ...]
    budget_s: int
    processes: int = 1

    @property
    def patience_s(self) -> int:
        """Return after how many seconds this part hangs."""
        return max(self.budget_s * PATIENCE, LEAST_PATIENCE_S)


PATIENCE = 8
"""How many budgets a part may take before it hangs. Two shared cores often need four, and at six
two parts were ended in which no test had failed. It is no bound of the product."""

LEAST_PATIENCE_S = 900
"""A short part on a busy machine may wait for what is fetched on first use: that is no hang."""

PREPARED_S = 600

SUMMARY_S = 30
"""How long a part that hangs may take to say what failed in it."""

LONGEST_S = 17 * 60
"""What the budgets may come to on two quiet cores: a test asserts it."""

EVERY_TEST = "TIDELOG_EVERY_TEST"

LONG_FORM = "for `make chaos`"
"""Why a test is skipped that `make chaos` runs."""

LONG_FORMS = {
    "tests/chaos/test_copies_under_faults.py": "tests/cluster/test_exactly_once_kills.py",
    "tests/chaos/test_kill_cluster.py": "tests/chaos/test_nemesis.py",
    "tests/chaos/test_nemesis.py": "tests/chaos/test_nemesis.py",
    "tests/chaos/test_resizes_under_faults.py": "tests/cluster/test_resizes.py",
    "tests/chaos/test_steady_load.py": "tests/chaos/test_steady_load.py",
}
"""The files with tests that only `make chaos` runs, and where their short form is."""

SEEDS_OF_CLUSTERS = "tests/simulation/test_cluster.py"
"""It uses both cores itself."""

PLANTED = "tests/simulation/planted"

CRASHES = tuple(
    f"tests/simulation/test_{what}.py"
    for what in (
        "fence_crashes",
        "future_crashes",
        "log",
        "log_crashes",
        "log_seeds",
        "store_faults",
        "target_crashes",
    )
)
"""A crash or a fault at each call of one log or one store, half of what the simulation takes."""

ROLLS_AND_RESIZES = tuple(
    f"tests/cluster/test_{what}.py"
    for what in (
        "autoscaling",
        "cli_resizing",
        "compacted_resizes",
        "latest_through_growth",
        "levels_roll",
        "public_producer_resizes",
        "resizes",
        "resizes_in_trouble",
        "retired_partitions",
        "source_resizes",
        "stock_readers_through_resizes",
        "topic_incarnations",
        "undone_births",
        "upgrade_data",
        "upgrade_roll",
    )
)

MOVES_AND_LOSSES = tuple(
    f"tests/cluster/test_{what}.py"
    for what in (
        "ack_gap",
        "bad_disk",
        "forwarded_requests",
        "full_store",
        "log_dirs",
        "lost_store",
        "reassign_partitions",
        "reassignment_clients",
        "reassignment_disks",
        "reassignment_settings",
        "reassignments",
        "rebalance",
        "replication_kills",
        "restored_store",
        "restored_up",
        "unclean_elections",
        "workers",
    )
)
"""Beside the stock clients, in one part, these and the rolls took most of its patience."""

REGRESSIONS = ("tests/regressions/test_broker.py", "tests/regressions/test_controller.py")
SIMULATED_REGRESSIONS = tuple(
    f"tests/regressions/test_simulated_{what}.py"
    for what in ("broker", "cluster", "groups", "moves")
)

PARTS = (
    Part(
        "unit",
        ("tests/unit", "tests/order", "tests/broker", "tests/component", *REGRESSIONS),
        115,
        3,
    ),
    Part("wire", ("tests/wire",), 110, 2),
    Part("simulated clusters", (SEEDS_OF_CLUSTERS,), 100),
    Part(
        "simulation",
        (
            "tests/simulation",
            *SIMULATED_REGRESSIONS,
            f"--ignore={SEEDS_OF_CLUSTERS}",
            f"--ignore={PLANTED}",
            *(f"--ignore={path}" for path in CRASHES),
        ),
        40,
        2,
    ),
    Part("crashes", CRASHES, 35, 2),
    Part("planted bugs", (PLANTED,), 55, 2),
    Part(
        "stock clients and tools",
        (
            "tests/cluster",
            *(f"--ignore={path}" for path in (*ROLLS_AND_RESIZES, *MOVES_AND_LOSSES)),
        ),
        70,
        6,
    ),
    Part("moves and losses", MOVES_AND_LOSSES, 60, 6),
    Part("rolls and resizes", ROLLS_AND_RESIZES, 60, 6),
    Part("kill", ("tests/chaos", "tests/regressions/test_processes.py"), 130, 3),
    Part("spark", ("tests/spark",), 138, 2),
    Part("package", ("tests/package",), 60, 2),
)


def run(part: Part) -> tuple[int, list[str], float]:
    """Run one part; return its exit status, the lines it printed and the seconds it took."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-rfEs", "--durations=8", *part.arguments]
    if part.processes > 1:
        # A file's tests stay together: they share nodes that are theirs.
        command += ["-n", str(part.processes), "--dist", "loadfile", "--no-loadscope-reorder"]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts what it runs in the background, and pytest would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # As on a machine that has never run a test: paths of tests are the same there and here.
    folder = tempfile.mkdtemp(prefix="tidelog-")
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        errors="replace",
        env={**os.environ, "PYTEST_DEBUG_TEMPROOT": folder},
    )
    assert process.stdout is not None
    # An interrupted pytest still says what failed before: what a hanging test would hide.
    patience = (
        threading.Timer(part.patience_s, lambda: process.send_signal(signal.SIGINT)),
        threading.Timer(
            part.patience_s + SUMMARY_S, lambda: os.killpg(process.pid, signal.SIGKILL)
        ),
    )
    for timer in patience:
        timer.daemon = True
        timer.start()
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            sys.stdout.write(line)
            sys.stdout.flush()
        status = process.wait()
        if status:
            print(f"the files of this part's tests are below {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return status, lines, time.monotonic() - started
    finally:
        for timer in patience:
            timer.cancel()


def unnamed_skips(lines: Iterable[str]) -> list[str]:
    """Return the lines of a summary that tell of a skip which ``LONG_FORMS`` does not name."""
    found = []
    for line in lines:
        told = re.match(r"SKIPPED \[\d+\] ([^\s:]+)(?::\d+)?: (.*)", line)
        if told and not (told[1] in LONG_FORMS and told[2].strip() == LONG_FORM):
            found.append(line.rstrip())
    return found


def main() -> int:
    """Run all parts, or those named on the command line; return the exit status."""
    names = set(sys.argv[1:])
    # Hundreds of processes would compile the sources that they import, each for itself.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    passed = failed = skipped = 0
    table = []
    red: list[str] = []
    is_strict = bool(os.environ.get(EVERY_TEST))
    preparing = subprocess.Popen([sys.executable, "-m", "tests.support.prepare"])
    for part in PARTS:
        if names and part.name not in names:
            continue
        print(f"== {part.name} (budget {part.budget_s} s)", flush=True)
        status, lines, seconds = run(part)
        counts: Counter[str] = Counter()
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", "".join(lines[-5:])):
            counts[word] += int(number)
        red += [line.rstrip() for line in lines if line.startswith(("FAILED ", "ERROR "))]
        missing = unnamed_skips(lines) if is_strict else []
        red += missing
        passed += counts["passed"]
        skipped += counts["skipped"]
        broken = counts["failed"] + counts["error"]
        if seconds > part.patience_s or (status and not broken):
            broken += 1
            red.append(f"FAILED {part.name}: exit status {status} after {seconds:.0f} s")
        failed += broken + len(missing)
        verdict = "FAILED" if status or missing else "ok"
        table.append(f"{part.name:26} {seconds:6.1f} s of {part.budget_s:4} s   {verdict}")
    if preparing.wait(PREPARED_S) and is_strict:
        failed += 1
        red.append("FAILED tests.support.prepare: not all that tests need was fetched (see above)")
    # The end of a long log names what failed: often only the end is read.
    print("\n".join([*table, *red]))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
