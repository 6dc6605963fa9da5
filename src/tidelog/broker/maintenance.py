"""What a broker does to its logs by the clock: retention, flushing, checkpoints, compaction.

Owns when; the logs own what. Each round goes through the hosted partitions one at a time and lets
the loop run between them, so that no request waits for more than one partition's work. Nothing is
done to a replica that the controller has not spoken of in this life of the broker: its topic's
configuration is not known before, and the default retention could delete what must stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING

from tidelog.model.topic_configs import MAX_INT64
from tidelog.records.record import CorruptRecords
from tidelog.storage.cleaner import compact, discard_cleaned
from tidelog.storage.compaction import CompactionPlan, plan_compaction
from tidelog.storage.swap import apply_compaction

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import HostedPartition

logger = logging.getLogger(__name__)

LONGEST_FLUSH_TICK_MS = 1_000
"""``flush.ms`` is looked at this often at least, whatever log.flush.scheduler.interval.ms says."""

REMOVAL_TICK_MS = 1_000
"""How often is looked for what ``file.delete.delay.ms`` and the like let go of."""

REMOVED_AT_ONCE = 8
"""Segments that retention takes out of a log before others have a turn."""


class Maintenance:
    """The timers of one broker. Made once, started once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpoint_now = asyncio.Event()
        self._retention_now = asyncio.Event()
        self._cleaner_now = asyncio.Event()
        self._under_way: set[asyncio.Future[None]] = set()
        """What threads do to directories; goes on when the task that waits for it is cancelled."""
        self._uncleanable: dict[HostedPartition, tuple[int, int]] = {}
        """Generation and start of logs with a damaged batch in what is to be compacted."""

    def start(self) -> None:
        """Begin; ends with ``stop``."""
        configs = self._broker.configs
        checkpoint_ms = min(
            configs.replica_high_watermark_checkpoint_interval_ms,
            configs.log_flush_offset_checkpoint_interval_ms,
            configs.log_flush_start_offset_checkpoint_interval_ms,
        )
        flush_ms = min(configs.log_flush_scheduler_interval_ms, LONGEST_FLUSH_TICK_MS)
        retention_ms = configs.log_retention_check_interval_ms
        self._every("retention", retention_ms, self._retention_now, self.look_at_retention)
        self._every("removals", REMOVAL_TICK_MS, asyncio.Event(), self.remove)
        self._every("checkpoints", checkpoint_ms, self._checkpoint_now, self.checkpoint)
        self._every("flush", flush_ms, asyncio.Event(), self._flush)
        if configs.log_cleaner_enable:
            self._every("cleaner", self._cleaner_backoff_ms, self._cleaner_now, self.clean)

    async def stop(self) -> None:
        """End all timers; what a thread does to a directory for one of them is finished first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._under_way:
            await asyncio.wait(self._under_way)

    def checkpoint_soon(self) -> None:
        """Write the checkpoints without waiting for their turn."""
        self._checkpoint_now.set()

    def configs_changed(self) -> None:
        """Look at retention and compaction without waiting for their turn."""
        self._retention_now.set()
        self._cleaner_now.set()

    def _cleaner_backoff_ms(self) -> int:
        of_file = self._broker.configs.log_cleaner_backoff_ms
        return max(1, self._broker.topic_configs.number("log.cleaner.backoff.ms", of_file))

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
                logger.exception("maintenance (%s) failed; it is tried again in its turn", name)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        doing = loop.run_in_executor(self._broker.seams.threads, work)
        self._under_way.add(doing)
        doing.add_done_callback(self._under_way.discard)
        await asyncio.shield(doing)

    def _assigned(self) -> list[HostedPartition]:
        return [each for each in self._broker.partitions.all() if each.assigned]

    async def look_at_retention(self) -> None:
        """Remove what retention says, renamed files that are due, and silent producers."""
        now_ms = self._broker.clock.wall_ms()
        silence_ms = self._broker.topic_configs.number(
            "producer.id.expiration.ms", self._broker.configs.producer_id_expiration_ms
        )
        for partition in self._assigned():
            partition.log.producer_expiration_ms = silence_ms
            while True:
                before = partition.start_offset
                said = partition.log.housekeep(now_ms, at_most=REMOVED_AT_ONCE)
                if partition.start_offset > before:
                    partition.waiting.start_moved()
                await asyncio.sleep(0)
                if said is None:
                    break
                logger.info("%s", said)
                # What was renamed is removed once the renaming is durable.
                self._broker.commit.want(partition, closed_only=True)
        self._broker.repairs.look()

    async def remove(self) -> None:
        """Remove the directories of deleted and stale replicas whose delay is over.

        Grows with the directories that wait.
        """
        for directory in self._broker.directories:
            removal = None if directory.failed else directory.due_removal()
            if removal is not None:
                await self._in_thread(removal.run)
                directory.removed(removal)

    async def _flush(self) -> None:
        """Sync logs whose ``flush.ms`` is over, and closed segments that were never synced."""
        now_ms = self._broker.clock.wall_ms()
        commit = self._broker.commit
        for partition in self._assigned():
            log = partition.log
            if log.synced_end_offset >= log.end_offset:
                log.last_sync_ms = now_ms
            elif log.configs.flush_ms < MAX_INT64 and (
                now_ms - log.last_sync_ms >= log.configs.flush_ms
            ):
                log.last_sync_ms = now_ms
                commit.want(partition)
            elif log.segments[-1].base_offset > log.synced_end_offset:
                commit.want(partition, closed_only=True)

    async def clean(self) -> None:
        """Compact the dirtiest logs, one after another, until none is dirty enough."""
        done: set[HostedPartition] = set()
        known, self._uncleanable = self._uncleanable, {}
        for partition in self._assigned():
            if known.get(partition) == _state_of(partition):
                # Its damage is still there: not read again and again (until a restart, at most).
                self._uncleanable[partition] = known[partition]
                done.add(partition)
        while True:
            now_ms = self._broker.clock.wall_ms()
            dirtiest: tuple[float, HostedPartition, CompactionPlan] | None = None
            for partition in self._assigned():
                if partition in done or not partition.log.configs.compacted:
                    continue
                plan = plan_compaction(partition.log, now_ms)
                if plan is not None and (dirtiest is None or plan.dirty_ratio > dirtiest[0]):
                    dirtiest = (plan.dirty_ratio, partition, plan)
            if dirtiest is None:
                return
            _, partition, plan = dirtiest
            if not await self._compact(partition, plan):
                done.add(partition)

    async def _compact(self, partition: HostedPartition, plan: CompactionPlan) -> bool:
        """Rewrite in a helper process, swap in here; False when it came to nothing."""
        seams = self._broker.seams
        state = _state_of(partition)
        try:
            result = await asyncio.get_running_loop().run_in_executor(
                seams.processes, compact, seams.disk, plan
            )
        except (CorruptRecords, OSError, BrokenExecutor) as error:
            logger.error("%s cannot be compacted: %s", partition.key, error)
            if isinstance(error, CorruptRecords):
                self._uncleanable[partition] = state
            self._give_up_compaction(partition, plan, error)
            return False
        said = apply_compaction(partition.log, result, self._broker.clock.wall_ms())
        if said is not None:
            logger.info("%s", said)
            self._broker.commit.want(partition, closed_only=True)
        return said is not None and result.clean_end_offset > plan.first_dirty_offset

    def _give_up_compaction(
        self, partition: HostedPartition, plan: CompactionPlan, error: Exception
    ) -> None:
        """Leave no half-made files; a failed write or fsync is final here too (promise 25)."""
        log = partition.log
        if log.closed:
            return  # deleted meanwhile, its directory renamed
        # A file that is missing was removed by retention, or the log was cut: planned anew.
        # A helper that was killed is replaced (``HelperProcesses``).
        harmless = isinstance(error, FileNotFoundError | CorruptRecords | BrokenExecutor)
        if isinstance(error, OSError) and not harmless and not log.resources.is_full(error):
            log.resources.fail(f"compaction of {log.path} failed: {error}")
            return
        discard_cleaned(self._broker.seams.disk, plan)

    async def checkpoint(self) -> None:
        """Write recovery points, high watermarks, log starts and the cleaner's offsets."""
        for directory in self._broker.directories:
            if directory.failed is not None:
                continue
            checkpoint = directory.checkpoint()
            if checkpoint is not None:
                await self._in_thread(checkpoint.run)
                directory.checkpointed(checkpoint)


def _state_of(partition: HostedPartition) -> tuple[int, int]:
    """Return what changes when a log is cut, or loses its oldest records."""
    return partition.log.generation, partition.log.start_offset
