"""Stock clients of a topic that grows and shrinks under faults (KIP-253, promise 13).

Owns the course of such a run. What its clients do: see ``cluster.stock``. What they write and read
is complete, and what is refused is not there; its order is not promised.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cluster.stock import WithStock
from tests.simulation.scenarios.alone import AloneRun, course_alone
from tests.simulation.scenarios.course import Course
from tests.simulation.scenarios.result import Result


class StockRun(AloneRun):
    """One run of the scenario."""

    elastic_kind = WithStock
    are_aware = False

    def __init__(
        self, seed: int, course: Course | None = None, enough: Callable[[str], bool] | None = None
    ) -> None:
        rng = random.Random(f"{seed}/of stock clients")
        super().__init__(seed, course or course_alone(rng), enough)


def run_stock(seed: int) -> Result:
    """Run the scenario once."""
    return replace(StockRun(seed).run(), scenario="stock")
