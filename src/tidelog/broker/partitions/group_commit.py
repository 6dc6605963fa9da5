"""Group commit: the syncs of many logs in one trip to a thread, one trip at a time.

Owns when logs are synced: with ``log.durability=sync`` before an append counts as stored, otherwise
by ``flush.messages`` or ``flush.ms``. Appends during a trip go with the next one: the slower the
disk, the more appends share a sync. A failed sync takes its directory out of service (promise 25),
and so does a bug on the way to it. Leader epochs that must be in their file before a log is synced
have a trip of their own; the log's sync follows in a later trip.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.runtime import pace
from tidelog.runtime.clock import Clock
from tidelog.storage.log.changes import HOLDS_SYNCS
from tidelog.storage.log.epoch_file import PendingEpochs
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.syncing import PendingSync, run_all, write_all_epochs

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition

logger = logging.getLogger(__name__)

MOST_PER_TRIP = 100
"""Logs of one trip, whose files are collected in one turn of the loop: that takes 20 us for most of
them, and more where files must be opened. The others wait for the next trip."""

MOST_SEGMENTS = 32
"""Closed segments of one log in one trip: three files each, opened on the event loop. Without a
limit, a log whose segments close faster than the disk syncs them could need more files than the
process may have open, and then would never be synced again."""

RETRY_S = 0.1
"""Delay of a retry after a lack of space or file descriptors, or during a truncation."""


class GroupCommit:
    """Syncs the logs of partitions that ask for it. ``before_ack`` is ``log.durability=sync``."""

    def __init__(self, threads: Executor | None, clock: Clock, *, before_ack: bool) -> None:
        self.before_ack = before_ack
        self._clock = clock
        self.trips = 0
        self._threads = threads
        self._wanted: dict[HostedPartition, bool] = {}
        self._late: set[HostedPartition] = set()
        self._waiting: dict[HostedPartition, list[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def want(self, partition: HostedPartition, *, closed_only: bool = False) -> None:
        """Sync all present records of the partition's log soon (or its closed segments).

        One log is never in two trips at once: two syncs must not claim the same records.
        """
        self._wanted[partition] = closed_only and self._wanted.get(partition, True)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="group-commit")

    async def until_stored(self, partition: HostedPartition) -> None:
        """Wait until all present records of the partition's log are stored, or its disk fails."""
        end = partition.log.end_offset
        while (
            partition.stored_end < min(end, partition.log.end_offset)
            and partition.offline_reason is None
            and not partition.log.closed
        ):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(partition, []).append(waiter)
            self.want(partition)
            await waiter

    async def settled(self) -> None:
        """Wait until no sync is wanted."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        # A task begins in the next turn of the loop: all requests of this turn share its first
        # trip. One trip follows another while a sync is wanted. An error of one log does not stop
        # the notification of the others.
        try:
            while self._wanted:
                turn = pace.Turn(self._clock)
                # With its log: the partition may have another one, elsewhere, afterwards.
                trip: list[tuple[HostedPartition, PartitionLog, PendingSync, bool]] = []
                epochs: list[tuple[HostedPartition, PartitionLog, PendingEpochs, bool]] = []
                taken: list[HostedPartition] = []
                for partition, closed_only in list(islice(self._wanted.items(), MOST_PER_TRIP)):
                    # At least one: turns that begin late would otherwise sync nothing, one after
                    # another.
                    if (taken or epochs) and turn.is_over:
                        break
                    # Before the sync: what is appended during it has to be wanted again.
                    del self._wanted[partition]
                    log = partition.log
                    if log.change in HOLDS_SYNCS:
                        self._again_later(partition, closed_only)
                        continue
                    # Also one without unsynced records: its waiters have to be notified.
                    taken.append(partition)
                    try:
                        unwritten = log.epochs_to_write()
                        if unwritten is not None:
                            taken.pop()
                            epochs.append((partition, log, unwritten, closed_only))
                            continue
                        pending = log.unsynced(closed_only=closed_only, most=MOST_SEGMENTS)
                    except OSError as error:
                        taken.pop()
                        self._cannot_take(partition, closed_only, error)
                        continue
                    except Exception as error:
                        _struck(partition, error)
                        continue
                    self._late.discard(partition)
                    if pending is not None:
                        trip.append((partition, log, pending, closed_only))
                if trip or epochs:
                    await self._sync(
                        [pending for _, _, pending, _ in trip], [epoch for _, _, epoch, _ in epochs]
                    )
                elif self._wanted:
                    await turn.give_way()
                for partition, log, pending, closed_only in trip:
                    _take_back(partition, log, pending)
                    if pending.leaves_rest:
                        self.want(partition, closed_only=closed_only)
                for partition in taken:
                    self._notify(partition)
                for partition, log, written, closed_only in epochs:
                    self._go_on(partition, log, written, closed_only)
        finally:
            self._task = None

    async def _sync(self, pendings: Sequence[PendingSync], epochs: Sequence[PendingEpochs]) -> None:
        def run() -> None:
            run_all(pendings)
            write_all_epochs(epochs, pendings)

        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except Exception as error:
            for pending in pendings:
                pending.error = pending.error or error
        self.trips += bool(pendings)

    def _go_on(
        self,
        partition: HostedPartition,
        log: PartitionLog,
        written: PendingEpochs,
        closed_only: bool,
    ) -> None:
        """Sync a log whose leader epochs were written, or try again later."""
        log.epochs_written(written)
        if isinstance(written.error, OSError) and not (log.failed or log.closed):
            self._cannot_take(partition, closed_only, written.error)
        else:
            self.want(partition, closed_only=closed_only)

    def _notify(self, partition: HostedPartition) -> None:
        # Each compares the end that it waits for: a log that was cut meanwhile ends its wait, too.
        for waiter in self._waiting.pop(partition, ()):
            if not waiter.done():
                waiter.set_result(None)
        try:
            partition.synced()
        except Exception:
            # The disk has it, and the other logs of this trip must be notified.
            logger.exception(
                "%(partition)s: not all waiters of its sync were notified",
                {"partition": partition.key},
            )

    def _cannot_take(self, partition: HostedPartition, closed_only: bool, error: OSError) -> None:
        """Try a log again later: room or file descriptors are all that is missing."""
        if partition not in self._late:
            logger.warning(
                "%(partition)s cannot be synced yet: %(error)s",
                {"partition": partition.key, "error": error},
            )
            self._late.add(partition)
        self._again_later(partition, closed_only)

    def _again_later(self, partition: HostedPartition, closed_only: bool) -> None:
        later = functools.partial(self.want, partition, closed_only=closed_only)
        asyncio.get_running_loop().call_later(RETRY_S, later)


def _take_back(partition: HostedPartition, log: PartitionLog, pending: PendingSync) -> None:
    try:
        log.synced(pending)
        if pending.error is not None and partition.log.failed is not None:
            partition.go_offline(partition.log.failed)
    except Exception as error:
        _struck(partition, error)


def _struck(partition: HostedPartition, error: Exception) -> None:
    """Take the directory out of service after a bug before a sync, as after a failed sync: the log
    may lose records in a power loss."""
    log = partition.log
    logger.error("%(partition)s cannot be synced", {"partition": partition.key}, exc_info=error)
    log.resources.fail(f"a sync in {log.path} failed: {error!r}")
    partition.go_offline(log.failed or "")
