"""The log on the simulated disk: a fixed number of random lives, and replay byte for byte."""

from __future__ import annotations

import pytest

from tests.simulation.replay import in_other_processes
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.seeds import run_seeds

SEEDS = 180
"""Twelve seconds of a quiet core."""

LIMIT_S = 300.0


def test_no_promise_breaks_over_many_lives() -> None:
    totals = run_seeds("log", SEEDS, LIMIT_S)
    # About half of what they do.
    floors = {
        "appends": 19,
        "crashes": 2,
        "duplicates": 4.5,
        "refusals": 15,
        "reads": 16,
        "compactions": 0.12,
        "pieces of cuts": 0.4,
    }
    low = {what: totals[what] for what, each in floors.items() if totals[what] < each * SEEDS}
    assert not low, f"too little of {low} in {totals}"


@pytest.mark.parametrize("seed", [11, 58])
def test_a_seed_replays_in_every_process(seed: int) -> None:
    digest = SCENARIOS["log"](seed).digest
    program = (
        f"from tests.simulation.scenarios import SCENARIOS as s; print(s['log']({seed}).digest)"
    )
    assert in_other_processes(program, 0, 77) == {digest}


REGRESSIONS = {
    58: "truncation below the recovery point, then a kill, was taken for damage",
    212: "kill, then power loss: names of the killed life were never synced",
    218: "power loss kept a rolled segment and lost the first one",
    223: "a cut that a kill left unsynced was undone by a later power loss",
    585: "retention of everything, then power loss, left no segment",
    735: "partition.metadata torn by power loss took the replica out of service",
    1078: "kill, then power loss tore the snapshot of producers whose records had gone",
    1511: "retention removed records whose producers stood in an unsynced snapshot",
    1919: "a cut whose fsync failed was undone by a power loss two lives later",
    3569: "compaction took a producer's last durable batch for an older one than was lost",
    3675: "truncation to the first offset forgot all producers",
    7340280: "what retention had removed came back torn, and its last batch was asked its epoch",
}
"""Seeds that found a bug once. Scenarios change, and so does what a seed does: what these were
about is in stories (`test_log_seeds.py`, `…_log_crashes.py`). They stay cheap."""


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_once_failed(seed: int) -> None:
    result = SCENARIOS["log"](seed)
    assert not result.violations, result.report()
