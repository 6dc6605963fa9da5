"""Planted bugs of a topic alone that grows and shrinks: a seed finds each.

As in ``test_cluster``; the bugs are in ``compacted`` and ``stock``.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted import compacted, stock
from tests.simulation.planted.search import SEEDS, Patch, Planted, find
from tests.simulation.scenarios.alone import AloneRun
from tests.simulation.scenarios.compacted import CompactedRun
from tests.simulation.scenarios.stock import StockRun

pytestmark = pytest.mark.usefixtures("quiet")
NAMED = [
    pytest.param(scenario, each, id=each.plant.__name__)
    for scenario, table in ((CompactedRun, compacted.PLANTED), (StockRun, stock.PLANTED))
    for each in table
]


@pytest.mark.parametrize(("scenario", "planted"), NAMED)
def test_a_planted_bug_is_found(
    scenario: type[AloneRun], planted: Planted, monkeypatch: Patch
) -> None:
    planted.plant(monkeypatch)
    found = find(planted, scenario=scenario)
    assert found is not None, f"{planted.plant.__name__} survived {SEEDS} seeds"
    result, line = found
    print(f"{planted.plant.__name__}: seed {result.seed}: {line}")
