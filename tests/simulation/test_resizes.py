"""A topic that grows and shrinks under faults, by requests or by its load: fixed numbers of seeds.

Public clients write and read it, and the order checker judges them.
"""

from __future__ import annotations

import pytest

from tests.simulation.seeds import run_in_workers

SEEDS = 6
"""In two workers: half a minute on quiet cores."""

AUTOSCALED_SEEDS = 2

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


@pytest.mark.long(30)
def test_keys_keep_their_order_while_the_controller_follows_the_load() -> None:
    totals = run_in_workers("autoscaling", AUTOSCALED_SEEDS, LIMIT_S)
    floors = {"resizes": 1, "elastic acked": 600, "elastic deliveries": 1_200, "faults": 4}
    low = {what: totals[what] for what, n in floors.items() if totals[what] < n * AUTOSCALED_SEEDS}
    assert not low, f"too little of {low} in {totals}"
