"""A compacted topic that grows and shrinks under faults (KIP-253, promise 12).

Owns the course of such a run: only this topic and its clients, and at the end a fresh reader that
must find the newest value of each key. What its clients do: see ``cluster.compacted``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cluster.compacted import CLEANER, CONFIGS, Compacted, GrowingFirst
from tests.simulation.cluster.elastic import NAME
from tests.simulation.kernel.loop import START_SECONDS
from tests.simulation.scenarios.alone import AloneRun, course_alone
from tests.simulation.scenarios.cluster import REST_SECONDS
from tests.simulation.scenarios.course import Course
from tests.simulation.scenarios.result import Result

CLEANING_SECONDS = 4.0
"""Until the last segments are closed and cleaned, and their deletions have had their time."""

GROWING_SHARE = 0.6
"""Of the time of the faults, the part in which the topic only grows."""


class CompactedRun(AloneRun):
    """One run of the scenario."""

    elastic_kind = Compacted
    resizer_kind = GrowingFirst
    elastic: Compacted
    resizer: GrowingFirst

    def __init__(
        self, seed: int, course: Course | None = None, enough: Callable[[str], bool] | None = None
    ) -> None:
        rng = random.Random(f"{seed}/of compaction")
        super().__init__(seed, course or course_alone(rng), enough)
        growing = self.course.seconds * GROWING_SHARE
        self.disks.compacted.add(NAME)
        self.resizer.growing_until = START_SECONDS + growing

    def _configs(self) -> dict[str, str]:
        return {**super()._configs(), **CLEANER}

    def _topic_configs(self) -> dict[str, str]:
        return CONFIGS

    async def _look_at_the_end(self) -> None:
        await asyncio.sleep(CLEANING_SECONDS)
        try:
            await self.elastic.read_afresh(REST_SECONDS)
        except TimeoutError:
            self.found.append(f"recovery_is_bounded: a fresh reader needs {REST_SECONDS} s")


def run_compacted(seed: int) -> Result:
    """Run the scenario once."""
    return replace(CompactedRun(seed).run(), scenario="compacted")
