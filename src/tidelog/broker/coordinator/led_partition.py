"""One partition of ``__consumer_offsets`` led here: its log and the groups in it.

Owns when the groups are served, their writes through the log, and the timer of their deadlines. Not
the groups and their rules: see ``groups.table``; not the replay of the log: see ``replaying``.
Order: records are appended in the order of the decisions; responses that depend on them are sent
once the high watermark has passed them, as with acks=all. A write that is not committed within
``offsets.commit.timeout.ms`` gets an error response, and still counts when it is committed later.

| state | requests get |
|---|---|
| loading: the log is read, its end committed, topics are known | COORDINATOR_LOAD_IN_PROGRESS |
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

from tidelog.broker.coordinator import parts
from tidelog.broker.coordinator.parts import InParts, OneByOne, RestOfRemoval, TimeSlice
from tidelog.broker.coordinator.pending_response import give, refuse_all, refuse_event
from tidelog.broker.coordinator.replaying import LoadFailed, replay_to
from tidelog.broker.coordinator.writes import InFlight, batches_of
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.groups.decision import Answer, GroupDecision, Write
from tidelog.groups.events import (
    Event,
    Expire,
    RemoveFormerTopicIds,
    RemoveTopics,
    Tick,
)
from tidelog.groups.settings import GroupRules
from tidelog.groups.table import GroupTable
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import Rejected
from tidelog.records.record import CorruptRecords
from tidelog.records.record import Record as RecordOfLog
from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 10_000
"""Most writes that wait for the high watermark; more are refused: the followers lag."""


class LedPartition:
    """The coordinator of one partition, while this broker leads it without interruption.

    It stays in newer leader epochs of this broker: the log of the groups is the same to the last
    record. Used on the event loop only.
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
        """The leader epoch in which this broker's leadership began."""
        self.table = GroupTable(rules)
        self._clock = clock
        self._commit_timeout_ms = commit_timeout_ms
        self._metadata = metadata
        self._state = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._todo: deque[GroupDecision] = deque()
        self._performing = False
        # In the order of the appends: when leadership ends, requests are refused in that order.
        self._in_flight: dict[InFlight, None] = {}
        # By group; ``one_by_one`` runs one part per turn of the loop, over all partitions.
        self._long: dict[str, InParts | RestOfRemoval] = {}
        self._one_by_one = one_by_one
        self._due: deque[str] = deque()
        self._timer: asyncio.Handle | None = None
        self._timer_at_ms = 0
        self._deleted_while_loading: set[str] = set()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.load_ended = asyncio.Event()
        """Set when loading has succeeded or failed, and on close."""

    # Requests ----------------------------------------------------------------------------------

    @property
    def error(self) -> ErrorCode:
        """NONE while requests can be served here, otherwise their error."""
        return self._state if self.is_current else ErrorCode.NOT_COORDINATOR

    @property
    def has_failed(self) -> bool:
        """Whether its groups could not be loaded, or a bug has made them unreliable since."""
        return self._state is ErrorCode.COORDINATOR_NOT_AVAILABLE

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads, without interruption since ``since``."""
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
        """Decide a request of many positions, one part per turn of the loop."""
        error = self.error
        if error is not ErrorCode.NONE:
            long.refuse_rest(error)
            return
        present = self._long.get(group_id)
        if present is not None:
            present.later.append(long)
            return
        self._long[group_id] = long
        self._one_by_one.call(partial(self._go_on, group_id, long))

    def _decide(self, group_id: str, event: Event) -> None:
        """Decide an event now, or after the request of its group that is decided in parts."""
        long = self._long.get(group_id)
        if long is not None:
            long.later.append(event)
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
        """Decide further parts for one time slice; after the last part the later events."""
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
            # A bug must not block the later events of the group.
            logger.exception("a large request for group %(group)s failed", {"group": group_id})
            self._interrupt(group_id)
            long.fail()
        del self._long[group_id]
        # A later one that is decided in parts is the next that the others wait for.
        while long.later:
            following = long.later.popleft()
            if isinstance(following, InParts):
                self.decide_in_parts(group_id, following)
            else:
                self.decide(group_id, following)

    def close(self) -> None:
        """End the leadership: waiting requests get NOT_COORDINATOR."""
        if self._state is ErrorCode.NOT_COORDINATOR:
            return
        self._closed.set_result(None)
        self._stop_serving(ErrorCode.NOT_COORDINATOR)

    def _fail(self) -> None:
        """Stop serving after a bug that made the groups unreliable, as after a failed load."""
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
        self._perform(self.table.unload())

    # Loading -----------------------------------------------------------------------------------

    async def load(self, reading: asyncio.Semaphore) -> None:
        """Read the log as it was when leadership began, and serve once all of it is committed.

        Holds ``reading`` while it reads the log, but not while it waits for the commit of its end.
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
            if not self._is_loading():
                return
            end = self.hosted.end_offset
            await replay_to(self.hosted, end, self._clock, self._replay, self._is_loading)
        # Uncommitted records could still be lost with this leader: no response may depend on them.
        if end > self.hosted.start_offset and await self._end_of(end - 1) is not ErrorCode.NONE:
            return
        await self._until_metadata()
        if not self._is_loading():
            return
        now = self._now()
        loaded = self.table.loaded(now)
        self._state = ErrorCode.NONE
        self._perform(loaded)
        self._arm()
        if self._deleted_while_loading:
            await self.forget_topics(frozenset(self._deleted_while_loading))
        await self._for_all(RemoveFormerTopicIds(self._metadata.id_of))

    async def _until_metadata(self) -> None:
        """Wait until the metadata cache is at least as new as this leadership.

        LeaderAndIsr arrives before UpdateMetadata. Until then the cache may have a former topic id
        of a topic while the log has offsets of the current one, which would be removed.
        """
        at, since = self.hosted.key, self.since
        while self._is_loading():
            known = self._metadata.partition(at.topic, at.partition)
            if known is not None and known.leader_epoch >= since:
                return
            changed = self._metadata.changed()
            await asyncio.wait((changed, self._closed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    def _is_loading(self) -> bool:
        return self.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _replay(self, records: Sequence[RecordOfLog]) -> None:
        now = self._now()
        for record in records:
            self.table.replay(record.key, record.value, now)

    async def _end_of(self, offset: int) -> ErrorCode:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            if not done.done():
                done.set_result(error)

        self.hosted.when_committed(offset, settle)
        return await done

    # Sweeps ------------------------------------------------------------------------------------

    async def expire(self) -> None:
        """Expire offsets of all groups by their retention, one time slice at a time."""
        await self._for_all(Expire())

    async def forget_topics(self, topics: frozenset[str]) -> None:
        """Remove the offsets of deleted topics from every group, by topic id."""
        if self._state is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._deleted_while_loading |= topics
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

    def _perform(self, decision: GroupDecision) -> None:
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
            # A bug must not leave the group waiting for ever. Records in the log count.
            logger.exception("a write of group %(group)s failed", {"group": write.group_id})
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
            entry.timer = loop.call_later(self._commit_timeout_ms / 1000, self._overdue, entry)

    def _append_records(self, write: Write) -> ErrorCode:
        """Append the records of a write; with any error but NONE no record was appended."""
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
                # The log has the write, memory may have half of it. No request may wait for ever.
                logger.exception(
                    "a committed write of group %(group)s could not be applied",
                    {"group": entry.write.group_id},
                )
                self._in_flight[entry] = None
                self._fail()
        else:
            # Leadership ended or the disk failed: the log of the next leader decides the outcome.
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
        """Return the monotonic time in ms, and update the table's offset to wall-clock time."""
        now_ms = self._clock.monotonic_ms()
        self.table.ahead_ms = self._clock.wall_ms() - now_ms
        return now_ms

    def _arm(self) -> None:
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
        now = self._now()
        self._due.extend(self.table.due(now))
        turn = TimeSlice(self._clock)
        while self._due:
            # The tick may be queued; with ``now`` a heartbeat that is queued after it is in time.
            self._decide(self._due.popleft(), Tick(now))
            if turn.is_over:
                break
        if self._due:
            self._timer_at_ms = now
            self._timer = asyncio.get_running_loop().call_soon(self._tick)
        else:
            self._arm()
