"""The scenarios by name. Owns the table; each scenario is a function of a seed."""

from tests.simulation.scenarios.autoscaling import run_autoscaling
from tests.simulation.scenarios.broker import run_broker
from tests.simulation.scenarios.cluster import run_cluster
from tests.simulation.scenarios.compacted import run_compacted
from tests.simulation.scenarios.log import run_log
from tests.simulation.scenarios.moves import run_moves
from tests.simulation.scenarios.resizes import run_resizes
from tests.simulation.scenarios.result import Result, Scenario
from tests.simulation.scenarios.stock import run_stock

SCENARIOS: dict[str, Scenario] = {
    "autoscaling": run_autoscaling,
    "broker": run_broker,
    "cluster": run_cluster,
    "compacted": run_compacted,
    "log": run_log,
    "moves": run_moves,
    "resizes": run_resizes,
    "stock": run_stock,
}

__all__ = ["SCENARIOS", "Result", "Scenario"]
