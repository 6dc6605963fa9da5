"""A topic that grows and shrinks under faults: a fixed number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import run_in_workers

SEEDS = 6
"""In two workers: half a minute on quiet cores."""

LIMIT_S = 480.0


@pytest.mark.long(60)
def test_keys_keep_their_order_in_many_clusters() -> None:
    totals = run_in_workers("resizes", SEEDS, LIMIT_S)
    assert totals["seeds"] == SEEDS
    # About half of what they do.
    floors = {
        "resizes": 3,
        "removed": 2,
        "elastic acked": 450,
        "elastic deliveries": 900,
        "elastic commits": 40,
        "faults": 6,
    }
    low = {what: totals[what] for what, each in floors.items() if totals[what] < each * SEEDS}
    assert not low, f"too little of {low} in {totals}"
