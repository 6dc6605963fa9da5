"""One partition of ``__consumer_offsets`` that is led here: its log and the groups in it.

Owns loading, the way of a write through the log, and the timer of the groups' deadlines; which
groups there are and what they do is ``groups.table``. Order: records are appended in the order of
the decisions, answers that rest on them leave when the high watermark has passed them, as with
acks=all; a write that is not committed in ``offsets.commit.timeout.ms`` is answered with an error
and still counts when it is committed later.

| state | requests get |
|---|---|
| loading: the log is read, its end committed, topics are known | COORDINATOR_LOAD_IN_PROGRESS |
| loaded | what the rules decide |
| damaged: the log could not be read, or a bug struck | COORDINATOR_NOT_AVAILABLE |
| closed, or this broker has not led without a break | NOT_COORDINATOR |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial

from tidelog.broker.coordinator import parts
from tidelog.broker.coordinator.parts import InParts, OneByOne, RestOfRemoval, TimeSlice
from tidelog.broker.coordinator.pending_response import give, refuse_all, refuse_event
from tidelog.broker.coordinator.writes import InFlight, batches_of
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.groups.decision import Answer, Decision, Write
from tidelog.groups.events import (
    Event,
    Expire,
    RemoveFormerLives,
    RemoveTopics,
    Tick,
)
from tidelog.groups.settings import GroupRules
from tidelog.groups.table import GroupTable
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected, crc_is_right, walk
from tidelog.records.reader import read_batch
from tidelog.records.record import CorruptRecords
from tidelog.records.record import Record as RecordOfLog
from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

LOAD_CHUNK_BYTES = 262_144
"""How much of the log is read at once while loading."""

RECORDS_PER_LOOK = 64
"""Records that are replayed between two looks at the clock while loading."""

READ_AGAIN_S = 0.1
"""How soon a load goes on that a read was refused to, for a want that passes."""

MAX_IN_FLIGHT = 10_000
"""Most writes that wait for the high watermark; more are refused (the replicas do not follow)."""


class LoadFailed(Exception):
    """The log cannot be read; the text says where and why."""


class LedPartition:
    """The coordinator of one partition, for as long as this broker leads it without a break.

    In a newer leader epoch that it leads, too: the log that the groups were loaded from is the same
    to the last record. Used on the event loop only.
    """

    def __init__(
        self,
        hosted: HostedPartition,
        rules: GroupRules,
        clock: Clock,
        commit_timeout_ms: int,
        metadata: MetadataCache,
        one_by_one: OneByOne,
    ) -> None:
        self.hosted = hosted
        self._named = {"partition": hosted.key}
        assert hosted.leadership is not None
        self.since = hosted.leadership.since
        """The leader epoch in which this broker began to lead."""
        self.table = GroupTable(rules)
        self._clock = clock
        self._commit_timeout_ms = commit_timeout_ms
        self._metadata = metadata
        self._state = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._todo: deque[Decision] = deque()
        self._performing = False
        # In the order of the appends, in which all are told when this broker leads no more.
        self._in_flight: dict[InFlight, None] = {}
        # By group; ``one_by_one`` shares the turns of the loop among those of all partitions.
        self._long: dict[str, InParts | RestOfRemoval] = {}
        self._one_by_one = one_by_one
        self._due: deque[str] = deque()
        self._timer: asyncio.Handle | None = None
        self._timer_at_ms = 0
        self._said_waiting = False
        self._gone_while_loading: set[str] = set()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.load_ended = asyncio.Event()
        """Set when loading is over, well or not, and when this is closed."""

    # Requests ----------------------------------------------------------------------------------

    @property
    def error(self) -> ErrorCode:
        """NONE while requests can be served here, else what they are told."""
        return self._state if self.is_current else ErrorCode.NOT_COORDINATOR

    @property
    def has_failed(self) -> bool:
        """Whether its groups could not be loaded, or were lost to a bug since."""
        return self._state is ErrorCode.COORDINATOR_NOT_AVAILABLE

    @property
    def is_current(self) -> bool:
        """Whether this broker has led since then without a break."""
        leadership = self.hosted.leadership
        return leadership is not None and leadership.since == self.since

    def decide(self, group_id: str, event: Event) -> None:
        """Decide an event; its response is sent exactly once, now or later."""
        error = self.error
        if error is not ErrorCode.NONE:
            refuse_event(event, error)
            return
        self._decide(group_id, event)
        self._arm()

    def decide_in_parts(self, group_id: str, long: InParts) -> None:
        """Decide a request of many positions, a part in a turn of the loop."""
        error = self.error
        if error is not ErrorCode.NONE:
            long.refuse_rest(error)
            return
        present = self._long.get(group_id)
        if present is not None:
            present.behind.append(long)
            return
        self._long[group_id] = long
        self._one_by_one.call(partial(self._go_on, group_id, long))

    def _decide(self, group_id: str, event: Event) -> None:
        """Decide an event now, or behind what is decided in parts for its group."""
        long = self._long.get(group_id)
        if long is not None:
            long.behind.append(event)
            return
        self._perform(self.table.decide(group_id, event, self._now()))
        if self.table.removes(group_id):
            rest = RestOfRemoval(
                partial(self.table.removes, group_id), partial(self._interrupt, group_id)
            )
            self._long[group_id] = rest
            self._one_by_one.call(partial(self._go_on, group_id, rest))

    def _interrupt(self, group_id: str) -> None:
        self._perform(self.table.interrupted(group_id))

    def _go_on(self, group_id: str, long: InParts | RestOfRemoval) -> None:
        """Decide further parts, for a turn; after the last one what came for the group since."""
        turn = TimeSlice(self._clock)
        try:
            while (error := self.error) is ErrorCode.NONE:
                part = parts.part_of(long, removes=self.table.removes(group_id))
                if part is None:
                    break
                self._perform(self.table.decide(group_id, part, self._now()))
                if turn.is_over:
                    self._arm()
                    self._one_by_one.call(partial(self._go_on, group_id, long))
                    return
            long.refuse_rest(error)
        except Exception:
            # A bug must not keep the group from everything that comes behind.
            logger.exception("a long request for group %(group)s failed", {"group": group_id})
            self._interrupt(group_id)
            long.fail()
        del self._long[group_id]
        while long.behind:
            following = long.behind.popleft()
            if isinstance(following, InParts):
                following.behind.extend(long.behind)
                self.decide_in_parts(group_id, following)
                break
            self.decide(group_id, following)

    def close(self) -> None:
        """Leadership went: everyone who waits is sent to the new coordinator."""
        if self._state is ErrorCode.NOT_COORDINATOR:
            return
        self._closed.set_result(None)
        self._serve_no_more(ErrorCode.NOT_COORDINATOR)

    def _fail(self) -> None:
        """A bug has left the groups such that nobody knows what holds: as after a failed load."""
        try:
            self._serve_no_more(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except Exception:
            logger.exception("not all who wait for groups of %(partition)s were told", self._named)

    def _serve_no_more(self, error: ErrorCode) -> None:
        self._state = error
        self.load_ended.set()
        if self._timer is not None:
            self._timer.cancel()
        self._due.clear()
        waiting, self._in_flight = self._in_flight, {}
        for entry in waiting:
            entry.finish()
            refuse_all(entry.write, error)
        self._perform(self.table.unload())

    # Loading -----------------------------------------------------------------------------------

    async def load(self, reading: asyncio.Semaphore) -> None:
        """Read the log as it was when leadership began, and serve once all of it is committed.

        ``reading`` is held while the log is read, and not while others have to commit its end.
        """
        try:
            await self._load(reading)
        except (LoadFailed, CorruptRecords) as error:
            named = {**self._named, "error": error}
            logger.error("groups of %(partition)s cannot be loaded: %(error)s", named)
        except Exception:
            logger.exception("groups of %(partition)s cannot be loaded", self._named)
        else:
            return
        finally:
            self.load_ended.set()
        if self._state is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._state = ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _load(self, reading: asyncio.Semaphore) -> None:
        async with reading:
            if self.error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return
            end = self.hosted.end_offset
            await self._read_to(end)
        # What is not committed yet could still be lost with this leader, and must not be answered.
        if end > self.hosted.start_offset and await self._end_of(end - 1) is not ErrorCode.NONE:
            return
        await self._until_told()
        if self.error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return
        now = self._now()
        loaded = self.table.loaded(now)
        self._state = ErrorCode.NONE
        self._perform(loaded)
        self._arm()
        if self._gone_while_loading:
            await self.forget_topics(frozenset(self._gone_while_loading))
        await self._for_all(RemoveFormerLives(self._metadata.id_of))

    async def _until_told(self) -> None:
        """Wait until this broker knows of the topics at least what it was told with its leadership.

        LeaderAndIsr comes first. Until UpdateMetadata names this leadership, a topic may be known
        here in a former life while the log has offsets of the present one: these would be removed.
        """
        at, since = self.hosted.key, self.since
        while self.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            known = self._metadata.partition(at.topic, at.partition)
            if known is not None and known.leader_epoch >= since:
                return
            changed = self._metadata.changed()
            await asyncio.wait((changed, self._closed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    async def _read_to(self, end: int) -> None:
        """Replay everything below ``end``. Grows with the log; gives way after each turn."""
        position = self.hosted.start_offset
        turn = TimeSlice(self._clock)
        while position < end:
            found = self.hosted.read(position, LOAD_CHUNK_BYTES, committed=False)
            if isinstance(found, Rejected):
                if self._is_final(found):
                    raise LoadFailed(f"at offset {position}: {found.reason}")
                await self._rested(found.reason)
                if self.error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    return
                continue
            before = position
            for at, header in walk(found):
                if header.next_offset <= position:
                    continue
                batch = found[at : at + header.size]
                if not crc_is_right(batch, header.crc):
                    raise LoadFailed(f"the batch at offset {header.base_offset} has a wrong CRC")
                if not header.control and not await self._replay(read_batch(batch), turn):
                    return
                position = header.next_offset
            if position == before:
                if found:
                    raise LoadFailed(f"no whole batch at offset {position}")
                # The cleaner may leave nothing at all between here and the end of the log.
                return

    def _is_final(self, refused: Rejected) -> bool:
        """Whether what a read was refused for stays; a want of file descriptors passes."""
        log = self.hosted.log
        return log.failed is not None or refused.error is not ErrorCode.KAFKA_STORAGE_ERROR

    async def _rested(self, why: str) -> None:
        if not self._said_waiting:
            self._said_waiting = True
            named = {**self._named, "why": why}
            logger.warning("groups of %(partition)s wait to be loaded: %(why)s", named)
        await asyncio.sleep(READ_AGAIN_S)

    async def _replay(self, records: Sequence[RecordOfLog], turn: TimeSlice) -> bool:
        """Replay one batch; False when the partition is not to be loaded any more."""
        for start in range(0, len(records), RECORDS_PER_LOOK):
            now = self._now()
            for record in records[start : start + RECORDS_PER_LOOK]:
                self.table.replay(record.key, record.value, now)
            if turn.is_over:
                await turn.give_way()
                if self.error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    return False
        return True

    async def _end_of(self, offset: int) -> ErrorCode:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def tell(error: ErrorCode) -> None:
            if not done.done():
                done.set_result(error)

        self.hosted.when_committed(offset, tell)
        return await done

    # Sweeps ------------------------------------------------------------------------------------

    async def expire(self) -> None:
        """Look at the retention of every group's offsets, a turn at a time."""
        await self._for_all(Expire())

    async def forget_topics(self, topics: frozenset[str]) -> None:
        """Remove the offsets of deleted topics from every group, not those of a next life."""
        if self._state is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._gone_while_loading |= topics
        else:
            await self._for_all(RemoveTopics(topics, self._metadata.id_of))

    async def _for_all(self, event: Event) -> None:
        turn = TimeSlice(self._clock)
        for group_id in list(self.table):
            group, present = self.table.get(group_id), event
            if group is not None and isinstance(event, Expire):
                present = await parts.expiry_of(group, self._now(), turn)
            if self.error is not ErrorCode.NONE:
                return
            if self.table.get(group_id) is not None:
                self.decide(group_id, present)
            if turn.is_over:
                await turn.give_way()

    # Performing --------------------------------------------------------------------------------

    def _perform(self, decision: Decision) -> None:
        """Carry out a decision. What follows from it in the same breath waits its turn."""
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
                    else:
                        logger.info(f"group %(group)s: {effect.message}", effect.fields)
                for write in present.writes:
                    self._append(write)
        finally:
            self._performing = False

    def _append(self, write: Write) -> None:
        if self._state is not ErrorCode.NONE:
            refuse_all(write, ErrorCode.NOT_COORDINATOR)
            return
        hosted = self.hosted
        if len(self._in_flight) >= MAX_IN_FLIGHT or len(hosted.isr) < hosted.required_in_sync:
            self._lost(write, ErrorCode.NOT_ENOUGH_REPLICAS)
            return
        end = hosted.end_offset
        try:
            error = self._append_records(write)
        except Exception:
            # A bug must not keep the write in flight, and its group waiting, for ever. What the
            # log has counts.
            logger.exception("a write of group %(group)s failed", {"group": write.group_id})
            is_there = hosted.end_offset > end
            error = ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not ErrorCode.NONE:
            if self._state is not ErrorCode.NONE:
                # The disk failed under it: leadership, and with it the table, went meanwhile.
                refuse_all(write, ErrorCode.NOT_COORDINATOR)
            else:
                self._lost(write, error)
            return
        entry = InFlight(write)
        self._in_flight[entry] = None
        hosted.when_committed(hosted.end_offset - 1, partial(self._ended, entry))
        if not entry.done:
            loop = asyncio.get_running_loop()
            entry.timer = loop.call_later(self._commit_timeout_ms / 1000, self._overdue, entry)

    def _append_records(self, write: Write) -> ErrorCode:
        """Append the records of a write; anything but NONE: nothing was appended."""
        wall_ms = self._clock.wall_ms()
        buffer = batches_of(write.records, wall_ms, self.hosted.log.configs.max_message_bytes)
        if buffer is None:
            return ErrorCode.MESSAGE_TOO_LARGE
        result = self.hosted.append(buffer, wall_ms, from_client=False)
        if isinstance(result, Rejected):
            logger.warning(
                "a write of group %(group)s was refused: %(why)s",
                {"group": write.group_id, "why": result.reason},
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
                self._perform(self.table.stored(entry.write, self._now()))
                self._arm()
            except Exception:
                # The log has it, and memory may have half of it. Nobody is to wait for ever.
                logger.exception(
                    "what group %(group)s wrote was not taken in", {"group": entry.write.group_id}
                )
                self._in_flight[entry] = None
                self._fail()
        else:
            # Leadership went or the disk failed: the log decides what became of it, elsewhere.
            self._in_flight[entry] = None
            self.close()

    def _overdue(self, entry: InFlight) -> None:
        if not entry.done:
            self._perform(self.table.delayed(entry.write, ErrorCode.REQUEST_TIMED_OUT, self._now()))
            self._arm()

    def _lost(self, write: Write, error: ErrorCode) -> None:
        self._perform(self.table.lost(write, error, self._now()))

    # Time --------------------------------------------------------------------------------------

    def _now(self) -> int:
        """Return the steady time in ms, and let the table know the time of day."""
        now_ms = self._clock.monotonic_ms()
        self.table.ahead_ms = self._clock.wall_ms() - now_ms
        return now_ms

    def _arm(self) -> None:
        """Have a timer run no later than the earliest deadline."""
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
        now = self._now()
        self._due.extend(self.table.due(now))
        turn = TimeSlice(self._clock)
        while self._due:
            # It may have to wait, and heartbeats behind it that came in time for later deadlines.
            self._decide(self._due.popleft(), Tick(now))
            if turn.is_over:
                break
        if self._due:
            self._timer_at_ms = now
            self._timer = asyncio.get_running_loop().call_soon(self._tick)
        else:
            self._arm()
