"""Compaction of a broker's logs: the order of the logs, and the quarantine of those that fail.

Owns the rounds, the shares and the quarantine. Not which records are removed: see
``storage.compaction``. In a round each log that is dirty enough has one turn, the dirtiest first,
so that a busy log cannot keep the others waiting; the next round follows while there is progress.
``log.cleaner.threads`` logs are at work at the same time, and a round begins with what is dirty as
soon as there is a thread for it: it does not wait for a log of the round before.

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
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from tidelog.model.work import Work
from tidelog.runtime.disk import Disk
from tidelog.runtime.tasks import call_off
from tidelog.storage import names
from tidelog.storage.compaction.cleaner import compact, discard_cleaned
from tidelog.storage.compaction.pace import CHECK_S, write_rate
from tidelog.storage.compaction.plan import WHOLE, CompactionPlan, Share, plan_compaction
from tidelog.storage.compaction.swap import applying

if TYPE_CHECKING:
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.seams import Seams
    from tidelog.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

UNLIMITED = 1e300
"""Rates above are no limit: the default is the largest double, shared among the threads."""

_AtWork = dict[asyncio.Task[bool], "HostedPartition"]
"""The compactions under way, each of another log."""


class Cleaning:
    """The compaction of one broker. ``clean`` runs one at a time."""

    def __init__(
        self, partitions: Partitions, log_work: LogWork, configs: ServerConfigs, seams: Seams
    ) -> None:
        self._partitions = partitions
        self._log_work = log_work
        self._configs = configs
        self._dynamic = partitions.configs
        self._seams = seams
        self.older_values: Callable[[HostedPartition], Awaitable[bool]] = _none
        """Whether other partitions may have older values of a partition's keys: its tombstones are
        kept then (KIP-253)."""
        self._uncleanable: dict[HostedPartition, tuple[int, int]] = {}
        """Generation and start of quarantined logs."""
        self._rates: dict[str, float] = {}
        """The rate of the runs by the file that has it for the helpers (``pace``)."""

    def uncleanable(self) -> list[HostedPartition]:
        """Return the partitions whose logs are quarantined."""
        return list(self._uncleanable)

    async def clean(self) -> None:
        """Compact the logs that are dirty enough, in rounds, until there is no progress."""
        hosted = set(self._partitions.all())
        self._uncleanable = {
            partition: state
            for partition, state in self._uncleanable.items()
            if partition in hosted and state == _state_of(partition)
        }
        at_work: _AtWork = {}
        try:
            await self._rounds(at_work)
        except asyncio.CancelledError:
            await call_off(at_work)
            raise
        finally:
            # After an error, too: no two helpers write the files of one log.
            if at_work:
                await asyncio.wait(at_work)

    async def _rounds(self, at_work: _AtWork) -> None:
        done: set[HostedPartition] = set()
        round_: list[HostedPartition] = []
        while True:
            threads = self._number("log.cleaner.threads", self._configs.log_cleaner_threads)
            if not round_ and len(at_work) < threads:
                round_ = await self._dirty(done, at_work)
            if not round_ or len(at_work) >= threads:
                if not at_work:
                    return
                # With a thread to spare, other logs may get dirty meanwhile.
                wait_s = self.backoff_ms() / 1000 if len(at_work) < threads else None
                await self._ended(at_work, done, wait_s)
                continue
            partition = round_.pop(0)
            keeps = await self.older_values(partition)
            share = self._share(threads, partition)
            plan = self._plan(partition, share, keeps_tombstones=keeps)
            if plan is None:
                done.add(partition)
                continue
            if share.rate_file:
                self._rates.setdefault(share.rate_file, 0.0)
                await self._note_rates()
            task = asyncio.get_running_loop().create_task(
                self._compact(partition, plan), name="compaction"
            )
            at_work[task] = partition

    async def _ended(
        self, at_work: _AtWork, done: set[HostedPartition], wait_s: float | None
    ) -> None:
        """Wait until a compaction has ended; ``done`` are those without progress."""
        until_ms = inf if wait_s is None else self._seams.clock.monotonic_ms() + wait_s * 1000
        ended: set[asyncio.Task[bool]] = set()
        while not ended and (left_ms := until_ms - self._seams.clock.monotonic_ms()) > 0:
            # Only runs with a limit follow its changes.
            longest_s = CHECK_S if self._rates else inf
            some_s = min(left_ms / 1000, longest_s)
            ended, _ = await asyncio.wait(
                at_work,
                timeout=None if some_s == inf else some_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            await self._note_rates()
        for task in ended:
            partition = at_work.pop(task)
            if not task.result():
                done.add(partition)

    async def _note_rates(self) -> None:
        """Write the present rate for the runs under way, where it has changed."""
        if not self._rates:
            return
        threads = self._number("log.cleaner.threads", self._configs.log_cleaner_threads)
        rate = self._rate(threads)
        for path in [path for path, noted in self._rates.items() if noted != rate]:
            self._rates[path] = rate
            with suppress(OSError):
                # A full or failed disk: the runs there keep the rate that they have.
                await asyncio.get_running_loop().run_in_executor(
                    self._seams.threads, write_rate, self._seams.disk, path, rate
                )

    def backoff_ms(self) -> int:
        """Return how long the cleaner sleeps when there is nothing to do."""
        return max(1, self._number("log.cleaner.backoff.ms", self._configs.log_cleaner_backoff_ms))

    def _number(self, name: str, of_file: int) -> int:
        return self._dynamic.number(name, of_file)

    def _rate(self, threads: int) -> float:
        """Return the bytes per second of one of so many threads."""
        of_file = self._configs.log_cleaner_io_max_bytes_per_second
        return self._dynamic.decimal("log.cleaner.io.max.bytes.per.second", of_file) / threads

    def _share(self, threads: int, partition: HostedPartition) -> Share:
        """Return what one of so many threads may use, as Apache Kafka shares it."""
        configs, number, decimal = self._configs, self._number, self._dynamic.decimal
        rate, path = self._rate(threads), os.path.dirname(partition.log.path)
        buffer = number("log.cleaner.dedupe.buffer.size", configs.log_cleaner_dedupe_buffer_size)
        return Share(
            buffer // threads,
            decimal("log.cleaner.io.buffer.load.factor", configs.log_cleaner_io_buffer_load_factor),
            rate,
            f"{path}/{names.CLEANER_RATE}" if rate < UNLIMITED else "",
        )

    async def _dirty(self, done: set[HostedPartition], at_work: _AtWork) -> list[HostedPartition]:
        """Return the other logs that are dirty enough, the dirtiest first. O(all segments)."""
        # By their names: a helper may still write in the directory of a replica that was replaced.
        busy = {partition.key for partition in at_work.values()}
        dirty: list[tuple[float, int, HostedPartition]] = []

        def check(partition: HostedPartition) -> None:
            if partition.assigned and partition not in done and partition.key not in busy:
                plan = self._plan(partition)
                if plan is not None:
                    dirty.append((-plan.dirty_ratio, len(dirty), partition))

        await self._partitions.for_each(check, self._seams.clock)
        return [partition for _, _, partition in sorted(dirty)]

    def _plan(
        self,
        partition: HostedPartition,
        share: Share = WHOLE,
        *,
        keeps_tombstones: bool = True,
    ) -> CompactionPlan | None:
        log = partition.log
        if partition in self._uncleanable or not log.configs.compacted:
            return None
        now_ms = self._seams.clock.wall_ms()
        try:
            log.roll_overdue(now_ms)
            return plan_compaction(log, now_ms, share=share, keeps_tombstones=keeps_tombstones)
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
            line = await work.run(log, applying(log, result, self._seams.clock.wall_ms()))
        except Exception as error:
            await self._give_up(partition, log, plan, error)
            return False
        if line is not None:
            logger.info("%s", line)
            self._partitions.commit.want(partition, closed_only=True)
        return line is not None and result.clean_end_offset > plan.first_dirty_offset

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


def _discarding(disk: Disk, plan: CompactionPlan) -> Work[None]:
    yield partial(discard_cleaned, disk, plan)


async def _none(_: HostedPartition) -> bool:
    return False


def _state_of(partition: HostedPartition) -> tuple[int, int]:
    """Return the values that change when a log is truncated or its start moves."""
    return partition.log.generation, partition.log.start_offset
