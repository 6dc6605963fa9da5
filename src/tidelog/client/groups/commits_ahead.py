"""Look-ups of what is left to read after the commits that a member's gates wait for.

Owns the tasks: one for each partition, begun at most once a second. Not what an answer proves: see
``client.fetching.left_to_read``. Not what follows for gates: see ``topic_gates``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fetching.left_to_read import (
    FIRST_BYTES,
    MOST_QUESTIONS,
    PARTITION_BYTES,
    first_readable,
)
from tidelog.model.topics import TopicPartition
from tidelog.runtime.tasks import call_off

logger = logging.getLogger(__name__)

AGAIN_MS = 1_000
"""How long a partition is not asked about after its last answer: most members commit meanwhile."""

ANSWER_MS = 2_000

Take = Callable[[TopicPartition, int, int], None]
"""Takes a partition and two offsets: no committed record is left to read between them."""


class CommitsAhead:
    """The look-ups of one member; ``want`` begins them, ``stop`` ends them.

    ``broke`` is called with a task that has failed by a bug.
    """

    def __init__(
        self, cluster: Cluster, take: Take, broke: Callable[[asyncio.Task[None]], None]
    ) -> None:
        self._cluster = cluster
        self._take = take
        self._broke = broke
        self._running: dict[TopicPartition, asyncio.Task[None]] = {}

    def want(self, positions: Mapping[TopicPartition, int]) -> None:
        """Ask from these positions on, except where the last question was just now."""
        for tp, position in positions.items():
            if tp not in self._running:
                task = asyncio.get_running_loop().create_task(self._ask(tp, position))
                task.add_done_callback(self._broke)
                self._running[tp] = task

    async def stop(self) -> None:
        """End all of them."""
        await call_off(list(self._running.values()))
        self._running.clear()

    async def _ask(self, tp: TopicPartition, position: int) -> None:
        end, size = position, FIRST_BYTES
        for _ in range(MOST_QUESTIONS):
            failed: dict[TopicPartition, ClientError] = {}
            reached = await first_readable(
                self._cluster, {tp: end}, timeout_ms=ANSWER_MS, failed=failed, partition_bytes=size
            )
            for error in failed.values():
                logger.debug("%s: what is left to read is not known: %s", tp, error)
            if reached.get(tp, end) <= end:
                break
            end, size = reached[tp], PARTITION_BYTES
            self._take(tp, position, end)
        await asyncio.sleep(AGAIN_MS / 1000)
        del self._running[tp]
