"""The log on the simulated disk: random lives within a time, and replay byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.seeds import run_for

ROOT = Path(__file__).parents[2]
SECONDS = 12.0


def test_no_promise_breaks_over_many_lives() -> None:
    totals = run_for("log", SECONDS, at_least=60)
    for what in ("appends", "crashes", "duplicates", "refusals", "reads"):
        assert totals[what] > 10, f"too few {what}: {totals}"
    # Rare: some in a hundred seeds, and a slow machine runs no more than that.
    assert totals["compactions"] > 0, f"no compactions: {totals}"


@pytest.mark.parametrize("seed", [11, 58])
def test_a_seed_replays_in_every_process(seed: int) -> None:
    digests = {SCENARIOS["log"](seed).digest}
    program = (
        f"from tests.simulation.scenarios import SCENARIOS as s; print(s['log']({seed}).digest)"
    )
    for hash_seed in ("0", "77"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout.strip())
    assert len(digests) == 1


REGRESSIONS = {
    58: "truncation below the recovery point, then a kill, was taken for damage",
    212: "kill, then power loss: names of the killed life were never synced",
    218: "power loss kept a rolled segment and lost the first one",
    585: "retention of everything, then power loss, left no segment",
    735: "partition.metadata torn by power loss took the replica out of service",
    1078: "kill, then power loss tore the snapshot of producers whose records had gone",
    1511: "retention removed records whose producers stood in an unsynced snapshot",
    3675: "truncation to the first offset forgot all producers",
}
"""Seeds that found a bug once. Scenarios change, and so does what a seed does; they stay cheap."""


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_once_failed(seed: int) -> None:
    result = SCENARIOS["log"](seed)
    assert not result.violations, result.report()
