"""Look-ups of what is left to read after the commits that a member's gates wait for.

Owns the tasks: one for the partitions of each leader, so that a silent one holds up no others; and
that a partition is asked about at most once a second. Not what an answer proves: see
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
    REQUEST_BYTES,
    first_readable,
)
from tidelog.model.topics import TopicPartition
from tidelog.runtime.tasks import call_off

logger = logging.getLogger(__name__)

AGAIN_MS = 1_000
"""How long a partition is not asked about after its last answer: most members commit meanwhile."""

ANSWER_MS = 2_000

MOST_TOGETHER = REQUEST_BYTES // FIRST_BYTES
"""Partitions of one request: each has room for its first answer."""

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
        self._asked: set[TopicPartition] = set()
        """Those of a task that runs."""
        self._running: set[asyncio.Task[None]] = set()

    def want(self, positions: Mapping[TopicPartition, int]) -> None:
        """Ask from these positions on, except where the last question was just now."""
        by_leader: dict[int | None, list[TopicPartition]] = {}
        for tp in positions:
            if tp not in self._asked:
                listed = self._cluster.view.partition(tp)
                leader = None if listed is None else listed.leader
                by_leader.setdefault(leader, []).append(tp)
        for group in by_leader.values():
            for start in range(0, len(group), MOST_TOGETHER):
                some = {tp: positions[tp] for tp in group[start : start + MOST_TOGETHER]}
                self._asked.update(some)
                task = asyncio.get_running_loop().create_task(self._ask(some))
                self._running.add(task)
                task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End all of them."""
        await call_off(list(self._running))
        self._running.clear()
        self._asked.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._broke(task)

    async def _ask(self, positions: Mapping[TopicPartition, int]) -> None:
        ends, size = dict(positions), FIRST_BYTES
        for _ in range(MOST_QUESTIONS):
            failed: dict[TopicPartition, ClientError] = {}
            crowded: set[TopicPartition] = set()
            reached = await first_readable(
                self._cluster,
                ends,
                timeout_ms=ANSWER_MS,
                failed=failed,
                partition_bytes=size,
                crowded=crowded,
            )
            for tp, error in failed.items():
                logger.debug("%s: what is left to read is not known: %s", tp, error)
            further = {tp: end for tp, end in reached.items() if end > ends[tp]}
            for tp, end in further.items():
                self._take(tp, positions[tp], end)
            # Those without room in this answer come first in the next one, which has room for one.
            left = {tp: end for tp, end in ends.items() if tp in crowded} | further
            if not left or not reached.keys() - crowded:
                break
            ends, size = left, PARTITION_BYTES
        await asyncio.sleep(AGAIN_MS / 1000)
        self._asked.difference_update(positions)
