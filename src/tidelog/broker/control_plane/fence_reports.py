"""Reports of fences and seals below the high watermark to the controller, with ReportFences.

Owns the requests (KIP-253; docs/design/elastic.md). Not the fences: see ``partitions.fencing``. The
controller keeps reports in memory only, so all of them are sent again after each FULL, with which a
new controller and a new session begin. One request is under way at a time, with at most
``MAX_REPORTED`` fences; without a response the pause doubles, and a FULL ends it: producers wait
for what a new controller does next.

| event | what becomes due |
|---|---|
| this broker leads in a new epoch, or has written the fence it owed | its fence, once committed |
| a FULL was applied | the fence of each partition that this broker leads |
| the leader epoch has ended since | nothing: the next leader reports |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.control_plane.session import ControllerSession, ask_once
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

RETRY_MS = 100
"""First pause after a request without a response; it doubles up to ``RETRY_MAX_MS``."""

RETRY_MAX_MS = 5_000
MAX_REPORTED = 1_000
"""Fences in one request."""


class FenceReports:
    """The reports of one broker. Created once, started once."""

    def __init__(
        self,
        node_id: int,
        session: ControllerSession,
        partitions: Partitions,
        clock: Clock,
        entropy: random.Random,
    ) -> None:
        self._node_id = node_id
        self._session = session
        self._partitions = partitions
        self._clock = clock
        self._random = entropy
        self._due: dict[TopicPartition, tuple[HostedPartition, int]] = {}
        """With the leader epoch: what is committed, and not answered."""
        self.is_checking = False
        """Whether all partitions are to be checked."""
        self._wake = asyncio.Event()
        self._began_again = asyncio.Event()
        """Whether a FULL came since the last failure."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to report."""
        self._task = asyncio.get_running_loop().create_task(self._report(), name="fence-reports")

    async def stop(self) -> None:
        """Stop; the next leaders report."""
        if self._task is not None:
            await call_off([self._task])

    def began(self, partition: HostedPartition) -> None:
        """Report the partition's fence once it is committed: a leader epoch began, or the fence was
        written later."""
        if not partition.is_leader:
            return
        epoch = partition.state.resize_epoch
        # None while the fence is unwritten.
        fence = partition.log.fences.of(epoch) if epoch > 0 else None
        if fence is not None:
            committed = partial(self._committed, partition, partition.leader_epoch)
            partition.when_committed(fence.offset, committed)

    def again(self) -> None:
        """Report the fences of all partitions that this broker leads, once more."""
        self.is_checking = True
        self._began_again.set()
        self._wake.set()

    def _committed(self, partition: HostedPartition, leader_epoch: int, error: ErrorCode) -> None:
        if error is ErrorCode.NONE and partition.leader_epoch == leader_epoch:
            self._due[partition.key] = partition, leader_epoch
            self._wake.set()

    # -- reporting

    async def _report(self) -> None:
        backoff = Backoff(RETRY_MS, RETRY_MAX_MS, self._random)
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if self.is_checking:
                    self.is_checking = False
                    await self._partitions.for_each(self.began, self._clock)
                is_done = await self._ask_for_some()
            except Exception:
                # A bug must not stop the reports for ever.
                logger.exception("fences could not be reported")
                is_done = False
            if is_done:
                failures = 0
                if self._due:
                    self._wake.set()
                continue
            self._wake.set()
            self._began_again.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.pause_s(failures)):
                    await self._began_again.wait()
            failures = 0 if self._began_again.is_set() else failures + 1

    async def _ask_for_some(self) -> bool:
        """Report some of what is due; whether the controller has answered, or nothing is due."""
        asked: list[tuple[TopicPartition, tuple[HostedPartition, int]]] = []
        fences = []
        for key, due in list(islice(self._due.items(), MAX_REPORTED)):
            fence = self._fence(*due)
            if fence is None:
                del self._due[key]
                continue
            asked.append((key, due))
            fences.append(fence)
        if not fences:
            return True
        request = messages.ReportFencesRequest(self._node_id, self._session.broker_epoch, fences)
        if await ask_once(self._session, request, "ReportFences") is None:
            return False
        for key, due in asked:
            if self._due.get(key) == due:
                del self._due[key]
        return True

    def _fence(
        self, partition: HostedPartition, leader_epoch: int
    ) -> messages.ReportFencesRequest.Fence | None:
        """Return a report, None if this broker leads no longer in that epoch."""
        state = partition.state
        if not partition.is_leader or partition.leader_epoch != leader_epoch:
            return None
        return messages.ReportFencesRequest.Fence(
            partition.topic_id,
            partition.partition,
            partition.partition_epoch,
            leader_epoch,
            state.resize_epoch,
        )
