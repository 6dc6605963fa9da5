"""Transactional producers and readers of committed records under faults: so many seeds."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import run_in_workers

SEEDS = 16
"""In two workers: a minute on quiet cores."""

LIMIT_S = 480.0


@pytest.mark.long(60)
def test_transactions_are_visible_whole_or_not_at_all_in_many_clusters() -> None:
    totals = run_in_workers("transactions", SEEDS, LIMIT_S)
    assert totals["seeds"] == SEEDS
    # About half of what they do.
    floors = {
        "transactions committed": 20,
        "transactions aborted": 10,
        "instances crashed": 1,
        "transactions overslept": 0.7,
        "instances beside another": 0.5,
        "committed reads": 200,
        "stable offsets": 40,
        "positions": 16,
        "faults": 4,
        "moves completed": 0.3,
        # The control: what reads uncommitted gets what was aborted.
        "aborted reads of the control": 80,
    }
    low = {what: totals[what] for what, each in floors.items() if totals[what] < each * SEEDS}
    assert not low, f"too little of {low} in {totals}"
