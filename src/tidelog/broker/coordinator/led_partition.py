"""One led partition of a coordinator's topic: the shell that serves a table from its log.

Owns when the table is served, its writes through the log, and the timer of its deadlines. Not the
table, its rules and what a coordinator adds to them: see ``table``; not the replay of the log: see
``replaying``.
Order: records are appended in the order of the decisions; responses that depend on them are sent
once the high watermark has passed them, as with acks=all. A write that is not committed within
``TableKind.commit_timeout_ms`` gets an error response, and still counts when it is committed later.

| state | requests get |
|---|---|
| loading: the log is read, its end committed, the own part ready | COORDINATOR_LOAD_IN_PROGRESS |
| loaded | the decision of the rules |
| failed: the log could not be read, or there was a bug | COORDINATOR_NOT_AVAILABLE |
| closed, or this broker's leadership was interrupted | NOT_COORDINATOR |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic

from tidelog.broker.coordinator.newest_records import Newest, note_newest
from tidelog.broker.coordinator.pending_response import give, refuse_all
from tidelog.broker.coordinator.replaying import LoadFailed, every_record, replay_to
from tidelog.broker.coordinator.table import TableDecision, TableKind, TableT, TableWrite
from tidelog.broker.coordinator.writes import InFlight, bytes_of
from tidelog.broker.partitions.in_sync import is_too_small
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.effects import Answer, Note
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader, Rejected
from tidelog.records.control_records import marker_in
from tidelog.records.record import CorruptRecords
from tidelog.records.record import Record as RecordOfLog
from tidelog.runtime import pace
from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)
audit = logging.getLogger("tidelog.audit")

MAX_IN_FLIGHT = 10_000
"""Most writes that wait for the high watermark; more are refused: the followers lag."""


class LedPartition(Generic[TableT]):
    """The coordinator of one partition, while this broker leads it without interruption.

    It stays in newer leader epochs of this broker: the log is the same to the last record. Used on
    the event loop only.
    """

    def __init__(self, hosted: HostedPartition, kind: TableKind[TableT], clock: Clock) -> None:
        self.hosted = hosted
        self._named = {"partition": hosted.key}
        assert hosted.leadership is not None
        self.since = hosted.leadership.since
        """The leader epoch in which this broker's leadership began."""
        self.table: TableT = kind.new_table()
        self._kind = kind
        self._noun = kind.noun
        self._named_key = f"{kind.spoken} %({kind.noun})s"
        self._clock = clock
        self._state = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._todo: deque[TableDecision] = deque()
        self._performing = False
        # In the order of the appends: when leadership ends, requests are refused in that order.
        self._in_flight: dict[InFlight, None] = {}
        self._due: deque[str] = deque()
        self._timer: asyncio.Handle | None = None
        self._timer_at_ms = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when leadership has ended."""
        self.load_ended = asyncio.Event()
        """Set when loading has succeeded or failed, and on close."""
        self.own_part = kind.own_part(self)

    # Requests ----------------------------------------------------------------------------------

    @property
    def error(self) -> ErrorCode:
        """NONE while requests can be served here, otherwise their error."""
        return self._state if self.is_current else ErrorCode.NOT_COORDINATOR

    @property
    def state(self) -> ErrorCode:
        """The same, whether or not this broker's leadership was interrupted."""
        return self._state

    @property
    def has_failed(self) -> bool:
        """Whether its table could not be loaded, or a bug has made it unreliable since."""
        return self._state is ErrorCode.COORDINATOR_NOT_AVAILABLE

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads, without interruption since ``since``."""
        leadership = self.hosted.leadership
        return leadership is not None and leadership.since == self.since

    def decide(self, key: str, event: Any) -> None:
        """Decide an event; its response is sent exactly once, now or later."""
        error = self.error
        if error is not ErrorCode.NONE:
            self._kind.refuse(event, error)
            return
        self.own_part.decide(key, event)
        self.arm()

    def decide_now(self, key: str, event: Any) -> None:
        """Let the table decide an event, and perform that."""
        self.perform(self.table.decide(key, event, self.now()))

    def close(self) -> None:
        """End the leadership: waiting requests get NOT_COORDINATOR."""
        if self._state is ErrorCode.NOT_COORDINATOR:
            return
        self.closed.set_result(None)
        self._stop_serving(ErrorCode.NOT_COORDINATOR)

    def _fail(self) -> None:
        """Stop serving after a bug that made the table unreliable, as after a failed load."""
        try:
            self._stop_serving(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except Exception:
            logger.exception("not all requests for %(partition)s were refused", self._named)

    def _stop_serving(self, error: ErrorCode) -> None:
        self._state = error
        self.load_ended.set()
        if self._timer is not None:
            self._timer.cancel()
        self._due.clear()
        waiting, self._in_flight = self._in_flight, {}
        for entry in waiting:
            entry.finish()
            refuse_all(entry.write, error)
        self.perform(self.table.unload())
        self.own_part.close()

    # Loading -----------------------------------------------------------------------------------

    async def load(self, reading: asyncio.Semaphore) -> None:
        """Read the log as it was when leadership began, and serve once all of it is committed.

        Holds ``reading`` while it reads the log, but not while it waits for the commit of its end.
        """
        try:
            await self._load(reading)
        except (LoadFailed, CorruptRecords) as error:
            named = {**self._named, "error": error}
            logger.error(
                f"{self._kind.spoken}s of %(partition)s cannot be loaded: %(error)s", named
            )
        except Exception:
            logger.exception(f"{self._kind.spoken}s of %(partition)s cannot be loaded", self._named)
        else:
            return
        finally:
            self.load_ended.set()
        if self._state is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._state = ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _load(self, reading: asyncio.Semaphore) -> None:
        async with reading:
            if not self._is_loading():
                return
            end = self.hosted.end_offset
            await self._read(end)
        # Uncommitted records could still be lost with this leader: no response may depend on them.
        if end > self.hosted.start_offset and await self._end_of(end - 1) is not ErrorCode.NONE:
            return
        await self.own_part.before_loaded()
        if not self._is_loading():
            return
        loaded = self.table.loaded(self.now())
        self._state = ErrorCode.NONE
        self.perform(loaded)
        self.arm()
        await self.own_part.after_loaded()

    async def _read(self, end: int) -> None:
        """Replay the log up to an offset: all of it, or the newest record of each key."""
        newest: Newest = {}
        take = partial(every_record, (self._replay, self._replay_control))
        if self._kind.newest_only:
            take = partial(note_newest, newest=newest)
        of_log = self.hosted, self._kind.spoken, end, self._clock
        await replay_to(*of_log, take, self._is_loading)
        turn, now = pace.Turn(self._clock), self.now()
        while newest and self._is_loading():
            # One after the other, so that no value is kept beside what it is decoded to.
            for _ in range(min(pace.PART, len(newest))):
                self.table.replay(*newest.popitem(), now)
            await turn.pause()

    def _is_loading(self) -> bool:
        return self.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _replay(self, header: BatchHeader, records: Sequence[RecordOfLog]) -> None:
        now = self.now()
        transactions = self._kind.transactions
        if header.transactional and transactions is not None:
            of_transaction = transactions.table(self.table).replay_in_transaction
            producer = header.producer_id, header.producer_epoch
            for record in records:
                of_transaction(*producer, record.key, record.value, now)
            return
        for record in records:
            self.table.replay(record.key, record.value, now)

    def _replay_control(self, header: BatchHeader, batch: memoryview) -> None:
        transactions, marker = self._kind.transactions, marker_in(header, batch)
        if transactions is not None and marker is not None:
            table = transactions.table(self.table)
            table.replay_marker(header.producer_id, header.producer_epoch, marker, self.now())

    async def _end_of(self, offset: int) -> ErrorCode:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            if not done.done():
                done.set_result(error)

        self.hosted.when_committed(offset, settle)
        return await done

    # Performing --------------------------------------------------------------------------------

    def perform(self, decision: TableDecision) -> None:
        """Perform a decision; decisions that it causes are queued."""
        self._todo.append(decision)
        if self._performing:
            return
        self._performing = True
        try:
            while self._todo:
                present = self._todo.popleft()
                for effect in present.effects:
                    if isinstance(effect, Answer):
                        give(effect)
                    elif not isinstance(effect, Note):
                        self.own_part.carry_out(effect)
                    else:
                        log = audit if effect.is_audited else logger
                        log.info(f"{self._named_key}: {effect.message}", effect.fields)
                for write in present.writes:
                    self._append(write)
        finally:
            self._performing = False

    def _append(self, write: TableWrite) -> None:
        if self._state is not ErrorCode.NONE:
            refuse_all(write, ErrorCode.NOT_COORDINATOR)
            return
        hosted = self.hosted
        if len(self._in_flight) >= MAX_IN_FLIGHT or is_too_small(hosted):
            self._lost(write, ErrorCode.NOT_ENOUGH_REPLICAS)
            return
        end = hosted.end_offset
        try:
            error = self._append_records(write)
        except Exception:
            # A bug must not leave the key waiting for ever. Records in the log count.
            logger.exception(f"a write of {self._named_key} failed", {self._noun: write.key})
            is_there = hosted.end_offset > end
            error = ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not ErrorCode.NONE:
            if self._state is not ErrorCode.NONE:
                # The disk failed during the append: leadership ended, the table is unloaded.
                refuse_all(write, ErrorCode.NOT_COORDINATOR)
            else:
                self._lost(write, error)
            return
        entry = InFlight(write)
        self._in_flight[entry] = None
        hosted.when_committed(hosted.end_offset - 1, partial(self._ended, entry))
        if not entry.done:
            loop = asyncio.get_running_loop()
            entry.timer = loop.call_later(self._kind.commit_timeout_ms / 1000, self._overdue, entry)

    def _append_records(self, write: TableWrite) -> ErrorCode:
        """Append the records of a write; with any error but NONE no record was appended."""
        wall_ms = self._clock.wall_ms()
        max_bytes = self.hosted.log.configs.max_message_bytes
        buffer = bytes_of(write, self._kind, wall_ms, max_bytes)
        if buffer is None:
            return ErrorCode.MESSAGE_TOO_LARGE
        result = self.hosted.append(buffer, wall_ms, from_client=False)
        if isinstance(result, Rejected):
            logger.warning(
                f"a write of {self._named_key} was refused: %(why)s",
                {self._noun: write.key, "why": result.reason},
            )
            return result.error
        return ErrorCode.NONE

    def _ended(self, entry: InFlight, error: ErrorCode) -> None:
        if entry.done:
            return
        entry.finish()
        self._in_flight.pop(entry, None)
        if error is ErrorCode.NONE:
            try:
                self.perform(self.table.stored(entry.write, self.now()))
                self.arm()
            except Exception:
                # The log has the write, memory may have half of it. No request may wait for ever.
                logger.exception(
                    f"a committed write of {self._named_key} could not be applied",
                    {self._noun: entry.write.key},
                )
                self._in_flight[entry] = None
                self._fail()
        else:
            # Leadership ended or the disk failed: the log of the next leader decides the outcome.
            self._in_flight[entry] = None
            self.close()

    def _overdue(self, entry: InFlight) -> None:
        if not entry.done:
            self.perform(self.table.delayed(entry.write, ErrorCode.REQUEST_TIMED_OUT, self.now()))
            self.arm()

    def _lost(self, write: TableWrite, error: ErrorCode) -> None:
        self.perform(self.table.lost(write, error, self.now()))

    # Time --------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the monotonic time in ms, and update the table's offset to wall-clock time."""
        now_ms = self._clock.monotonic_ms()
        self.table.ahead_ms = self._clock.wall_ms() - now_ms
        return now_ms

    def arm(self) -> None:
        """Set the timer for the earliest deadline."""
        at_ms = self.table.next_deadline_ms
        if at_ms is None or self._state is not ErrorCode.NONE:
            return
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        delay_s = max(0, at_ms - self._clock.monotonic_ms()) / 1000
        self._timer_at_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.error is not ErrorCode.NONE:
            return
        now = self.now()
        self._due.extend(self.table.due(now))
        turn = pace.Turn(self._clock)
        while self._due:
            # It may be queued; with ``now`` a request that is queued after it is in time.
            self.own_part.decide(self._due.popleft(), self._kind.tick(now))
            if turn.is_over:
                break
        if self._due:
            self._timer_at_ms = now
            self._timer = asyncio.get_running_loop().call_soon(self._tick)
        else:
            self.arm()
