"""One topic that grows and shrinks under faults, compacted or with stock clients: a few seeds."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import run_seeds

SEEDS = 3
"""Some eight seconds on a quiet core."""

LIMIT_S = 900.0

pytestmark = pytest.mark.usefixtures("quiet")


def test_the_newest_value_of_each_key_wins() -> None:
    totals = run_seeds("compacted", SEEDS, LIMIT_S)
    # About half of what they do.
    floors = {"resizes": 2, "growths": 1, "deleted": 60, "cleaned": 180, "faults": 3}
    low = {what: totals[what] for what, each in floors.items() if totals[what] < each * SEEDS}
    assert not low, f"too little of {low} in {totals}"


def test_stock_clients_receive_everything_and_refusals_are_definite() -> None:
    totals = run_seeds("stock", SEEDS, LIMIT_S)
    floors = {
        "resizes": 1,
        "removed": 1,
        "stock acked": 40,
        "stock refused": 5,
        "elastic deliveries": 300,
        "faults": 3,
    }
    low = {what: totals[what] for what, each in floors.items() if totals[what] < each * SEEDS}
    assert not low, f"too little of {low} in {totals}"
