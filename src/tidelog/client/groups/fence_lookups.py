"""Look-ups of the fences that a member's gates wait for: each leader is asked by itself.

Owns the tasks, one for each leader of a topic's partitions. A leader that is silent holds up only
the gates that need its fences, and no report of a position. Not what follows from fences: see
``topic_gates``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fences import DescribedFences, describe_fences
from tidelog.model.topics import TopicPartition
from tidelog.runtime.tasks import call_off

logger = logging.getLogger(__name__)

AGAIN_MS = 50
"""The shortest time between two look-ups of one partition: its fence may not be committed yet."""

FENCES_TIMEOUT_MS = 2_000

Take = Callable[[str, dict[int, DescribedFences]], None]
"""Takes the fences of some partitions of a topic, once they are known."""


class FenceLookups:
    """The look-ups of one member; ``want`` begins them, ``stop`` ends them.

    ``again`` is called when a look-up has ended, so that what is still unknown is wanted again, and
    ``broke`` with a task that has failed by a bug.
    """

    def __init__(
        self,
        cluster: Cluster,
        take: Take,
        again: Callable[[], None],
        broke: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._cluster = cluster
        self._take = take
        self._ask_on = again
        self._broke = broke
        self._running: dict[TopicPartition, asyncio.Task[None]] = {}

    def want(self, unknown: Mapping[str, Iterable[int]]) -> None:
        """Look up the fences of these partitions, by topic, except where one runs already."""
        parts: dict[tuple[str, int | None], list[TopicPartition]] = {}
        for name, indexes in unknown.items():
            for index in indexes:
                partition = TopicPartition(name, index)
                if partition not in self._running:
                    state = self._cluster.view.partition(partition)
                    leader = None if state is None else state.leader
                    parts.setdefault((name, leader), []).append(partition)
        for (name, _), places in parts.items():
            task = asyncio.get_running_loop().create_task(self._of_leader(name, places))
            task.add_done_callback(self._broke)
            self._running.update(dict.fromkeys(places, task))

    async def stop(self) -> None:
        """End all of them."""
        await call_off(list(dict.fromkeys(self._running.values())))
        self._running.clear()

    async def _of_leader(self, name: str, places: list[TopicPartition]) -> None:
        failed: dict[TopicPartition, ClientError] = {}
        described = await describe_fences(
            self._cluster, places, timeout_ms=FENCES_TIMEOUT_MS, failed=failed
        )
        for partition, error in failed.items():
            logger.debug("%s: its fences are not known: %s", partition, error)
        self._take(name, {partition.partition: fences for partition, fences in described.items()})
        await asyncio.sleep(AGAIN_MS / 1000)
        for partition in places:
            del self._running[partition]
        self._ask_on()
