"""The cluster scenario with a mover in every run: partitions move while faults strike (KIP-455).

Owns nothing but that choice; a tenth of the seeds of ``cluster`` have a mover as well.
"""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.scenarios.cluster import ClusterRun
from tests.simulation.scenarios.course import moving_course
from tests.simulation.scenarios.result import Result


def run_moves(seed: int) -> Result:
    """Run the scenario once."""
    return replace(ClusterRun(seed, moving_course(seed)).run(), scenario="moves")
