"""Compaction of a broker's logs: the order of the logs, and the quarantine of those that fail.

Owns the rounds and the quarantine. Not which records are removed: see ``storage.compaction``. In a
round each log that is dirty enough has one turn, the dirtiest first, so that a busy log cannot keep
the others waiting; the next round follows while rounds make progress.

| failure of a log's compaction | what follows |
|---|---|
| a file is missing, no space, the helper process died | the next round tries again |
| any, and the log was truncated meanwhile | the next round tries again |
| a write or an fsync fails | its directory is out of service (promise 25) |
| any other (a damaged batch, an inconsistent record, a bug) | the log is quarantined |

A quarantined log (Kafka's ``uncleanable-partitions-count``) is not compacted until it is truncated,
its log start moves, or the broker restarts. It stays in service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tidelog.runtime.disk import Disk
from tidelog.runtime.turns import Pieces
from tidelog.storage.compaction.cleaner import compact, discard_cleaned
from tidelog.storage.compaction.plan import CompactionPlan, plan_compaction
from tidelog.storage.compaction.swap import applying

if TYPE_CHECKING:
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.runtime.seams import Seams
    from tidelog.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

PLANNED_AT_ONCE = 16
"""Logs that are examined between two yields to the event loop."""


class Cleaning:
    """The compaction of one broker. ``clean`` runs one at a time."""

    def __init__(self, partitions: Partitions, log_work: LogWork, seams: Seams) -> None:
        self._partitions = partitions
        self._log_work = log_work
        self._seams = seams
        self.older_values: Callable[[HostedPartition], Awaitable[bool]] = _none
        """Whether other partitions may have older values of a partition's keys: its tombstones are
        kept then (KIP-253)."""
        self._uncleanable: dict[HostedPartition, tuple[int, int]] = {}
        """Generation and start of quarantined logs."""

    def uncleanable(self) -> list[HostedPartition]:
        """Return the partitions whose logs are quarantined."""
        return list(self._uncleanable)

    async def clean(self) -> None:
        """Compact the logs that are dirty enough, in rounds, until a round makes no progress."""
        hosted = set(self._partitions.all())
        self._uncleanable = {
            partition: state
            for partition, state in self._uncleanable.items()
            if partition in hosted and state == _state_of(partition)
        }
        done: set[HostedPartition] = set()
        while True:
            got_on = False
            for partition in await self._dirty(done):
                keeps = await self.older_values(partition)
                plan = self._plan(partition, keeps_tombstones=keeps)
                if plan is not None and await self._compact(partition, plan):
                    got_on = True
                else:
                    done.add(partition)
            if not got_on:
                return

    async def _dirty(self, done: set[HostedPartition]) -> list[HostedPartition]:
        """Return the logs that are dirty enough, the dirtiest first. O(all segments)."""
        found: list[tuple[float, int, HostedPartition]] = []
        for count, partition in enumerate(list(self._partitions.all()), 1):
            if not count % PLANNED_AT_ONCE:
                await asyncio.sleep(0)
            if partition.assigned and partition not in done:
                plan = self._plan(partition)
                if plan is not None:
                    found.append((-plan.dirty_ratio, count, partition))
        return [partition for _, _, partition in sorted(found)]

    def _plan(
        self, partition: HostedPartition, *, keeps_tombstones: bool = True
    ) -> CompactionPlan | None:
        log = partition.log
        if partition in self._uncleanable or not log.configs.compacted:
            return None
        now_ms = self._seams.clock.wall_ms()
        try:
            log.roll_overdue(now_ms)
            return plan_compaction(log, now_ms, keeps_tombstones=keeps_tombstones)
        except Exception as error:
            if not (isinstance(error, OSError) and log.resources.is_full(error)):
                self._quarantine(partition, error)
            return None

    async def _compact(self, partition: HostedPartition, plan: CompactionPlan) -> bool:
        """Rewrite in a helper process, swap the files in a thread; False without a change."""
        # A move to another directory may give the partition a new log meanwhile: the plan's files
        # are those of this one.
        seams, log, work = self._seams, partition.log, self._log_work
        try:
            result = await asyncio.get_running_loop().run_in_executor(
                seams.processes, compact, seams.disk, plan
            )
            await work.until_free(log)
            said = await work.run(log, applying(log, result, self._seams.clock.wall_ms()))
        except Exception as error:
            await self._give_up(partition, log, plan, error)
            return False
        if said is not None:
            logger.info("%s", said)
            self._partitions.commit.want(partition, closed_only=True)
        return said is not None and result.clean_end_offset > plan.first_dirty_offset

    async def _give_up(
        self,
        partition: HostedPartition,
        log: PartitionLog,
        plan: CompactionPlan,
        error: Exception,
    ) -> None:
        """Remove the partial files; a failed write or fsync is final here, too (promise 25)."""
        if log.closed:
            # Deleted or moved meanwhile, its directory renamed: the next replica of the name may
            # have got the files.
            with suppress(FileNotFoundError):
                await self._log_work.run(log, _discarding(self._seams.disk, plan))
            return
        # A file that is missing was removed by retention, or the log was truncated: plan again.
        # A helper that was killed is replaced (``HelperProcesses``).
        passing = (
            isinstance(error, FileNotFoundError | BrokenExecutor)
            or (isinstance(error, OSError) and log.resources.is_full(error))
            or log.generation != plan.generation
        )
        if passing:
            logger.warning(
                "%(partition)s cannot be compacted now, and is planned again: %(error)s",
                {"partition": partition.key, "error": error},
            )
        elif isinstance(error, OSError):
            log.resources.fail(f"compaction of {log.path} failed: {error}")
            return
        else:
            self._quarantine(partition, error)
        discarding = _discarding(self._seams.disk, plan)
        await self._log_work.run(log, discarding)

    def _quarantine(self, partition: HostedPartition, error: Exception) -> None:
        self._uncleanable[partition] = _state_of(partition)
        logger.error(
            "%(partition)s cannot be compacted and is left as it is until a restart: "
            "%(kind)s: %(error)s",
            {"partition": partition.key, "kind": type(error).__name__, "error": error},
        )


def _discarding(disk: Disk, plan: CompactionPlan) -> Pieces[None]:
    yield partial(discard_cleaned, disk, plan)


async def _none(_: HostedPartition) -> bool:
    return False


def _state_of(partition: HostedPartition) -> tuple[int, int]:
    """Return the values that change when a log is truncated or its start moves."""
    return partition.log.generation, partition.log.start_offset
