"""`python -m tests.mutants.run`: breaks one rule after another in a copy of the tree.

Owns the command of `make mutants`. Each mutant must be found by the tests that are named for it;
one that survives, whose text is not there any more, or whose tests are red without it, ends the run
with 1. With ``--write`` the table in ``docs/internals/mutants.md`` is brought up to date.
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
from pathlib import Path
from typing import NamedTuple

from tests.mutants import (
    of_autoscaling,
    of_clients,
    of_control,
    of_counts,
    of_groups,
    of_messages,
    of_pipeline,
    of_producers,
    of_removal,
    of_storage,
    of_store,
    of_suite,
    of_unaware_writers,
)
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "mutants.md"
MUTANTS = (
    *of_storage.MUTANTS,
    *of_control.MUTANTS,
    *of_removal.MUTANTS,
    *of_store.MUTANTS,
    *of_messages.MUTANTS,
    *of_groups.MUTANTS,
    *of_counts.MUTANTS,
    *of_clients.MUTANTS,
    *of_autoscaling.MUTANTS,
    *of_unaware_writers.MUTANTS,
    *of_pipeline.MUTANTS,
    *of_producers.MUTANTS,
    *of_suite.MUTANTS,
)

PATIENCE_S = 300
"""A broken rule may make a test wait for ever: that finds it, too."""

FAILED = 1
"""pytest's exit status for tests that fail; any other but 0 is no finding."""

HEAD = """# Mutants: rules that were broken, and the tests that found it

`make mutants` breaks one rule of the product at a time, in a copy of the tree, and runs the tests
that the mutant names. It runs by hand, in minutes, and is not a part of `make test`. A mutant is a
small replacement of text (`tests/mutants/`); the run fails when that text no longer exists. A
number in front is that of the [review](review.md): no test found that broken rule then. Written by
`python -m tests.mutants.run --write`.

| the broken rule | in | found by |
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


def path_of(copy: Path, mutant: Mutant) -> Path:
    """Return the file that a mutant changes."""
    return copy / mutant.file


def why_not_there(copy: Path, mutant: Mutant) -> str:
    """Return why a mutant cannot be made, "" when it can."""
    path = path_of(copy, mutant)
    if not path.is_file():
        return f"{mutant.file} is not there any more"
    count = path.read_text().count(mutant.old)
    return "" if count == 1 else f"its text stands {count} times in {mutant.file}"


def attempt(copy: Path, mutant: Mutant) -> Outcome:
    """Break the rule, run the tests, and mend it."""
    began = time.monotonic()
    path = path_of(copy, mutant)
    sound = path.read_text()
    path.write_text(sound.replace(mutant.old, mutant.new))
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
    file = outcome.mutant.file.removeprefix("src/tidelog/")
    return f"| {outcome.mutant.name} | `{file}` | {outcome.found_by or '**nothing**'} |"


def write_page(found: dict[str, str]) -> None:
    """Write the page; the rows of mutants that were not tried now stay as they are there."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    known = {line.split("|")[1].strip(): line for line in lines if line.count("|") == 4}
    untried = "| {0.name} | `{0.file}` | not tried yet |"
    rows = [(known | found).get(each.name, untried.format(each)) for each in MUTANTS]
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--only", default="", help="words, parted by commas, of names or files")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    words = [word for word in options.only.split(",") if word]
    chosen = [
        x for x in MUTANTS if not words or any(word in f"{x.name} {x.file}" for word in words)
    ]
    with tempfile.TemporaryDirectory(prefix="tidelog-mutants-") as folder:
        copy = copy_of_the_tree(Path(folder))
        gone = [f"{x.name}: {why}" for x in chosen if (why := why_not_there(copy, x))]
        if gone:
            print("\n".join(gone), file=sys.stderr)
            return 1
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
    if options.write and not survived:
        write_page({x.mutant.name: row(x) for x in outcomes})
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
