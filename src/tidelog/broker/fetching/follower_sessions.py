"""Follower fetch sessions (KIP-227), and which partitions each response must include.

Owns the sessions of followers, one per follower (a new one replaces the former), and their
responses. Not which partitions are dirty: see ``follower_session``; not the read of a partition:
see ``partition_reads``. A request of few partitions, as nearly all are, is handled at once and
without generators. A larger one may be superseded by another at each yield.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidelog.broker.fetching.delayed_requests import DelayedFetch
from tidelog.broker.fetching.follower_session import FollowerSession, SessionPartition
from tidelog.broker.fetching.partition_reads import (
    Reader,
    Reading,
    has_changed,
    note_follower,
    put_into,
    refusal,
    respond,
)
from tidelog.broker.fetching.session_rules import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_INT32,
    why_not_next,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.protocol import messages
from tidelog.runtime import pace

if TYPE_CHECKING:
    from tidelog.broker.fetching.delayed_requests import Departures
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.network.router import RequestContext
    from tidelog.runtime.clock import Clock

MAX_SESSIONS = 1000
"""Maximum number of followers with a session; others name all partitions in each request."""

ANSWER_BYTES = 300
"""Memory of a partition in a response under construction, without its records."""

_Response = messages.FetchResponse
SUPERSEDED = _Response(error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))


class FollowerSessions:
    """The sessions of all followers of one broker."""

    def __init__(
        self,
        reader: Reader,
        partitions: Partitions,
        why_not_here: Callable[[str, int], ErrorCode],
        departures: Departures,
        clock: Clock,
        random_source: random.Random,
    ) -> None:
        """``why_not_here`` returns the error for a partition that this broker does not lead."""
        self.reader = reader
        self.get = partitions.get
        self.why_not_here = why_not_here
        self.departures = departures
        self.clock = clock
        self._random = random_source
        self._sessions: dict[int, FollowerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def handle(self, request: messages.FetchRequest, context: RequestContext) -> Any:
        """Respond to a follower's Fetch, now or later; None if the request is without a session."""
        session = self._session(request)
        if session is None or isinstance(session, ErrorCode):
            return None if session is None else _Response(error_code=session)
        now_ms = self.clock.monotonic_ms()
        if not session.apply_at_once(request, context.connection, now_ms):
            return self._serve(session, request, context)
        response = _SessionResponse(self, session, request, context)
        self._note_some(session, session.to_note(), now_ms)
        return response.now_or_later_at_once()

    def _serve(
        self, session: FollowerSession, request: messages.FetchRequest, context: RequestContext
    ) -> Work[Any]:
        now_ms = self.clock.monotonic_ms()
        yield from session.apply(request, context.connection, now_ms)
        if not self.has(session):
            return SUPERSEDED
        response = _SessionResponse(self, session, request, context)
        yield from self._note(session, now_ms)
        if response.is_superseded():
            return SUPERSEDED
        return (yield from response.now_or_later())

    def has(self, session: FollowerSession) -> bool:
        """Whether no other session of the follower has replaced this one."""
        return self._sessions.get(session.node_id) is session

    def _session(self, request: messages.FetchRequest) -> FollowerSession | ErrorCode | None:
        node_id, epoch = request.replica_id, request.session_epoch
        present = self._sessions.get(node_id)
        if epoch == FINAL_EPOCH:
            return None
        if epoch == INITIAL_EPOCH:
            if present is not None:
                present.end()
                del self._sessions[node_id]
            if len(self._sessions) >= MAX_SESSIONS or not request.topics:
                return None
            session_id = self._random.randrange(1, MAX_INT32)
            prompt = self.reader.reads_from_closest
            self._sessions[node_id] = fresh = FollowerSession(session_id, node_id, prompt=prompt)
            return fresh
        return why_not_next(present, request.session_id, epoch) or present

    def _note(self, session: FollowerSession, now_ms: int) -> Work[Any]:
        """Note the fetch offsets of the follower, and where it is not in the ISR."""
        epoch = session.epoch
        noted = session.to_note()
        for part in pace.parts(noted):
            self._note_some(session, part, now_ms)
            yield None
            if session.epoch != epoch or not self.has(session):
                return

    def _note_some(
        self, session: FollowerSession, entries: Iterable[SessionPartition], now_ms: int
    ) -> None:
        get, reader = self.get, self.reader
        node_id, broker_epoch = session.node_id, session.broker_epoch
        for entry in entries:
            partition = get(entry.topic, entry.index)
            if partition is not entry.partition:
                entry.attach(partition)
            if partition is None or not partition.is_leader:
                session.out_of_isr.pop(entry, None)
                continue
            if not entry.is_void:
                note_follower(reader, entry, partition, node_id, broker_epoch, now_ms)
            if node_id in partition.state.isr:
                session.out_of_isr.pop(entry, None)
            else:
                session.out_of_isr[entry] = None


class _SessionResponse:
    """The response to one request of a session."""

    def __init__(
        self,
        sessions: FollowerSessions,
        session: FollowerSession,
        request: messages.FetchRequest,
        context: RequestContext,
    ) -> None:
        self._sessions = sessions
        self._session = session
        self._epoch = session.epoch
        self._request = request
        self._reading = Reading(sessions.reader, request, context)

    def is_superseded(self) -> bool:
        """Whether a later request or another session has arrived."""
        session = self._session
        return session.epoch != self._epoch or not self._sessions.has(session)

    def now_or_later(self) -> Work[Any]:
        """Return the response, or an awaitable of it."""
        try:
            answers = yield from self._read()
        except BaseException:
            # The follower disconnected between two steps: the cold reads are not needed.
            self._reading.forget_cold()
            raise
        if answers is not None and self._reading.cold:
            return self._warmed()
        if answers is None or self._is_due(answers):
            return (yield from self._respond(answers))
        return self._later()

    def now_or_later_at_once(self) -> Any:
        """Do as ``now_or_later`` in one step, for few dirty partitions.

        The one flat path beside a generator: five of them would cost each fetch of each follower
        3 us, a third of what it takes here.
        """
        try:
            answers = self._read_at_once()
        except Exception:
            self._reading.forget_cold()
            raise
        if self._reading.cold:
            return self._warmed()
        return self._respond_at_once(answers) if self._is_due(answers) else self._later()

    async def _warmed(self) -> Any:
        """Return the response after a thread has read what is not in the page cache."""
        answers = None
        while self._reading.cold:
            await self._reading.warm_up()
            if self.is_superseded():
                return SUPERSEDED
            answers = await pace.run(self._read(), self._sessions.clock)
            if answers is None:
                self._reading.forget_cold()
        if answers is None or self._is_due(answers):
            return self._respond(answers)
        return await self._later()

    def _is_due(self, answers: list[tuple[SessionPartition, Any]]) -> bool:
        """Whether to respond now, without a wait for more records."""
        reading = self._reading
        if reading.size >= self._request.min_bytes or reading.is_last or reading.urgent:
            return True
        return reading.full or (bool(answers) and self._session.prompt)

    def _later(self) -> asyncio.Future[Any]:
        request = self._request
        missing = request.min_bytes - self._reading.size
        departures = self._sessions.departures
        delayed = DelayedFetch(missing, request.max_wait_ms, self._finish, departures)
        delayed.join([self._session.waiting])
        return delayed.future

    def _finish(self) -> Any:
        if self.is_superseded():
            return SUPERSEDED
        self._reading.again()
        if len(self._session.dirty) <= pace.PART:
            return self._respond_at_once(self._read_at_once())
        return self._finished()

    def _finished(self) -> Work[Any]:
        return (yield from self._respond((yield from self._read())))

    def _read(self) -> Work[Any]:
        """Read the dirty partitions; return the changed ones with their parts of the response, or
        None when this request is superseded. Unchanged ones are no longer dirty afterwards."""
        session, reading = self._session, self._reading
        reading.begin()
        session.has_woken = False
        answers: list[tuple[SessionPartition, Any]] = []
        before = 0
        for part in pace.parts(list(session.dirty)):
            self._read_some(part, answers)
            yield ANSWER_BYTES * len(part) + reading.size - before
            before = reading.size
            if self.is_superseded():
                return None
            # An event in a yield finds no delayed fetch that it could wake.
            reading.urgent |= session.has_woken
        return answers

    def _read_at_once(self) -> list[tuple[SessionPartition, Any]]:
        """Do as ``_read`` in one step, for few dirty partitions."""
        self._reading.begin()
        self._session.has_woken = False
        answers: list[tuple[SessionPartition, Any]] = []
        self._read_some(list(self._session.dirty), answers)
        return answers

    def _read_some(
        self, entries: Iterable[SessionPartition], answers: list[tuple[SessionPartition, Any]]
    ) -> None:
        session, reading = self._session, self._reading
        get = self._sessions.get
        for entry in entries:
            partition = get(entry.topic, entry.index)
            if partition is not entry.partition:
                entry.attach(partition)
            entry.has_moved = False
            if partition is None:
                reading.urgent = True
                error = self._sessions.why_not_here(entry.topic, entry.index)
                part = refusal(entry.index, error)
            elif entry.is_void:
                reading.urgent = True
                part = refusal(entry.index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                part = reading.read(entry, partition)
            if has_changed(entry, part):
                answers.append((entry, part))
            elif partition is None or entry.fetch_offset == partition.end_offset:
                del session.dirty[entry]

    def _respond(self, answers: list[tuple[SessionPartition, Any]] | None) -> Work[Any]:
        """Build the response, or ``SUPERSEDED`` when this request is."""
        response = None
        if answers is not None:
            response = yield from respond(self._session.id, answers, self._note_if_current)
        return SUPERSEDED if response is None or self.is_superseded() else response

    def _respond_at_once(self, answers: list[tuple[SessionPartition, Any]]) -> Any:
        """Do as ``_respond`` in one step, for few partitions."""
        topics: dict[str | bytes, Any] = {}
        for entry, part in answers:
            self._note_sent(entry, part)
            put_into(topics, entry, part)
        return _Response(session_id=self._session.id, responses=list(topics.values()))

    def _note_if_current(self, entry: SessionPartition, part: Any) -> bool:
        if self.is_superseded():
            return False
        self._note_sent(entry, part)
        return True

    def _note_sent(self, entry: SessionPartition, part: Any) -> None:
        session, partition = self._session, entry.partition
        # A part without records may be one for which this response had no room.
        unread = not part.error_code and not len(part.records)
        lacks = unread and partition is not None and entry.fetch_offset < partition.end_offset
        session.dirty.pop(entry, None)
        if lacks or entry.has_moved:
            session.dirty[entry] = None
        session.sent.append(entry)
