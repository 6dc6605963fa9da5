"""The copies of this broker: which targets of reassignments are fetched now (KIP-455).

Owns when a target begins to fetch, and what its source says of its size. Not the order: see
`replication.copying`. Not the fetches: see ``source_fetcher``. A target that has caught up fetches
on without a place, until it joins the ISR; one whose directory is full or failed makes no progress,
so that its place goes to the next. Below level 1.2 no command names targets: all fetch at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.model.api_keys import ApiKey
from tidelog.model.topics import TopicPartition, by_topic
from tidelog.protocol import messages
from tidelog.replication.copying import CopyQueue
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.metadata.configurations import ConfigCache
    from tidelog.broker.metadata.other_brokers import OtherBrokers
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

PARALLEL_COPIES = "reassignment.parallel.copies"
CHECKED_MS = 1_000
"""How often copies without progress are looked for, while others wait."""

SIZED_AT_ONCE = 1_000
"""Partitions of one DescribeLogDirs."""

SIZES_VERSION = 1


class Copies:
    """The copies of one broker."""

    def __init__(
        self,
        configs: ServerConfigs,
        dynamic: ConfigCache,
        clock: Clock,
        others: OtherBrokers,
    ) -> None:
        self._configs = configs
        self._dynamic = dynamic
        self._clock = clock
        self._others = others
        self._queue: CopyQueue[TopicPartition] = CopyQueue()
        self._unsized: dict[TopicPartition, int] = {}
        """New copies, with their sources: they wait until their sizes are known."""
        self._caught_up: set[TopicPartition] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.begin: Callable[[TopicPartition], None] = _do_nothing
        """Called when a copy may fetch from now on."""
        self.end: Callable[[TopicPartition], None] = _do_nothing
        """Called when a copy has lost its place."""

    @property
    def waiting(self) -> int:
        """How many targets wait for a place."""
        return self._queue.waiting + len(self._unsized)

    @property
    def running(self) -> int:
        """How many targets have a place."""
        return self._queue.running

    def may_fetch(self, partition: HostedPartition) -> bool:
        """Whether a follower may fetch now; a target that may not waits for ``begin``."""
        key, state = partition.key, partition.state
        node_id = self._configs.node_id
        if node_id not in state.targets or node_id in state.isr:
            self.forget(key)
            return True
        if key in self._caught_up or self._queue.has_place(key):
            return True
        if key not in self._queue:
            self._unsized[key] = state.leader
            self._wake()
        return False

    def forget(self, key: TopicPartition) -> None:
        """A partition is no target of this broker any more, or has joined the ISR."""
        self._unsized.pop(key, None)
        self._caught_up.discard(key)
        self._free(key)

    def took(self, partition: HostedPartition, size: int, leader_mark: int) -> None:
        """Records of a partition were appended: of a copy that is progress, perhaps its end."""
        key = partition.key
        if not self._queue.has_place(key):
            return
        if partition.log.end_offset >= leader_mark:
            self._caught_up.add(key)
            self._free(key)
        elif size:
            self._queue.progressed(key, self._clock.monotonic_ms())

    async def close(self) -> None:
        """End the task."""
        if self._task is not None:
            await call_off([self._task])

    def _free(self, key: TopicPartition) -> None:
        if key in self._queue:
            self._queue.remove(key)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._admit(), name="copies")

    async def _admit(self) -> None:
        """Give places after each change, and look for copies without progress."""
        while True:
            with contextlib.suppress(TimeoutError):
                timeout_s = CHECKED_MS / 1000 if self._queue.waiting else None
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._add_new()
                self._turn()
            except Exception:
                # A bug with one copy must not keep the others waiting for ever.
                logger.exception("the copies of this broker could not be ordered")

    def _turn(self) -> None:
        limit = max(
            1, self._dynamic.number(PARALLEL_COPIES, self._configs.reassignment_parallel_copies)
        )
        turn = self._queue.turn(limit, self._clock.monotonic_ms())
        for key in turn.end:
            logger.warning(
                "the copy of %(partition)s makes no progress: others go first", {"partition": key}
            )
            self.end(key)
        for key in turn.begin:
            self.begin(key)

    async def _add_new(self) -> None:
        """Let new copies wait in the queue, when their sources have said how large they are."""
        new = dict(self._unsized)
        sources: dict[int, list[TopicPartition]] = {}
        for key, leader in new.items():
            sources.setdefault(leader, []).append(key)
        asked = [self._sizes(leader, keys) for leader, keys in sources.items()]
        sizes: dict[TopicPartition, int] = {}
        for of_leader in await asyncio.gather(*asked):
            sizes.update(of_leader)
        for key in new:
            if self._unsized.pop(key, None) is not None:
                self._queue.add(key, sizes.get(key, 0))

    async def _sizes(self, leader: int, keys: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Ask a source for the sizes of some partitions; those that it does not say are absent."""
        sizes: dict[TopicPartition, int] = {}
        if len(keys) < 2:
            return sizes  # there is no order to decide
        parts = (keys[i : i + SIZED_AT_ONCE] for i in range(0, len(keys), SIZED_AT_ONCE))
        requests = map(_request, parts)
        for answer in await self._others.ask(
            leader, "copies", ApiKey.DESCRIBE_LOG_DIRS, SIZES_VERSION, requests
        ):
            sizes.update(_sizes_in(answer))
        return sizes


def _do_nothing(_: TopicPartition) -> None:
    """Without followers no copy begins."""


def _request(keys: list[TopicPartition]) -> messages.DescribeLogDirsRequest:
    request = messages.DescribeLogDirsRequest
    return request(
        topics=[
            request.DescribableLogDirTopic(name, [tp.partition for tp in some])
            for name, some in by_topic(keys).items()
        ]
    )


def _sizes_in(answer: messages.DescribeLogDirsResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, part.partition_index): part.partition_size
        for result in answer.results
        for topic in result.topics
        for part in topic.partitions
        if not part.is_future_key
    }
