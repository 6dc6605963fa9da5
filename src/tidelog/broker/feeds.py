"""What followers want of this leader: one fetch session for each, and what is news to it.

Owns the sessions of followers (KIP-227) and which of their partitions an answer must look at; what
a partition answers is ``fetch_reading``'s. A request costs what changed, not what is followed:

| event | what it marks as news |
|---|---|
| the request names a partition | that one; in another leader epoch all of it is told again |
| records appended, leadership gone, the log's start moved | that one; the answer goes out now |
| watermark or ISR moved | that one, for the next answer (now, if consumers read from followers) |
| a follower is outside of the ISR | its partition with each request, until it is in |
| another broker epoch of the follower | all |
| the follower is taken off the replicas | that one: refused until a request names it again |
| the request came on another connection than the one before | all that the last answer told |

One session per follower: a new one replaces the old. The last two rows are for followers that give
up a connection on which a request waits, and go on with their session on the next.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidelog.broker.fetch_reading import (
    Reading,
    is_news,
    note_follower,
    refusal,
    respond,
)
from tidelog.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_INT32,
    UNUSABLE,
    Wanted,
    next_epoch,
)
from tidelog.broker.parked import DelayedFetch
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Steps, begun
from tidelog.protocol import messages
from tidelog.runtime.turns import in_turns

if TYPE_CHECKING:
    from uuid import UUID

    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import HostedPartition
    from tidelog.broker.partition_waiting import Waiter
    from tidelog.network.router import RequestContext

MAX_SESSIONS = 1000
"""Most followers with a session; the others say everything in each request."""

AT_ONCE = 500
"""Partitions that are looked at in one step."""

ANSWER_BYTES = 300
"""What a partition takes in an answer being made, its records aside."""

_Response = messages.FetchResponse
SUPERSEDED = _Response(error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))


class Feed(Wanted):
    """One partition in a follower's session; it waits at the partition for as long as it is in."""

    __slots__ = ("has_moved", "is_void", "partition", "session")

    def __init__(
        self,
        session: FeedSession,
        topic: str,
        topic_id: UUID,
        asked: messages.FetchRequest.FetchPartition,
    ) -> None:
        super().__init__(topic, topic_id, asked)
        self.session = session
        self.partition: HostedPartition | None = None
        self.is_void = False
        """Whether the follower was no replica since it asked: it is to ask again."""
        self.has_moved = False
        """Whether something has happened since it was looked at."""

    def more(self, size: int) -> None:
        """See ``partition_waiting.Waiter``."""
        session = self.session
        session.news[self] = None
        self.has_moved = session.is_stirred = True
        if size and self.partition is not None:
            follower = self.partition.followers.get(session.node_id)
            if follower is not None:
                follower.left_behind(session.fetched_ms)
        for waiting in list(session.waiting):
            waiting.more(size)

    def moved(self) -> None:
        """See ``partition_waiting.FollowerWaiter``."""
        session = self.session
        session.news[self] = None
        self.has_moved = True
        session.is_stirred |= session.prompt
        partition = self.partition
        if partition is not None and session.node_id not in partition.state.replicas:
            # What it held then counts no more, not even if it is assigned again at once.
            self.is_void = True
        if partition is not None and session.node_id not in partition.state.isr:
            # Not by the news alone: an answer that finds none takes them off before the next
            # request, and nobody would look at an idle partition again.
            session.outside[self] = None
        if session.prompt:
            for waiting in list(session.waiting):
                waiting.more(0)

    def attach(self, partition: HostedPartition | None) -> None:
        """Wait at a partition, and no more at the one before (it was replaced, or is gone)."""
        if partition is not self.partition:
            if self.partition is not None:
                self.partition.waiting.followers.pop(self, None)
            self.partition = partition
            if partition is not None:
                partition.waiting.followers[self] = None


class FeedSession:
    """The session of one follower."""

    __slots__ = (
        "connection",
        "epoch",
        "feeds",
        "fetched_ms",
        "id",
        "is_stirred",
        "life",
        "news",
        "node_id",
        "outside",
        "prompt",
        "told",
        "waiting",
    )

    def __init__(self, session_id: int, node_id: int, *, prompt: bool) -> None:
        self.id = session_id
        self.node_id = node_id
        self.prompt = prompt
        """Whether followers hear of the watermark at once: consumers read from them."""
        self.epoch = INITIAL_EPOCH
        self.life = -1
        self.fetched_ms = 0
        self.connection: object = None
        self.feeds: dict[tuple[str, int], Feed] = {}
        self.news: dict[Feed, None] = {}
        """What the next answer looks at, in this order: who had its share comes last."""
        self.outside: dict[Feed, None] = {}
        """Those whose follower is not in the ISR: looked at with each request."""
        self.told: list[Feed] = []
        """What the last answer had."""
        self.waiting: dict[Waiter, None] = {}
        """The request that waits for more."""
        self.is_stirred = False
        """Whether something has come for which a request that waits is woken."""

    def take(self, request: messages.FetchRequest) -> Steps:
        """Add, change and forget partitions as a request says. Grows with what it says."""
        news = self.news
        seen = 0
        for topic in request.topics:
            for asked in topic.partitions:
                seen += 1
                if not seen % AT_ONCE:
                    yield 0
                key = (topic.topic, asked.partition)
                feed = self.feeds.get(key)
                if feed is None:
                    feed = self.feeds[key] = Feed(self, topic.topic, topic.topic_id, asked)
                else:
                    if asked.current_leader_epoch != feed.leader_epoch:
                        # An answer that was under way then did not count for the follower.
                        feed.sent_watermark = feed.sent_start = -2
                    feed.update(topic.topic_id, asked)
                    feed.is_void = False
                news.pop(feed, None)
                news[feed] = None
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                seen += 1
                if not seen % AT_ONCE:
                    yield 0
                self._drop(self.feeds.pop((forgotten.topic, index), None))

    def _drop(self, feed: Feed | None) -> None:
        if feed is not None:
            feed.attach(None)
            self.news.pop(feed, None)
            self.outside.pop(feed, None)

    def end(self) -> None:
        """Wait nowhere any more."""
        for feed in list(self.feeds.values()):
            self._drop(feed)
        self.feeds.clear()
        self.told.clear()

    def began(self, request: messages.FetchRequest, connection: object, now_ms: int) -> Steps:
        """A request of this session has come.

        Until all of it is taken no other is taken, so that a follower whose connection is lost
        in the middle begins anew: it could not know what was taken.
        """
        after, self.epoch = next_epoch(self.epoch), UNUSABLE
        if connection is not self.connection:
            # Nobody knows whether the last answer came: all of it is news again.
            for seen, feed in enumerate(self._still_here(self.told)):
                if seen and not seen % AT_ONCE:
                    yield 0
                feed.sent_watermark = feed.sent_start = -2
                self.news[feed] = None
            self.connection = connection
        if request.replica_broker_epoch != self.life:
            self.life = request.replica_broker_epoch
            self.news.update(dict.fromkeys(self.feeds.values()))
        self.told.clear()
        yield from self.take(request)
        self.epoch = after
        self.fetched_ms = now_ms

    def _still_here(self, feeds: Iterable[Feed]) -> list[Feed]:
        return [feed for feed in feeds if self.feeds.get((feed.topic, feed.index)) is feed]


class Feeds:
    """The sessions of all followers of one broker."""

    def __init__(self, broker: Broker, random_source: random.Random) -> None:
        self._broker = broker
        self._random = random_source
        self._sessions: dict[int, FeedSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def handle(self, request: messages.FetchRequest, context: RequestContext) -> Any:
        """Answer a follower's Fetch with a session, now or when there is more; None: without."""
        session = self._session(request)
        if session is None or isinstance(session, ErrorCode):
            return None if session is None else _Response(error_code=session)
        return begun(self._serve(session, request, context))

    def _serve(
        self, session: FeedSession, request: messages.FetchRequest, context: RequestContext
    ) -> Steps:
        now_ms = self._broker.clock.monotonic_ms()
        yield from session.began(request, context.connection, now_ms)
        if not self.has(session):
            return SUPERSEDED
        answer = _Answer(self._broker, session, request, context)
        yield from self._note(session, now_ms)
        if answer.is_superseded():
            return SUPERSEDED
        return (yield from answer.now_or_later())

    def has(self, session: FeedSession) -> bool:
        """Whether no other session has taken its place."""
        return self._sessions.get(session.node_id) is session

    def _session(self, request: messages.FetchRequest) -> FeedSession | ErrorCode | None:
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
            prompt = self._broker.configs.reads_from_closest
            self._sessions[node_id] = fresh = FeedSession(session_id, node_id, prompt=prompt)
            return fresh
        if present is None or present.id != request.session_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if present.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return present

    def _note(self, session: FeedSession, now_ms: int) -> Steps:
        """Take the follower's offsets as what it holds, and see who is outside of the ISR."""
        get = self._broker.partitions.get
        node_id, life, epoch = session.node_id, session.life, session.epoch
        noted = (session.news | session.outside) if session.outside else list(session.news)
        for seen, feed in enumerate(noted):
            if seen and not seen % AT_ONCE:
                yield 0
                if session.epoch != epoch or not self.has(session):
                    return
            partition = get(feed.topic, feed.index)
            feed.attach(partition)
            if partition is None or not partition.is_leader:
                session.outside.pop(feed, None)
                continue
            if not feed.is_void:
                note_follower(self._broker, feed, partition, node_id, life, now_ms)
            if node_id in partition.state.isr:
                session.outside.pop(feed, None)
            else:
                session.outside[feed] = None


class _Answer:
    """The answer to one request of a session."""

    def __init__(
        self,
        broker: Broker,
        session: FeedSession,
        request: messages.FetchRequest,
        context: RequestContext,
    ) -> None:
        self._broker = broker
        self._session = session
        self._epoch = session.epoch
        self._request = request
        self._reading = Reading(broker, request, context)

    def is_superseded(self) -> bool:
        """Whether another request, or another session, has come meanwhile."""
        session = self._session
        return session.epoch != self._epoch or not self._broker.feeds.has(session)

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

    async def _warmed(self) -> Any:
        """Return the answer after a thread has read what is not in the page cache."""
        found = None
        while self._reading.cold:
            await self._reading.warm_up()
            if self.is_superseded():
                return SUPERSEDED
            found = await in_turns(self._read(), self._broker.clock)
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
        departures = self._broker.departures
        delayed = DelayedFetch(missing, request.max_wait_ms, self._finish, departures)
        delayed.join([self._session.waiting])
        return delayed.future

    def _finish(self) -> Any:
        if self.is_superseded():
            return SUPERSEDED
        self._reading.again()
        return begun(self._finished())

    def _finished(self) -> Steps:
        return (yield from self._told((yield from self._read())))

    def _read(self) -> Steps:
        """Look at what is news, and return what is to be told, or None when this request is
        superseded; what turns out to be none is taken off."""
        session, reading = self._session, self._reading
        get = self._broker.partitions.get
        reading.begin()
        session.is_stirred = False
        found = []
        before = 0
        for seen, feed in enumerate(list(session.news)):
            if seen and not seen % AT_ONCE:
                yield ANSWER_BYTES * AT_ONCE + reading.size - before
                before = reading.size
                if self.is_superseded():
                    return None
                # Who is woken now does not wait yet.
                reading.urgent |= session.is_stirred
            partition = get(feed.topic, feed.index)
            if partition is not feed.partition:
                feed.attach(partition)
            feed.has_moved = False
            if partition is None:
                reading.urgent = True
                error = self._broker.why_not_here(feed.topic, feed.index)
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
        return found

    def _told(self, found: list[tuple[Feed, Any]] | None) -> Steps:
        """Tell what was found; nothing when this request is superseded."""
        response = None
        if found is not None:
            response = yield from respond(self._session.id, found, self._tell)
        return SUPERSEDED if response is None or self.is_superseded() else response

    def _tell(self, feed: Feed, answer: Any) -> bool:
        session, partition = self._session, feed.partition
        if self.is_superseded():
            return False
        # A part without records may be one for which this answer had no room.
        unread = not answer.error_code and not len(answer.records)
        lacks = unread and partition is not None and feed.fetch_offset < partition.end_offset
        session.news.pop(feed, None)
        if lacks or feed.has_moved:
            session.news[feed] = None
        session.told.append(feed)
        return True
