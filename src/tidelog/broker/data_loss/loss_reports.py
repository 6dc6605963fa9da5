"""Reports of truncated committed records to the controller, with ReportTruncation (KIP-704).

Owns the requests. Not the notes on disk: see ``loss_notes``. One request is under way at a time,
with at most ``MAX_REPORTED`` notes; without a response the pause doubles. A truncated committed
record is reported whatever the partition's flag is by then (docs/design/who-may-lead.md).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from tidelog.broker.control_plane.session import ControllerSession, ask_once
from tidelog.broker.data_loss.loss_notes import LossNote, LossNotes, note_of
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.protocol import messages
from tidelog.runtime.backoff import Backoff
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions

logger = logging.getLogger(__name__)

RETRY_MS = 100
"""First pause after a request without a response; it doubles up to ``RETRY_MAX_MS``."""

RETRY_MAX_MS = 5_000
MAX_REPORTED = 1_000
"""Notes in one request."""


class LossReports:
    """The reports of one broker. Created once, started once; takes notes before the start, too."""

    def __init__(
        self,
        node_id: int,
        session: ControllerSession,
        partitions: Partitions,
        log_work: LogWork,
        entropy: random.Random,
    ) -> None:
        self._node_id = node_id
        self._session = session
        self._log_work = log_work
        self._notes = LossNotes(partitions)
        self._random = entropy
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.lost_offsets = 0
        """Committed offsets that replicas here truncated since this broker started."""

    def start(self) -> None:
        """Start to report, also the notes of earlier starts."""
        self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._report(), name="loss-reports")

    async def stop(self) -> None:
        """Stop; notes without a response stay on disk."""
        if self._task is not None:
            await call_off([self._task])

    # -- truncations and removals of replicas

    def before_cut(
        self, partition: HostedPartition, first: int, end: int, noted: Collection[LossNote] = ()
    ) -> Work[str | None]:
        """Write a note before committed records are truncated, in pieces; durable on return.

        ``noted``: the notes that ``before_cuts`` wrote for the same fetch response. Returns why the
        note could not be written: then the log must not be truncated.
        """
        loss = note_of(partition, first, end)
        return None if loss in noted else (yield from self._notes.adding([(partition, loss)]))

    def before_cuts(
        self, cuts: Iterable[tuple[HostedPartition, int, int]]
    ) -> Work[Collection[LossNote]]:
        """Write the notes of several truncations, in pieces, with one write per log directory.

        Returns the notes that are durable; each other truncation needs its own ``before_cut``.
        """
        losses = [(partition, note_of(partition, first, end)) for partition, first, end in cuts]
        if len(losses) < 2 or (yield from self._notes.adding(losses)) is not None:
            return ()
        return {loss for _, loss in losses}

    def after_cut(self, first: int, end: int) -> None:
        """Report a truncation that has happened."""
        self.lost_offsets += end - first
        self._wake.set()

    def began(self, _partition: HostedPartition) -> None:
        """Check the notes when a leadership begins: records still in its log were not truncated."""
        if len(self._notes):
            self._wake.set()

    def removed(self, key: TopicPartition) -> None:
        """Remove the notes without a topic id of a replica that is removed.

        Run ``forgetting`` before another topic may use its name.
        """
        self._notes.forget_nameless(key)

    def forgetting(self) -> Work[None]:
        """Write the files without the removed notes, in pieces."""
        return self._notes.forgetting()

    async def report_ends(self, ends: Sequence[tuple[HostedPartition, LossNote]]) -> str | None:
        """Report where new unclean leaders' logs ended; return why that failed, if so.

        The notes are durable before the request. Waits for the response without a timeout.
        """
        why = await self._log_work.run(None, self._notes.adding(ends))
        if why is not None:
            return why
        for partition, _ in ends:
            # The note that is durable now tells of the power loss, also after another start (0046).
            partition.log.watermark_note.on_record()
        self._wake.set()
        wanted = {loss for _, loss in ends}
        while not wanted.isdisjoint(self._notes.due()):
            self._answered.clear()
            await self._answered.wait()
        return None

    # -- reporting

    async def _report(self) -> None:
        backoff = Backoff(RETRY_MS, RETRY_MAX_MS, self._random)
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                due = self._notes.due()[:MAX_REPORTED]
                is_done = not due or await self._ask(due)
                # After the response: until then a start has to find the notes, and report them
                # again.
                await self._log_work.run(None, self._notes.forgetting())
            except Exception:
                # A bug must not stop the reports for ever.
                logger.exception("truncated records could not be reported")
                is_done, due = False, []
            if is_done:
                failures = 0
                if due:
                    # There may be more notes than one request takes.
                    self._wake.set()
                    self._answered.set()
                continue
            self._wake.set()
            await asyncio.sleep(backoff.pause_s(failures))
            failures += 1

    async def _ask(self, losses: Sequence[LossNote]) -> bool:
        session = self._session
        request = messages.ReportTruncationRequest
        truncation = request.Truncation
        asked = request(
            broker_id=self._node_id,
            broker_epoch=session.broker_epoch,
            truncations=[
                truncation(x.topic_id, x.key.partition, x.first, x.end, list(x.epochs))
                for x in losses
            ],
        )
        if await ask_once(session, asked, "ReportTruncation") is None:
            return False
        self._notes.reported(losses)
        return True
