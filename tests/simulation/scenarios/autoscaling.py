"""The scenario of resizes with a controller that follows the load (KIP-253, autoscaling).

Owns the course of such a run. What its clients do: see ``cluster.autoscaled``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cluster import faults
from tests.simulation.cluster.autoscaled import CONFIGS, Autoscaled, Mover
from tests.simulation.scenarios.course import Course
from tests.simulation.scenarios.resizes import ResizesRun
from tests.simulation.scenarios.result import Result

SECONDS, END_SECONDS = 44.0, 52.0
"""Longer than others: a rate is that of ten seconds."""


def autoscaled_course(seed: int) -> Course:
    """Return the course of a seed."""
    rng = random.Random(f"{seed}/of autoscaling")
    return Course(
        seconds=SECONDS,
        end_seconds=END_SECONDS,
        # A leader reports a rate only after a while in peace.
        pause=(0.2, 6.0),
        mixed=False,
        weights={name: share for name, share in faults.ALL.items() if name != "flip_bits"},
        resizes=(3.0, 10.0),
        brokers=rng.choice((3, 3, 4)),
    )


class AutoscaledRun(ResizesRun):
    """One run of the scenario."""

    elastic_kind = Autoscaled
    resizer_kind = Mover
    resizer: Mover

    def __init__(
        self, seed: int, course: Course | None = None, enough: Callable[[str], bool] | None = None
    ) -> None:
        super().__init__(seed, course or autoscaled_course(seed), enough)

    def _topic_configs(self) -> dict[str, str]:
        return {**super()._topic_configs(), **CONFIGS}

    async def _end_resizes(self) -> None:
        await super()._end_resizes()
        await self.resizer.end_autoscaling()


def run_autoscaling(seed: int) -> Result:
    """Run the scenario once."""
    return replace(AutoscaledRun(seed).run(), scenario="autoscaling")
