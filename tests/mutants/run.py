"""`python -m tests.mutants.run`: breaks one rule after another in a copy of the tree.

Owns the command of `make mutants`. Each mutant must be found by the tests that are named for it;
one that survives, whose statement is not there any more, or whose tests are red without it, makes
the exit status 1; the others run all the same. ``--list`` only writes the table of `make docs`, and
says which statements are gone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.mutants import (
    of_acceptance,
    of_authorization,
    of_autoscaling,
    of_client_transactions,
    of_clients,
    of_commits,
    of_control,
    of_counts,
    of_groups,
    of_isolation,
    of_late_replicas,
    of_machines,
    of_messages,
    of_pending_offsets,
    of_pipeline,
    of_placement,
    of_producers,
    of_removal,
    of_storage,
    of_store,
    of_suite,
    of_tls,
    of_transactions,
    of_unaware_writers,
    of_verification,
)
from tests.mutants.mutant import Mutant, broken, place
from tests.support.maps import FOLDER

ROOT = Path(__file__).resolve().parents[2]
PAGE = FOLDER / "mutants.md"
MUTANTS = (
    *of_storage.MUTANTS,
    *of_control.MUTANTS,
    *of_removal.MUTANTS,
    *of_store.MUTANTS,
    *of_late_replicas.MUTANTS,
    *of_acceptance.MUTANTS,
    *of_messages.MUTANTS,
    *of_groups.MUTANTS,
    *of_counts.MUTANTS,
    *of_isolation.MUTANTS,
    *of_client_transactions.MUTANTS,
    *of_clients.MUTANTS,
    *of_commits.MUTANTS,
    *of_autoscaling.MUTANTS,
    *of_unaware_writers.MUTANTS,
    *of_pending_offsets.MUTANTS,
    *of_pipeline.MUTANTS,
    *of_placement.MUTANTS,
    *of_machines.MUTANTS,
    *of_producers.MUTANTS,
    *of_suite.MUTANTS,
    *of_tls.MUTANTS,
    *of_authorization.MUTANTS,
    *of_transactions.MUTANTS,
    *of_verification.MUTANTS,
)

PATIENCE_S = 300
"""A broken rule may make a test wait for ever: that finds it, too."""

FAILED = 1
"""pytest's exit status for tests that fail; any other but 0 is no finding."""

HEAD = """# Mutants: rules that are broken, and the tests that find it

`make mutants` breaks one rule of the product at a time, in a copy of the tree, and runs the tests
that the mutant names. It runs by hand, in minutes, and is not a part of `make test`. A mutant
replaces a statement of a function (`tests/mutants/`). A number in front is that of the review of
the tests: none found that broken rule then. Written by `make docs`.

| the broken rule | in | its tests |
|---|---|---|
"""


class Outcome(NamedTuple):
    """What became of one mutant."""

    mutant: Mutant
    found_by: str
    """The first test that failed; empty when it survived."""
    trouble: str
    """Why nothing can be said of it."""
    seconds: float


def copy_of_the_tree(folder: Path) -> Path:
    """Copy what git knows or would take; return the copy's root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    copy = folder / "tree"
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if not source.is_file():
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy / name)
    # Some tests ask git which files there are.
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=copy, check=True, capture_output=True)
    return copy


def environment(copy: Path) -> dict[str, str]:
    """Return the environment in which the copy's modules are imported, not the checkout's."""
    paths = os.pathsep.join((str(copy / "src"), str(copy)))
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}


def run_tests(copy: Path, tests: str) -> tuple[int | None, str]:
    """Run tests in the copy: pytest's exit status (None: they hang) and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "--tb=line", *tests.split()],
        cwd=copy,
        env=environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return None, said
    return process.returncode, said


def attempt(copy: Path, mutant: Mutant) -> Outcome:
    """Break the rule, run the tests, and mend it."""
    began = time.monotonic()
    made = broken(copy, mutant)
    if isinstance(made, str):
        return Outcome(mutant, "", made, 0)
    path, text = made
    sound = path.read_text()
    path.write_text(text)
    try:
        status, said = run_tests(copy, mutant.tests)
    finally:
        path.write_text(sound)
    took = time.monotonic() - began
    if status is None:
        return Outcome(mutant, f"`{mutant.tests.split()[0]}`, which waits for ever", "", took)
    if status == 0:
        return Outcome(mutant, "", "", took)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if status != FAILED or failed is None:
        return Outcome(mutant, "", f"pytest ended with {status}:\n{said[-2000:]}", took)
    return Outcome(mutant, f"`{failed[1].split('[')[0]}`", "", took)


def row(outcome: Outcome) -> str:
    """Return the table's row of a mutant."""
    where = outcome.mutant.where.removeprefix("src/tidelog/")
    return f"| {outcome.mutant.name} | `{where}` | {outcome.found_by or '**nothing**'} |"


def gone(root: Path, mutants: Iterable[Mutant]) -> list[str]:
    """Return a line for each mutant whose statement is not there any more."""
    return [f"{x.name}: {why}" for x in mutants if isinstance(why := place(root, x), str)]


def write_page() -> None:
    """Write the table of `make docs`."""
    rows = [
        f"| {x.name} | `{x.where.removeprefix('src/tidelog/')}` | `{x.tests}` |" for x in MUTANTS
    ]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--only", default="", help="words, parted by commas, of names or files")
    parser.add_argument("--list", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    lost = gone(ROOT, MUTANTS)
    if lost:
        print("\n".join(["these mutants apply no longer:", *lost]), file=sys.stderr)
    if options.list:
        write_page()
        return 0
    words = [word for word in options.only.split(",") if word]
    chosen = [
        x for x in MUTANTS if not words or any(word in f"{x.name} {x.where}" for word in words)
    ]
    if not chosen:
        # pytest without a file would run the whole suite.
        parser.error(f"no mutant has any of these words in its name or place: {options.only}")
    with tempfile.TemporaryDirectory(prefix="tidelog-mutants-") as folder:
        copy = copy_of_the_tree(Path(folder))
        tests = " ".join(dict.fromkeys(" ".join(x.tests for x in chosen).split()))
        print(f"{len(chosen)} mutants; first their tests without them", flush=True)
        status, said = run_tests(copy, tests)
        if status != 0:
            print(f"the tests are red without any mutant:\n{said[-4000:]}", file=sys.stderr)
            return 1
        outcomes = []
        for mutant in chosen:
            outcome = attempt(copy, mutant)
            outcomes.append(outcome)
            print(f"{row(outcome)} {outcome.seconds:.0f} s {outcome.trouble}", flush=True)
    survived = [x for x in outcomes if not x.found_by]
    print(f"{len(outcomes) - len(survived)} of {len(outcomes)} found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
