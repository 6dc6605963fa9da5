"""Planted bugs of compacted topics that grow and shrink: a seed finds each.

As in ``test_cluster``; the bugs are in ``compacted``.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted.compacted import PLANTED
from tests.simulation.planted.search import SEEDS, Patch, Planted, find
from tests.simulation.scenarios.compacted import CompactedRun

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("planted", PLANTED, ids=[each.plant.__name__ for each in PLANTED])
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    found = find(planted, scenario=CompactedRun)
    assert found is not None, f"{planted.plant.__name__} survived {SEEDS} seeds"
    result, line = found
    print(f"{planted.plant.__name__}: seed {result.seed}: {line}")
