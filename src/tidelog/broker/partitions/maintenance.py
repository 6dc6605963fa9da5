"""Periodic tasks on a broker's logs: retention, flush, checkpoints, compaction.

Owns their intervals. Not the work on one log: see ``storage.log``. A task takes the hosted
partitions one at a time and yields to the event loop between them, so that a request waits for the
work of one partition at most. Retention, flush and configurations skip replicas without a
LeaderAndIsr since the start of the broker: their topic's configuration is unknown, and the default
retention could delete records that must stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.broker.partitions.cleaning import Cleaning
from tidelog.model.configs.types import MAX_INT64
from tidelog.runtime import pace
from tidelog.runtime.tasks import call_off
from tidelog.storage.log.forgetting import forgotten_beyond
from tidelog.storage.log.producers import MAX_PRODUCERS_OF_ALL

if TYPE_CHECKING:
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.broker.partitions.repairs import Repairs
    from tidelog.broker.partitions.shortages import Shortages
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

LONGEST_FLUSH_TICK_MS = 1_000
"""Longest interval of the ``flush.ms`` checks; log.flush.scheduler.interval.ms may be less."""

REMOVAL_TICK_MS = 1_000
"""Interval of the search for files whose ``file.delete.delay.ms`` or other delay is over."""

ROOM_TICK_MS = 1_000
"""Interval of the question to the file systems how much room they have."""

PRODUCERS_TICK_MS = 1_000
"""Interval of the check of the number of idempotent producers in memory."""

KEEP_TICK_MS = 60_000
"""Interval of the search for replicas without the topic's present configurations on disk."""

REMOVED_AT_ONCE = 8
"""Segments that retention removes from a log in one change of it: appends wait meanwhile."""


class Maintenance:
    """The periodic tasks of one broker. Started once."""

    def __init__(
        self,
        partitions: Partitions,
        log_work: LogWork,
        repairs: Repairs,
        shortages: Shortages,
        configs: ServerConfigs,
        seams: Seams,
        expire_sessions: Callable[[int], None],
    ) -> None:
        """``expire_sessions`` ends the fetch sessions that are unused at a monotonic time."""
        self._partitions = partitions
        self._log_work = log_work
        self._repairs = repairs
        self._shortages = shortages
        self._configs = configs
        self._dynamic = partitions.configs
        self._threads = seams.threads
        self._clock = seams.clock
        self._expire_sessions = expire_sessions
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpoint_now = asyncio.Event()
        self._retention_now = asyncio.Event()
        self._cleaner_now = asyncio.Event()
        self._keep_now = asyncio.Event()
        self._under_way: set[asyncio.Future[Any]] = set()
        """Work of threads on directories; it continues when the task that waits is cancelled."""
        self.cleaning = Cleaning(partitions, log_work, configs, seams)

    def start(self) -> None:
        """Start the tasks; ``stop`` ends them."""
        configs = self._configs
        checkpoint_ms = min(
            configs.replica_high_watermark_checkpoint_interval_ms,
            configs.log_flush_offset_checkpoint_interval_ms,
            configs.log_flush_start_offset_checkpoint_interval_ms,
        )
        flush_ms = min(configs.log_flush_scheduler_interval_ms, LONGEST_FLUSH_TICK_MS)
        retention_ms = configs.log_retention_check_interval_ms
        self._every("retention", retention_ms, self._retention_now, self.check_retention)
        self._every("removals", REMOVAL_TICK_MS, asyncio.Event(), self.remove)
        self._every("room", ROOM_TICK_MS, asyncio.Event(), self.check_room)
        self._every("producers", PRODUCERS_TICK_MS, asyncio.Event(), self.check_producers)
        self._every("checkpoints", checkpoint_ms, self._checkpoint_now, self.checkpoint)
        self._every("flush", flush_ms, asyncio.Event(), self._flush)
        self._every("configurations", KEEP_TICK_MS, self._keep_now, self.keep_configs)
        if configs.log_cleaner_enable:
            self._every("cleaner", self.cleaning.backoff_ms, self._cleaner_now, self.cleaning.clean)

    async def stop(self) -> None:
        """End all tasks, then wait for the work of threads on directories."""
        await call_off(self._tasks)
        if self._under_way:
            await asyncio.wait(self._under_way)

    def checkpoint_soon(self) -> None:
        """Write the checkpoints now, not after the interval."""
        self._checkpoint_now.set()

    def configs_changed(self) -> None:
        """Run the tasks that depend on configurations now, not after their intervals."""
        self._retention_now.set()
        self._cleaner_now.set()
        self._keep_now.set()

    def _every(
        self,
        name: str,
        interval_ms: int | Callable[[], int],
        now: asyncio.Event,
        work: Callable[[], Awaitable[None]],
    ) -> None:
        task = asyncio.get_running_loop().create_task(
            self._repeat(name, interval_ms, now, work), name=f"maintenance-{name}"
        )
        self._tasks.append(task)

    async def _repeat(
        self,
        name: str,
        interval_ms: int | Callable[[], int],
        now: asyncio.Event,
        work: Callable[[], Awaitable[None]],
    ) -> None:
        while True:
            wait_ms = interval_ms if isinstance(interval_ms, int) else interval_ms()
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await now.wait()
            except TimeoutError:
                pass
            now.clear()
            try:
                await work()
            except Exception:
                logger.exception(
                    "maintenance (%(work)s) failed; the next attempt follows after the interval",
                    {"work": name},
                )

    async def _in_thread(self, work: Callable[[], Found]) -> Found:
        loop = asyncio.get_running_loop()
        doing = loop.run_in_executor(self._threads, work)
        self._under_way.add(doing)
        doing.add_done_callback(self._under_way.discard)
        return await asyncio.shield(doing)

    def _assigned(self) -> list[HostedPartition]:
        return [hosted for hosted in self._partitions.all() if hosted.assigned]

    async def check_retention(self) -> None:
        """Apply retention to the logs, and forget expired producers."""
        now_ms = self._clock.wall_ms()
        silence_ms = self._dynamic.number(
            "producer.id.expiration.ms", self._configs.producer_id_expiration_ms
        )
        turn = pace.Turn(self._clock)
        for partition in self._assigned():
            partition.log.forget_producers_after(silence_ms)
            while True:
                before = partition.start_offset
                # One change of a log at a time: without this wait the log would be skipped.
                await self._log_work.until_free(partition.log)
                try:
                    work = partition.log.housekeeping(now_ms, at_most=REMOVED_AT_ONCE)
                    line = await self._log_work.run(partition.log, work)
                except Exception:
                    # An error of one log must not stop retention in the others.
                    logger.exception(
                        "%(partition)s: retention failed; tried again later",
                        {"partition": partition.key},
                    )
                    line = None
                if partition.start_offset > before:
                    partition.waiting.start_moved()
                await turn.pause()
                if partition.log.snapshots:
                    # A snapshot is written before retention removes the records that it covers.
                    self._partitions.commit.want(partition)
                if line is None:
                    break
                logger.info("%s", line)
                # The renamed files are removed after their delay, once the rename is synced.
                self._partitions.commit.want(partition, closed_only=True)

    async def check_room(self) -> None:
        """Find the log directories without room, which heartbeats report."""
        free = await self._in_thread(self._shortages.measured)
        self._shortages.check(free)

    async def check_producers(self) -> None:
        """Forget the longest idle producers when all replicas together remember too many.

        Any client may send a new producer id with each batch, in each partition.
        """
        states = [partition.log.producers for partition in self._partitions.all()]
        await pace.run(forgotten_beyond(MAX_PRODUCERS_OF_ALL, states), self._clock)

    async def keep_configs(self) -> None:
        """Write the topics' own configurations to replicas without them, for the next start."""
        turn = pace.Turn(self._clock)
        for topic, hosted in list(self._partitions.by_topic.items()):
            own = self._dynamic.own(topic)
            for partition in list(hosted.values()):
                log = partition.log
                if self._partitions.get(topic, partition.partition) is not partition:
                    # It was stopped or replaced since: its end is no change to store.
                    continue
                if partition.assigned and await self._log_work.run(log, log.keeping_configs(own)):
                    self._partitions.commit.want(partition, closed_only=True)
                await turn.pause()

    async def remove(self) -> None:
        """Remove the files whose delay is over: removed segments, deleted and quarantined replicas.
        Also end unused fetch sessions, check which damaged replicas are rebuilt, and write fences
        that a full disk refused.

        O(files that are due, sessions that end, replicas being rebuilt, fences unwritten).
        """
        self._expire_sessions(self._clock.monotonic_ms())
        self._repairs.check()
        self._partitions.write_fences_again()
        for directory in self._partitions.directories:
            removal = None if directory.failed else directory.due_removal()
            if removal is not None:
                await self._in_thread(removal.run)
                directory.removed(removal)
                for sentence in removal.kept:
                    logger.warning("%s", sentence)

    async def _flush(self) -> None:
        """Sync logs whose ``flush.ms`` is over, and closed segments that were never synced."""
        now_ms = self._clock.wall_ms()
        commit = self._partitions.commit

        def flush(partition: HostedPartition) -> None:
            log = partition.log
            if not partition.assigned:
                return
            if log.synced_end_offset >= log.end_offset:
                log.last_sync_ms = now_ms
            elif log.configs.flush_ms < MAX_INT64 and (
                now_ms - log.last_sync_ms >= log.configs.flush_ms
            ):
                log.last_sync_ms = now_ms
                commit.want(partition)
            elif log.segments[-1].base_offset > log.synced_end_offset:
                commit.want(partition, closed_only=True)

        await self._partitions.for_each(flush, self._clock)

    async def checkpoint(self) -> None:
        """Write recovery points, high watermarks, log starts and the cleaner's offsets."""
        for directory in self._partitions.directories:
            if directory.failed is not None:
                continue
            checkpoint = await self._log_work.run(None, directory.checkpoint())
            if checkpoint is not None and directory.failed is None:
                await self._in_thread(checkpoint.run)
                directory.checkpointed(checkpoint)
