"""A whole cluster in the simulation: seeds replay in every process, gentle faults lose nothing."""

from __future__ import annotations

import pytest

from tests.simulation.cluster import faults
from tests.simulation.replay import in_other_processes
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.scenarios.cluster import ClusterRun
from tests.simulation.scenarios.course import Course

pytestmark = pytest.mark.usefixtures("quiet")

REPLAYED = 17


@pytest.mark.parametrize("seed", range(2))
def test_processes_end_and_come_back(seed: int) -> None:
    result = ClusterRun(seed, Course(weights=faults.GENTLE)).run()
    assert not result.violations, result.report()
    assert result.counts["acked"] > 500
    assert result.counts["elections"] > 5


def test_a_seed_replays_in_every_process() -> None:
    digest = SCENARIOS["cluster"](REPLAYED).digest
    program = (
        "import logging; logging.disable(50)\n"
        "from tests.simulation.scenarios.cluster import run_cluster\n"
        f"print(run_cluster({REPLAYED}).digest)"
    )
    assert in_other_processes(program, 77) == {digest}
