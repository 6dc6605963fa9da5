"""What followers ask of this leader: a fetch session for each (KIP-227), and the answers.

Owns the sessions of followers and their answers; what is news to a session is ``feed_session``'s,
what a partition answers is ``fetch_reading``'s. One session per follower: a new one replaces the
old. What concerns at most ``AT_ONCE`` partitions, as nearly every request does, is done in one
step, without generators; what concerns more is done in steps, and after each a request may be
superseded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidelog.broker.fetching.client_sessions import FINAL_EPOCH, INITIAL_EPOCH, MAX_INT32
from tidelog.broker.fetching.delayed_requests import DelayedFetch
from tidelog.broker.fetching.follower_session import AT_ONCE, Feed, FollowerSession
from tidelog.broker.fetching.partition_reads import (
    Reader,
    Reading,
    is_news,
    note_follower,
    put_into,
    refusal,
    respond,
)
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Steps, begun
from tidelog.protocol import messages
from tidelog.runtime.turns import in_turns

if TYPE_CHECKING:
    from tidelog.broker.fetching.delayed_requests import Departures
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.network.router import RequestContext
    from tidelog.runtime.clock import Clock

MAX_SESSIONS = 1000
"""Most followers with a session; the others say everything in each request."""

ANSWER_BYTES = 300
"""What a partition takes in an answer being made, its records aside."""

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
        """``why_not_here`` says why a partition that is not led here cannot be read here."""
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
        """Answer a follower's Fetch with a session, now or when there is more; None: without."""
        session = self._session(request)
        if session is None or isinstance(session, ErrorCode):
            return None if session is None else _Response(error_code=session)
        now_ms = self.clock.monotonic_ms()
        if not session.began_at_once(request, context.connection, now_ms):
            return begun(self._serve(session, request, context))
        answer = _Answer(self, session, request, context)
        self._note_some(session, session.to_note(), now_ms)
        return answer.now_or_later_at_once()

    def _serve(
        self, session: FollowerSession, request: messages.FetchRequest, context: RequestContext
    ) -> Steps:
        now_ms = self.clock.monotonic_ms()
        yield from session.began(request, context.connection, now_ms)
        if not self.has(session):
            return SUPERSEDED
        answer = _Answer(self, session, request, context)
        yield from self._note(session, now_ms)
        if answer.is_superseded():
            return SUPERSEDED
        return (yield from answer.now_or_later())

    def has(self, session: FollowerSession) -> bool:
        """Whether no other session has taken its place."""
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
        if present is None or present.id != request.session_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if present.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return present

    def _note(self, session: FollowerSession, now_ms: int) -> Steps:
        """Take the follower's offsets as what it holds, and see who is outside of the ISR."""
        epoch = session.epoch
        noted = session.to_note()
        for first in range(0, len(noted), AT_ONCE):
            if first:
                yield 0
                if session.epoch != epoch or not self.has(session):
                    return
            self._note_some(session, noted[first : first + AT_ONCE], now_ms)

    def _note_some(self, session: FollowerSession, feeds: Iterable[Feed], now_ms: int) -> None:
        get, reader = self.get, self.reader
        node_id, life = session.node_id, session.life
        for feed in feeds:
            partition = get(feed.topic, feed.index)
            if partition is not feed.partition:
                feed.attach(partition)
            if partition is None or not partition.is_leader:
                session.outside.pop(feed, None)
                continue
            if not feed.is_void:
                note_follower(reader, feed, partition, node_id, life, now_ms)
            if node_id in partition.state.isr:
                session.outside.pop(feed, None)
            else:
                session.outside[feed] = None


class _Answer:
    """The answer to one request of a session."""

    def __init__(
        self,
        feeds: FollowerSessions,
        session: FollowerSession,
        request: messages.FetchRequest,
        context: RequestContext,
    ) -> None:
        self._feeds = feeds
        self._session = session
        self._epoch = session.epoch
        self._request = request
        self._reading = Reading(feeds.reader, request, context)

    def is_superseded(self) -> bool:
        """Whether another request, or another session, has come meanwhile."""
        session = self._session
        return session.epoch != self._epoch or not self._feeds.has(session)

    def now_or_later(self) -> Steps:
        """Return the answer, or an awaitable of it."""
        try:
            found = yield from self._read()
        except BaseException:
            # The follower has gone in the middle: nobody reads what is cold.
            self._reading.forget_cold()
            raise
        if found is not None and self._reading.cold:
            return self._warmed()
        if found is None or self._is_due(found):
            return (yield from self._told(found))
        return self._later()

    def now_or_later_at_once(self) -> Any:
        """Do as ``now_or_later`` for little news: in one step."""
        try:
            found = self._read_at_once()
        except Exception:
            self._reading.forget_cold()
            raise
        if self._reading.cold:
            return self._warmed()
        return self._told_at_once(found) if self._is_due(found) else self._later()

    async def _warmed(self) -> Any:
        """Return the answer after a thread has read what is not in the page cache."""
        found = None
        while self._reading.cold:
            await self._reading.warm_up()
            if self.is_superseded():
                return SUPERSEDED
            found = await in_turns(self._read(), self._feeds.clock)
            if found is None:
                self._reading.forget_cold()
        if found is None or self._is_due(found):
            return begun(self._told(found))
        return await self._later()

    def _is_due(self, found: list[tuple[Feed, Any]]) -> bool:
        """Whether what was found is told now, and not when more has come."""
        reading = self._reading
        if reading.size >= self._request.min_bytes or reading.is_last or reading.urgent:
            return True
        return reading.full or (bool(found) and self._session.prompt)

    def _later(self) -> asyncio.Future[Any]:
        request = self._request
        missing = request.min_bytes - self._reading.size
        departures = self._feeds.departures
        delayed = DelayedFetch(missing, request.max_wait_ms, self._finish, departures)
        delayed.join([self._session.waiting])
        return delayed.future

    def _finish(self) -> Any:
        if self.is_superseded():
            return SUPERSEDED
        self._reading.again()
        if len(self._session.news) <= AT_ONCE:
            return self._told_at_once(self._read_at_once())
        return begun(self._finished())

    def _finished(self) -> Steps:
        return (yield from self._told((yield from self._read())))

    def _read(self) -> Steps:
        """Look at what is news, and return what is to be told, or None when this request is
        superseded; what turns out to be none is taken off."""
        session, reading = self._session, self._reading
        reading.begin()
        session.is_stirred = False
        found: list[tuple[Feed, Any]] = []
        before = 0
        news = list(session.news)
        for first in range(0, len(news), AT_ONCE):
            if first:
                yield ANSWER_BYTES * AT_ONCE + reading.size - before
                before = reading.size
                if self.is_superseded():
                    return None
                # Who is woken now does not wait yet.
                reading.urgent |= session.is_stirred
            self._read_some(news[first : first + AT_ONCE], found)
        return found

    def _read_at_once(self) -> list[tuple[Feed, Any]]:
        """Do as ``_read`` for little news: in one step."""
        self._reading.begin()
        self._session.is_stirred = False
        found: list[tuple[Feed, Any]] = []
        self._read_some(list(self._session.news), found)
        return found

    def _read_some(self, feeds: list[Feed], found: list[tuple[Feed, Any]]) -> None:
        session, reading = self._session, self._reading
        get = self._feeds.get
        for feed in feeds:
            partition = get(feed.topic, feed.index)
            if partition is not feed.partition:
                feed.attach(partition)
            feed.has_moved = False
            if partition is None:
                reading.urgent = True
                error = self._feeds.why_not_here(feed.topic, feed.index)
                answer = refusal(feed.index, error)
            elif feed.is_void:
                reading.urgent = True
                answer = refusal(feed.index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                answer = reading.read(feed, partition)
            if is_news(feed, answer):
                found.append((feed, answer))
            elif partition is None or feed.fetch_offset == partition.end_offset:
                del session.news[feed]

    def _told(self, found: list[tuple[Feed, Any]] | None) -> Steps:
        """Tell what was found; nothing when this request is superseded."""
        response = None
        if found is not None:
            response = yield from respond(self._session.id, found, self._tell)
        return SUPERSEDED if response is None or self.is_superseded() else response

    def _told_at_once(self, found: list[tuple[Feed, Any]]) -> Any:
        """Do as ``_told`` for little news: in one step."""
        topics: dict[str, Any] = {}
        for feed, part in found:
            self._note_told(feed, part)
            put_into(topics, feed, part)
        return _Response(session_id=self._session.id, responses=list(topics.values()))

    def _tell(self, feed: Feed, answer: Any) -> bool:
        if self.is_superseded():
            return False
        self._note_told(feed, answer)
        return True

    def _note_told(self, feed: Feed, answer: Any) -> None:
        session, partition = self._session, feed.partition
        # A part without records may be one for which this answer had no room.
        unread = not answer.error_code and not len(answer.records)
        lacks = unread and partition is not None and feed.fetch_offset < partition.end_offset
        session.news.pop(feed, None)
        if lacks or feed.has_moved:
            session.news[feed] = None
        session.told.append(feed)
