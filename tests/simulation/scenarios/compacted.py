"""A compacted topic that grows and shrinks under faults (KIP-253, promise 12).

Owns the course of such a run: only this topic and its clients, and at the end a fresh reader that
must find the newest value of each key. What its clients do: see ``cluster.compacted``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cluster import faults
from tests.simulation.cluster.compacted import CLEANER, CONFIGS, Compacted, GrowingFirst
from tests.simulation.cluster.elastic import INITIAL, NAME
from tests.simulation.kernel.loop import START_SECONDS
from tests.simulation.scenarios.cluster import REST_SECONDS
from tests.simulation.scenarios.course import Course
from tests.simulation.scenarios.resizes import ResizesRun
from tests.simulation.scenarios.result import Result

SECONDS, END_SECONDS = 14.0, 18.0
CLEANING_SECONDS = 4.0
"""Until the last segments are closed and cleaned, and their deletions have had their time."""

GROWING_SHARE = 0.6
"""Of the time of the faults, the part in which the topic only grows."""


def compacted_course(seed: int) -> Course:
    """Return the course of a seed."""
    rng = random.Random(f"{seed}/of compaction")
    return Course(
        seconds=SECONDS,
        end_seconds=END_SECONDS,
        mixed=False,
        deletes=False,
        weights={name: share for name, share in faults.ALL.items() if name != "flip_bits"},
        pause=rng.choice(((0.1, 1.5), (0.5, 4.0))),
        resizes=rng.choice(((0.1, 1.5), (0.3, 3.0))),
        resizer_moves=0.1,
    )


class CompactedRun(ResizesRun):
    """One run of the scenario."""

    elastic_kind = Compacted
    resizer_kind = GrowingFirst
    elastic: Compacted
    resizer: GrowingFirst

    def __init__(
        self, seed: int, course: Course | None = None, enough: Callable[[str], bool] | None = None
    ) -> None:
        super().__init__(seed, course or compacted_course(seed), enough)
        growing = self.course.seconds * GROWING_SHARE
        self.disks.compacted.add(NAME)
        self.group.members.clear()  # of the other topics
        self.resizer.growing_until = START_SECONDS + growing

    def _configs(self) -> dict[str, str]:
        return {**super()._configs(), **CLEANER}

    async def _create_topics(self) -> None:
        await self.admin.create(NAME, INITIAL, 3, CONFIGS)

    def _start_clients(self) -> list[asyncio.Task[None]]:
        self._start_elastic()
        return []

    async def _come_to_rest(self) -> None:
        await self._rest_elastic()
        await self._until(self.faults.all_in_sync, "full ISRs", REST_SECONDS)
        await asyncio.sleep(CLEANING_SECONDS)
        try:
            await self.elastic.read_afresh(REST_SECONDS)
        except TimeoutError:
            self.found.append(f"recovery_is_bounded: a fresh reader needs {REST_SECONDS} s")
        self._judge()


def run_compacted(seed: int) -> Result:
    """Run the scenario once."""
    return replace(CompactedRun(seed).run(), scenario="compacted")
