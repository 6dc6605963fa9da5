"""Planted bugs of moves (KIP-455): a mover reassigns partitions, and a seed finds each bug.

As in ``test_cluster``; the bugs are in ``moves``. The rules of the controller alone are broken in
`tests/unit/controller/test_partition_scenarios.py` too.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted.moves import PLANTED
from tests.simulation.planted.search import SEEDS, Patch, Planted, find

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet")]


@pytest.mark.parametrize("planted", PLANTED, ids=[each.plant.__name__ for each in PLANTED])
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    found = find(planted)
    assert found is not None, f"{planted.plant.__name__} survived {SEEDS} seeds"
    result, line = found
    print(f"{planted.plant.__name__}: seed {result.seed}: {line}")
