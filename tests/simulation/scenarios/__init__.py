"""The scenarios by name, each a function of a seed. Owns the table, and the pace of each run.

Time stands still within a turn of the loop, so that a turn is never over by itself. In one run of
two, as its seed decides, long work gives way at each yield, as on a slow machine.
"""

import random
from functools import partial

from tests.simulation.scenarios.autoscaling import run_autoscaling
from tests.simulation.scenarios.broker import run_broker
from tests.simulation.scenarios.cluster import run_cluster
from tests.simulation.scenarios.compacted import run_compacted
from tests.simulation.scenarios.log import run_log
from tests.simulation.scenarios.moves import run_moves
from tests.simulation.scenarios.resizes import run_resizes
from tests.simulation.scenarios.result import Result, Scenario
from tests.simulation.scenarios.stock import run_stock
from tests.simulation.scenarios.transactions import run_transactions
from tests.support.every_yield import every_yield

SHARE = 0.5
"""Of the seeds, those whose runs give way at each yield."""


def gives_way(seed: int) -> bool:
    """Whether long work gives way at each yield in the runs of a seed."""
    return random.Random(f"{seed}/pace").random() < SHARE


def run_at_its_pace(scenario: Scenario, seed: int) -> Result:
    """Run a scenario at the pace of its seed."""
    if not gives_way(seed):
        return scenario(seed)
    with every_yield():
        result = scenario(seed)
    result.counts["run at each yield"] = 1
    return result


SCENARIOS: dict[str, Scenario] = {
    name: partial(run_at_its_pace, scenario)
    for name, scenario in {
        "autoscaling": run_autoscaling,
        "broker": run_broker,
        "cluster": run_cluster,
        "compacted": run_compacted,
        "log": run_log,
        "moves": run_moves,
        "resizes": run_resizes,
        "stock": run_stock,
        "transactions": run_transactions,
    }.items()
}

__all__ = ["SCENARIOS", "Result", "Scenario"]
