"""The durable notes that batches without a partition count need before their append (KIP-253).

Owns when such a batch has to wait for the note of its log directory, and the writes of the notes,
in threads. Not the file: see `storage.directory.unaware_note`; not what is reported: see
`unaware_writers`.

A note of a topic covers ``COVERS_MS``. It is renewed in a thread when half of that has passed, and
no batch waits for that: only the first one of a topic on a disk waits, and one after a silence.
Batches that wait share a write: at most two are ahead of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected
from tidelog.storage.directory.unaware_note import COVERS_MS, UnawareNote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.runtime.clock import Clock
    from tidelog.storage.directory.log_directory import LogDirectory

logger = logging.getLogger(__name__)

RENEWED_MS = COVERS_MS // 2
"""A batch has the note renewed when it covers less than this."""

_Outcome = asyncio.Future[Rejected | None]


class _Note:
    """The note of one directory, with the batches that wait for its next write."""

    def __init__(self, note: UnawareNote) -> None:
        self.note = note
        self.waiting: list[_Outcome] = []
        self.is_changed = False
        self.task: asyncio.Task[None] | None = None


class UnawareNotes:
    """The notes of one broker. Used on the event loop only."""

    def __init__(
        self, directories: Iterable[LogDirectory], clock: Clock, log_work: LogWork
    ) -> None:
        self._clock, self._log_work = clock, log_work
        self._by_directory = {id(x.resources): _Note(x.unaware_note) for x in directories}
        """By the resources, which a log has in common with its directory."""

    def seen_before(self, now_ms: int) -> dict[UUID, int]:
        """Return until when such producers may have written before this start, by topic."""
        untils: dict[UUID, int] = {}
        for of_directory in self._by_directory.values():
            for topic_id, until in of_directory.note.wanted.items():
                untils[topic_id] = max(min(until, now_ms), untils.get(topic_id, 0))
        return untils

    def covers(self, partition: HostedPartition, now_ms: int) -> bool:
        """Whether a batch may be appended now: a durable note says that it may be there."""
        of = self._by_directory[id(partition.log.resources)]
        left_ms = of.note.durable.get(partition.topic_id, now_ms) - now_ms
        if not 0 < left_ms <= COVERS_MS:
            # None, or over; or the clock was set back, and the note is of another time.
            return False
        if left_ms < RENEWED_MS:
            self._want(of, partition.topic_id, now_ms)
        return True

    async def cover(self, partition: HostedPartition, now_ms: int) -> Rejected | None:
        """Wait for a durable note; return why there is none, if so."""
        of = self._by_directory[id(partition.log.resources)]
        outcome: _Outcome = asyncio.get_running_loop().create_future()
        of.waiting.append(outcome)
        self._want(of, partition.topic_id, now_ms, is_awaited=True)
        return await outcome

    def _want(self, of: _Note, topic_id: UUID, now_ms: int, *, is_awaited: bool = False) -> None:
        left_ms = of.note.wanted.get(topic_id, now_ms) - now_ms
        if not is_awaited and RENEWED_MS <= left_ms <= COVERS_MS:
            return  # on its way
        of.note.wanted[topic_id] = now_ms + COVERS_MS
        of.is_changed = True
        if of.task is None:
            of.task = asyncio.get_running_loop().create_task(self._write(of), name="unaware-note")

    async def _write(self, of: _Note) -> None:
        try:
            while of.is_changed:
                of.is_changed = False
                waiting, of.waiting = of.waiting, []
                try:
                    writing = of.note.writing(self._clock.wall_ms())
                    result = await self._log_work.run(None, writing)
                except Exception:
                    logger.exception("%s could not be written", of.note.path)
                    why = "the broker failed: see its log"
                    result = Rejected(ErrorCode.UNKNOWN_SERVER_ERROR, why)
                for outcome in waiting:
                    if not outcome.done():
                        outcome.set_result(result)
        finally:
            of.task = None

    async def stop(self, last_ms: Mapping[UUID, int]) -> None:
        """Write what is known exactly: when such a producer last wrote to each topic."""
        for of in self._by_directory.values():
            while of.task is not None:
                await asyncio.wait([of.task])
            exact = {x: last_ms.get(x, until) for x, until in of.note.wanted.items()}
            if exact != of.note.wanted:
                of.note.wanted = exact
                with contextlib.suppress(OSError):
                    await self._log_work.run(None, of.note.writing(self._clock.wall_ms()))
