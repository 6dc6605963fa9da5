"""ReportTruncation: what replicas here had to cut goes to the controller until it is answered.

Owns the asking; the notes on disk are ``loss_notes``'s. One request is under way at a time, with at
most ``MAX_REPORTED`` notes; after no answer the pause doubles. Whatever the flag of the partition
says by then, a committed record that was cut is reported (KIP-704; docs/design/who-may-lead.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from tidelog.broker.control_plane.session import ControllerSession, ask_once
from tidelog.broker.data_loss.loss_notes import LossNote, LossNotes, note_of
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.turns import Pieces

if TYPE_CHECKING:
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions

logger = logging.getLogger(__name__)

RETRY_MS = 100
"""First pause after a request without an answer; it doubles up to ``RETRY_MAX_MS``."""

RETRY_MAX_MS = 5_000
MAX_REPORTED = 1_000
"""Notes in one request."""


class LossReports:
    """The reports of one broker. Made once, started once; notes are taken from the first moment."""

    def __init__(
        self, node_id: int, session: ControllerSession, partitions: Partitions, log_work: LogWork
    ) -> None:
        self._node_id = node_id
        self._session = session
        self._log_work = log_work
        self._notes = LossNotes(partitions)
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.lost_offsets = 0
        """Committed offsets that replicas here cut in this life of the broker."""

    def start(self) -> None:
        """Begin to report, also what an earlier life left."""
        self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._report(), name="loss-reports")

    async def stop(self) -> None:
        """End; what was not answered stays on disk."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- what happens to replicas

    def before_cut(
        self, partition: HostedPartition, first: int, end: int, noted: Collection[LossNote] = ()
    ) -> Pieces[str | None]:
        """Note that committed records are about to be cut, in pieces; durable on return.

        ``noted``: what ``before_cuts`` has noted for the same answer. Returns why it could not be
        noted: then the log must not be cut.
        """
        loss = note_of(partition, first, end)
        return None if loss in noted else (yield from self._notes.adding([(partition, loss)]))

    def before_cuts(
        self, cuts: Iterable[tuple[HostedPartition, int, int]]
    ) -> Pieces[Collection[LossNote]]:
        """Note what several cuts are about to take, in pieces, with one write per log directory.

        Returns what is noted durably; without it a cut is to be noted by itself (``before_cut``).
        """
        losses = [(partition, note_of(partition, first, end)) for partition, first, end in cuts]
        if len(losses) < 2 or (yield from self._notes.adding(losses)) is not None:
            return ()
        return {loss for _, loss in losses}

    def after_cut(self, first: int, end: int) -> None:
        """The records are gone: report it."""
        self.lost_offsets += end - first
        self._wake.set()

    def began(self, _partition: HostedPartition) -> None:
        """A partition is led here: what was noted and still is in its log, was never cut."""
        if len(self._notes):
            self._wake.set()

    def removed(self, key: TopicPartition) -> None:
        """A replica is about to go, and its topic with it: nobody is to be told any more.

        Before its name is free for the next one, ``forgetting`` must have been gone through.
        """
        self._notes.forget_nameless(key)

    def forgetting(self) -> Pieces[None]:
        """Have the disk forget what need not be told any more, in pieces."""
        return self._notes.forgetting()

    async def tell_ends(self, ends: Sequence[tuple[HostedPartition, LossNote]]) -> str | None:
        """Have the controller know where new leaders' logs ended; returns why it does not.

        Durable before it is sent. Waits for the answer as long as it takes.
        """
        why = await self._log_work.run(None, self._notes.adding(ends))
        if why is not None:
            return why
        for partition, _ in ends:
            partition.log.watermark_note.on_record()
        self._wake.set()
        wanted = {loss for _, loss in ends}
        while not wanted.isdisjoint(self._notes.due()):
            self._answered.clear()
            await self._answered.wait()
        return None

    # -- reporting

    async def _report(self) -> None:
        pause_ms = RETRY_MS
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                due = self._notes.due()[:MAX_REPORTED]
                is_done = not due or await self._ask(due)
                await self._log_work.run(None, self._notes.forgetting())
            except Exception:
                # A bug must not keep what was lost from being told for ever.
                logger.exception("what was cut could not be reported")
                is_done, due = False, []
            if is_done:
                pause_ms = RETRY_MS
                if due:
                    # There may be more than one request takes.
                    self._wake.set()
                    self._answered.set()
                continue
            self._wake.set()
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, RETRY_MAX_MS)

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
