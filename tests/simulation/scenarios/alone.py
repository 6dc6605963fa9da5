"""A topic that grows and shrinks under faults, without the other topics of ``cluster``: cheap.

Owns the course of such a run, and its end. Its clients are those of the scenarios that use it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.simulation.cluster import faults
from tests.simulation.cluster.elastic import INITIAL, NAME
from tests.simulation.scenarios.cluster import REST_SECONDS
from tests.simulation.scenarios.course import Course
from tests.simulation.scenarios.resizes import ResizesRun

SECONDS, END_SECONDS = 14.0, 18.0


def course_alone(rng: random.Random) -> Course:
    """Return a course of such a run."""
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


class AloneRun(ResizesRun):
    """One run with one topic."""

    def __init__(
        self, seed: int, course: Course | None, enough: Callable[[str], bool] | None
    ) -> None:
        super().__init__(seed, course, enough)
        self.group.members.clear()  # of the other topics

    async def _create_topics(self) -> None:
        await self.admin.create(NAME, INITIAL, 3, self._topic_configs())

    def _start_clients(self) -> list[asyncio.Task[None]]:
        self._start_elastic()
        return []

    async def _come_to_rest(self) -> None:
        await self._rest_elastic()
        await self._until(self.faults.all_in_sync, "full ISRs", REST_SECONDS)
        await self._look_at_the_end()
        self._judge()

    async def _look_at_the_end(self) -> None:
        """Look at more, when all is at rest."""
