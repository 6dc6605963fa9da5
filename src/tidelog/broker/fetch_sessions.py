"""Fetch sessions (KIP-227): what a client wants to fetch, remembered between its requests.

Owns the sessions of clients, bounded by ``max.incremental.fetch.session.cache.slots``; those of
followers are in ``feeds``. Reading is ``fetch_reading``'s.

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
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.protocol import messages

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_INT32 = 2**31 - 1

EVICTION_MS = 120_000
"""A session that was used within this time is not given up for another one (as in Kafka)."""


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
        self.update(topic_id, asked)

    def update(self, topic_id: UUID, asked: messages.FetchRequest.FetchPartition) -> None:
        """Take over what a request says of this partition; only followers name the topic's id."""
        self.topic_id = topic_id
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start = asked.log_start_offset


class Session:
    """One session. ``wanted`` is in the order in which partitions are read."""

    __slots__ = ("epoch", "id", "used_ms", "wanted")

    def __init__(self, session_id: int, used_ms: int) -> None:
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.used_ms = used_ms
        self.wanted: dict[tuple[str, int], Wanted] = {}

    def update(self, request: messages.FetchRequest) -> None:
        """Add, change and forget partitions as an incremental request says."""
        for topic in request.topics:
            for asked in topic.partitions:
                key = (topic.topic, asked.partition)
                known = self.wanted.get(key)
                if known is None:
                    self.wanted[key] = Wanted(topic.topic, topic.topic_id, asked)
                else:
                    known.update(topic.topic_id, asked)
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self.wanted.pop((forgotten.topic, index), None)

    def move_last(self, wanted: Wanted) -> None:
        """Read this partition after the others next time: it had its share."""
        key = (wanted.topic, wanted.index)
        if self.wanted.get(key) is wanted:
            del self.wanted[key]
            self.wanted[key] = wanted


class Plan:
    """What one request fetches. ``full``: every partition is answered, not only what is new."""

    __slots__ = ("epoch", "full", "session", "wanted")

    def __init__(self, wanted: list[Wanted], session: Session | None, *, full: bool) -> None:
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
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: messages.FetchRequest, now_ms: int) -> Plan | ErrorCode:
        """Find out what a request fetches, and change its session accordingly."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            wanted = [
                Wanted(t.topic, t.topic_id, asked) for t in request.topics for asked in t.partitions
            ]
            if epoch == FINAL_EPOCH or not wanted:
                return Plan(wanted, None, full=True)
            return Plan(wanted, self._open(wanted, now_ms), full=True)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.update(request)
        if not session.wanted:
            del self._sessions[session.id]
            return Plan([], None, full=True)
        session.epoch = next_epoch(epoch)
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        return Plan(list(session.wanted.values()), session, full=False)

    def _open(self, wanted: list[Wanted], now_ms: int) -> Session | None:
        """Return a new session, or None when there is no room: then the client sends all again."""
        if len(self._sessions) >= self._slots:
            if not self._sessions:
                return None
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms < EVICTION_MS:
                return None
            del self._sessions[oldest.id]
            self.evicted += 1
        session_id = self._random.randrange(1, MAX_INT32)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, MAX_INT32)
        session = Session(session_id, now_ms)
        session.wanted = {(each.topic, each.index): each for each in wanted}
        self._sessions[session_id] = session
        return session
