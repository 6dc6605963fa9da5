"""The whole server in the simulation: a fixed number of seeds, and replay."""

from __future__ import annotations

import pytest

from tests.simulation.replay import in_other_processes
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.seeds import run_seeds

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet")]

WORLDS = 30
"""Twenty seconds of a quiet core."""

LIMIT_S = 300.0


def test_no_promise_breaks_in_many_worlds() -> None:
    totals = run_seeds("broker", WORLDS, LIMIT_S)
    # About half of what they do.
    floors = {"faults": 1.5, "acked": 230, "reads": 240, "starts": 1.5, "deletions": 5}
    low = {what: totals[what] for what, each in floors.items() if totals[what] < each * WORLDS}
    assert not low, f"too little of {low} in {totals}"


def test_a_seed_replays_in_every_process() -> None:
    seed = 5
    digest = SCENARIOS["broker"](seed).digest
    program = (
        "import logging; logging.disable(50)\n"
        "from tests.simulation.scenarios.broker import run_broker\n"
        f"print(run_broker({seed}).digest)"
    )
    assert in_other_processes(program, 0, 77) == {digest}
