"""Fetch sessions (KIP-227): what a client wants to fetch, remembered between its requests.

Owns the sessions of clients, bounded by ``max.incremental.fetch.session.cache.slots``, by the
memory that all of them take, and by time; those of followers are in ``feeds``. Reading is
``fetch_reading``'s. A client whose session was given up begins another one, or sends all each time.
What a session takes is charged to the account of its client's connection, and outlives that.

| session id | epoch | meaning |
|---|---|---|
| 0 | -1 | no session: everything is in the request |
| n | -1 | the same, and session n ends |
| any | 0 | a new session with the partitions of the request (session n ends) |
| n | e > 0 | session n, whose next request must have epoch e; the request changes it |
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Generator
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.network.router import Steps

if TYPE_CHECKING:
    from tidelog.network.limits import Account, AccountHolder
    from tidelog.protocol import messages

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_INT32 = 2**31 - 1

EVICTION_MS = 120_000
"""A session that was used within this time is not given up for another one (as in Kafka)."""


EXPIRY_MS = 300_000
"""A session that was not used for so long has ended: its client is gone, or begins another."""

AT_ONCE = 1000
"""Partitions of a request that a session takes over in one step."""

UNUSABLE = -2
"""The epoch of a session while it takes over what a request says: no request has it."""

MAX_BYTES = 67_108_864
"""Memory that all sessions together may take: of some 150,000 partitions."""

PART_OF_ACCOUNT = 4
"""Nor may they take more than such a part of the account (``queued.max.request.bytes``): they stay
for minutes, and requests need the rest."""

PARTITION_BYTES = 450
"""What a session takes for a partition, its topic's name aside."""


def bytes_of(topic: str) -> int:
    """Return what a session takes for one partition of a topic, in bytes.

    With the whole name, though a request that names a topic once has it once: who names it with
    each partition has it as often.
    """
    return PARTITION_BYTES + (len(topic) if topic.isascii() else 4 * len(topic))


def next_epoch(epoch: int) -> int:
    """Return the epoch that the next request of a session has."""
    return 1 if epoch == MAX_INT32 else epoch + 1


class Wanted:
    """One partition that a client wants to fetch, and what it was last told of it."""

    __slots__ = (
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start",
        "max_bytes",
        "sent_start",
        "sent_watermark",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: str, topic_id: UUID, asked: messages.FetchRequest.FetchPartition
    ) -> None:
        self.topic = topic
        self.index = asked.partition
        self.sent_watermark = -2
        self.sent_start = -2
        self.topic_id = topic_id
        self.update(topic_id, asked)

    def update(self, topic_id: UUID, asked: messages.FetchRequest.FetchPartition) -> None:
        """Take over what a request says of this partition; only followers name the topic's id."""
        if topic_id != self.topic_id:
            self.topic_id = topic_id
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start = asked.log_start_offset


class ClientFetchSession:
    """One session. ``wanted`` is in the order in which partitions are read."""

    __slots__ = ("account", "client_host", "epoch", "held", "id", "used_ms", "wanted")

    def __init__(self, session_id: int, used_ms: int, client: AccountHolder) -> None:
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.used_ms = used_ms
        self.wanted: dict[tuple[str, int], Wanted] = {}
        self.held = 0
        """Bytes that it has taken from the account."""
        self.account: Account = client.account
        self.client_host = client.client_host

    def update(self, request: messages.FetchRequest) -> Generator[int, None, int]:
        """Add, change and forget partitions as an incremental request says; yield now and then,
        and return at last, by how many bytes the session has grown."""
        grown = seen = 0
        for topic in request.topics:
            for asked in topic.partitions:
                key = (topic.topic, asked.partition)
                known = self.wanted.get(key)
                if known is None:
                    self.wanted[key] = Wanted(topic.topic, topic.topic_id, asked)
                    grown += bytes_of(topic.topic)
                else:
                    known.update(topic.topic_id, asked)
                seen += 1
                if not seen % AT_ONCE:
                    yield grown
                    grown = 0
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                if self.wanted.pop((forgotten.topic, index), None) is not None:
                    grown -= bytes_of(forgotten.topic)
                seen += 1
                if not seen % AT_ONCE:
                    yield grown
                    grown = 0
        return grown

    def move_last(self, wanted: Wanted) -> None:
        """Read this partition after the others next time: it had its share."""
        key = (wanted.topic, wanted.index)
        if self.wanted.get(key) is wanted:
            del self.wanted[key]
            self.wanted[key] = wanted


class Plan:
    """What one request fetches. ``full``: every partition is answered, not only what is new."""

    __slots__ = ("epoch", "full", "session", "wanted")

    def __init__(
        self, wanted: list[Wanted], session: ClientFetchSession | None, *, full: bool
    ) -> None:
        self.wanted = wanted
        self.session = session
        self.full = full
        self.epoch = session.epoch if session is not None else FINAL_EPOCH

    @property
    def superseded(self) -> bool:
        """Whether another request has used the session while this one waited."""
        return self.session is not None and self.session.epoch != self.epoch


class FetchSessions:
    """The sessions of one broker, least recently used first."""

    def __init__(self, slots: int, random_source: random.Random) -> None:
        self._slots = slots
        self._random = random_source
        self._sessions: OrderedDict[int, ClientFetchSession] = OrderedDict()
        self.held = 0
        """Bytes that all sessions take."""
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: messages.FetchRequest, now_ms: int, client: AccountHolder) -> Steps:
        """Find out what a request of ``client`` fetches, and change its session accordingly; return
        a ``Plan``, or an ``ErrorCode``.

        A session ends whose client goes away while an incremental request is taken over.
        """
        epoch = request.session_epoch
        self.expire(now_ms)
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            # Who is named twice is read once, as the last entry says: so do Kafka's brokers.
            wanted: dict[tuple[str, int], Wanted] = {}
            seen = 0
            for topic in request.topics:
                name = topic.topic
                for asked in topic.partitions:
                    wanted[name, asked.partition] = Wanted(name, topic.topic_id, asked)
                    seen += 1
                    if not seen % AT_ONCE:
                        yield 0
            session = None
            if epoch == INITIAL_EPOCH and wanted:
                session = self._open(wanted, now_ms, client)
            return Plan(list(wanted.values()), session, full=True)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.epoch = UNUSABLE
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        if not (yield from self._updated(session, request)):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not session.wanted:
            self._end(session.id)
            return Plan([], None, full=True)
        session.epoch = next_epoch(epoch)
        return Plan(list(session.wanted.values()), session, full=False)

    def _updated(self, session: ClientFetchSession, request: messages.FetchRequest) -> Steps:
        """Change a session as its request says; return whether it is still there."""
        growth = session.update(request)
        while True:
            try:
                grown, ended = next(growth), False
            except StopIteration as end:
                grown, ended = end.value, True
            if not self._grows(session, grown):
                self._end(session.id)
                self.evicted += 1
                return False
            if ended:
                return True
            try:
                yield 0
            except GeneratorExit:
                # Its client is gone: nobody knows what the session has.
                if self._sessions.get(session.id) is session:
                    self._end(session.id)
                raise
            if self._sessions.get(session.id) is not session:
                # It gave way to another one, or its client began a new one elsewhere.
                return False

    def expire(self, now_ms: int) -> None:
        """End what was not used for ``EXPIRY_MS``. Grows with what ends."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms < EXPIRY_MS:
                return
            self._end(oldest.id)

    def _grows(self, session: ClientFetchSession, grown: int) -> bool:
        """Count by how much a session has grown; False when there is no memory for it: then it is
        to end. What it grows by was in the request."""
        if grown <= 0:
            self._put_back(-grown, session)
            return True
        return self._take(grown, session)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._put_back(session.held, session)

    def _open(
        self, wanted: dict[tuple[str, int], Wanted], now_ms: int, client: AccountHolder
    ) -> ClientFetchSession | None:
        """Return a new session, or None when there is no room: then the client sends all again."""
        session = ClientFetchSession(NO_SESSION, now_ms, client)
        size = sum(bytes_of(topic) for topic, _ in wanted)
        while len(self._sessions) >= self._slots or not self._has_room(size, session):
            if not self._give_up_one(size, session, now_ms):
                return None
        if not self._take(size, session):
            return None
        while session.id == NO_SESSION or session.id in self._sessions:
            session.id = self._random.randrange(1, MAX_INT32)
        session.wanted = wanted
        self._sessions[session.id] = session
        return session

    def _has_room(self, count: int, session: ClientFetchSession) -> bool:
        """Whether sessions may take so many bytes more, of the account of this one."""
        most = min(MAX_BYTES, session.account.limit // PART_OF_ACCOUNT)
        return self.held + count <= most

    def _take(self, count: int, session: ClientFetchSession) -> bool:
        """Charge ``count`` bytes for a session; False when there is no room."""
        if not self._has_room(count, session) or not session.account.take_now(count, session):
            return False
        session.held += count
        self.held += count
        return True

    def _put_back(self, count: int, session: ClientFetchSession) -> None:
        session.held -= count
        self.held -= count
        session.account.put_back(count, session)

    def _give_up_one(self, size: int, fresh: ClientFetchSession, now_ms: int) -> bool:
        """End one that was not used for ``EVICTION_MS``, or the largest where memory is short and
        it has more than twice as much as the new one. O(sessions) for the latter."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms < EVICTION_MS:
            largest = max(self._sessions.values(), key=lambda each: each.held)
            if self._has_room(size, fresh) or largest.held <= 2 * size:
                return False
            oldest = largest
        self._end(oldest.id)
        self.evicted += 1
        return True
