"""Planted bugs of transactions: a seed finds each of them.

As in ``test_cluster``; the bugs are in ``transactions``.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted.search import SEEDS, Patch, Planted, find
from tests.simulation.planted.transactions import PLANTED
from tests.simulation.scenarios.transactions import TransactionsRun

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet")]


@pytest.mark.parametrize("planted", PLANTED, ids=[each.plant.__name__ for each in PLANTED])
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    found = find(planted, scenario=TransactionsRun)
    assert found is not None, f"{planted.plant.__name__} survived {SEEDS} seeds"
    result, line = found
    print(f"{planted.plant.__name__}: seed {result.seed}: {line}")
