"""Fetch sessions of clients (KIP-227): the partitions that a client fetches, kept between requests.

Owns these sessions, limited in number by ``max.incremental.fetch.session.cache.slots``, in the
memory of all together, and in time. A session names topics by name, or by id (Fetch v13+, KIP-516):
FETCH_SESSION_TOPIC_ID_ERROR for a request that names them otherwise. Of each partition they keep
count, resize epoch and partition epoch, which a client sends again when they change (KIP-253). Not
those of followers: see ``follower_sessions``; not the reads: see ``partition_reads``. A client
whose session was evicted begins another one, or names all partitions in each request. The memory of
a session is charged to the account of its client's connection, also after the connection is closed.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.fetching.session_rules import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_INT32,
    NO_SESSION,
    UNUSABLE,
    applied,
    named_in,
    next_epoch,
    why_not_next,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.work import Work
from tidelog.replication.resize_rules import NOT_NAMED, Named

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.network.limits import Account, AccountHolder
    from tidelog.protocol import messages

EVICTION_MS = 120_000
"""A session used within this time is not evicted, as in Kafka, unless memory is short."""

EXPIRY_MS = 300_000
"""A session not used for this time ends: its client is gone, or begins another one."""


MAX_BYTES = 67_108_864
"""Maximum memory of all sessions together: about 100,000 partitions."""

PART_OF_ACCOUNT = 4
"""Sessions take at most this fraction (1/4) of the account (``queued.max.request.bytes``): they
stay for minutes, and requests need the rest."""

PARTITION_BYTES = 640
"""Memory of one partition in a session, without the name of its topic."""


def bytes_of(topic: str | bytes) -> int:
    """Return the memory of one partition of a topic in a session, in bytes; by its name or id.

    It includes the whole name: a request that names the topic once per partition has it as often.
    """
    return PARTITION_BYTES + (len(topic) if topic.isascii() else 4 * len(topic))


class Wanted:
    """One partition that a client fetches, and the offsets last sent to it."""

    __slots__ = (
        "by_id",
        "fetch_offset",
        "index",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start",
        "max_bytes",
        "named",
        "resting",
        "sent_ends",
        "sent_start",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        asked: messages.FetchRequest.FetchPartition,
        named: Named,
        key: str | bytes | None = None,
    ) -> None:
        """``key``: what the request names the topic by, its name or the bytes of its id. With an id
        ``topic`` is its present name, empty if there is none."""
        self.key = topic if key is None else key
        self.by_id = self.key.__class__ is bytes
        self.topic = topic
        self.index = asked.partition
        self.sent_ends = -2, -2
        self.sent_start = -2
        self.topic_id = topic_id
        self.update(topic_id, asked, named)

    def update(
        self, topic_id: UUID, asked: messages.FetchRequest.FetchPartition, named: Named
    ) -> None:
        """Apply a request's entry of this partition."""
        if topic_id is not self.topic_id and topic_id != self.topic_id:
            self.topic_id = topic_id
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start = asked.log_start_offset
        self.named = named
        self.resting: tuple[HostedPartition, object, object] | None = None

    def rest(self, partition: HostedPartition) -> None:
        """Note where a read found no change; see ``due``. Not for a consumer of another leader or
        resize epoch: what it gets depends on more."""
        state, named = partition.state, self.named
        is_present = named is NOT_NAMED or named == (
            state.undeleted_count,
            state.resize_epoch,
            state.partition_epoch,
        )
        if partition.is_leader and is_present and self.leader_epoch in (-1, state.leader_epoch):
            self.resting = partition, state, partition.log.metadata

    def is_of(self, partition: HostedPartition) -> bool:
        """Return whether a partition of that name has the topic id that the request names."""
        own = partition.topic_id
        # Mostly the same object as last time: the comparison of two UUIDs runs in Python.
        if self.topic_id is not own:
            if self.topic_id != own:
                return False
            self.topic_id = own
        return True

    def is_dirty(self, high_watermark: int, last_stable: int, log_start: int) -> bool:
        """Whether one of these differs from what was last sent."""
        return (high_watermark, last_stable) != self.sent_ends or log_start != self.sent_start

    def sent(self, high_watermark: int, last_stable: int, log_start: int) -> None:
        """Note the offsets of a response; -2: they must be sent again."""
        self.sent_ends = high_watermark, last_stable
        self.sent_start = log_start


def due(wanted: Iterable[Wanted], resting: list[HostedPartition]) -> list[Wanted]:
    """Return those that are to be read; add the partitions of the others to ``resting``.

    The others rest at the end of a partition: it is led and named as when they were last read, and
    neither its high watermark nor its start has moved. A tenth of the cost of a read.
    """
    to_read = []
    for one in wanted:
        if one.resting is not None:
            partition, state, metadata = one.resting
            log = partition.log
            if (
                log.high_watermark == one.fetch_offset == one.sent_ends[0]
                and log.start_offset == one.sent_start
                and partition.is_leader
                and partition.state is state
                and log.metadata is metadata
            ):
                resting.append(partition)
                continue
        to_read.append(one)
    return to_read


class ClientFetchSession:
    """One session. ``wanted`` is in the order in which partitions are read."""

    __slots__ = ("account", "by_id", "client_host", "epoch", "held", "id", "used_ms", "wanted")

    def __init__(
        self, session_id: int, used_ms: int, client: AccountHolder, *, by_id: bool = False
    ) -> None:
        self.by_id = by_id
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.used_ms = used_ms
        self.wanted: dict[tuple[str | bytes, int], Wanted] = {}
        self.held = 0
        """Bytes charged to the account."""
        self.account: Account = client.account
        self.client_host = client.client_host

    def take(
        self,
        topic: messages.FetchRequest.FetchTopic,
        asked: messages.FetchRequest.FetchPartition,
    ) -> int:
        """See ``session_rules.Session``."""
        by: str | bytes
        if self.by_id:
            topic_id = topic.topic_id
            by = topic_id.bytes
        else:
            by, topic_id = topic.topic, topic.follower_topic_id
        key, named = (by, asked.partition), named_in(topic, asked)
        former = self.wanted.get(key)
        if former is not None:
            former.update(topic_id, asked, named)
            return 0
        self.wanted[key] = Wanted(topic.topic, topic_id, asked, named, by)
        return bytes_of(by)

    def forget(self, topic: messages.FetchRequest.ForgottenTopic, index: int) -> int:
        """See ``session_rules.Session``."""
        by = topic.topic_id.bytes if self.by_id else topic.topic
        return 0 if self.wanted.pop((by, index), None) is None else -bytes_of(by)

    def move_last(self, wanted: Wanted) -> None:
        """Read this partition after the others next time: its records were sent."""
        key = (wanted.key, wanted.index)
        if self.wanted.get(key) is wanted:
            del self.wanted[key]
            self.wanted[key] = wanted


class FetchPlan:
    """The partitions of one request. ``full``: the response has all, not only changed ones."""

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
        """Whether a later request of the session has arrived while this one waited."""
        return self.session is not None and self.session.epoch != self.epoch


class FetchSessions:
    """The sessions of one broker, least recently used first."""

    def __init__(self, slots: int, random_source: random.Random) -> None:
        self._slots = slots
        self._random = random_source
        self._sessions: OrderedDict[int, ClientFetchSession] = OrderedDict()
        self.held = 0
        """Memory of all sessions, in bytes."""
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        request: messages.FetchRequest,
        now_ms: int,
        client: AccountHolder,
        *,
        by_id: bool = False,
    ) -> Work[Any]:
        """Return the ``FetchPlan`` of a request of ``client``, or an ``ErrorCode``; apply the
        request to its session. ``by_id``: it names topics by their ids.

        A session ends when its client disconnects while an incremental request is applied to it.
        """
        epoch = request.session_epoch
        self.expire(now_ms)
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            # A partition named twice is read once, as in its last entry (as in Kafka).
            fresh = ClientFetchSession(NO_SESSION, now_ms, client, by_id=by_id)
            for _ in applied(fresh, request, forgets=False):
                yield 0
            wanted = list(fresh.wanted.values())
            is_kept = epoch == INITIAL_EPOCH and wanted and self._open(fresh, now_ms)
            return FetchPlan(wanted, fresh if is_kept else None, full=True)
        session = self.find(request.session_id, epoch)
        if isinstance(session, ErrorCode):
            return session
        if session.by_id is not by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        self.use(session, now_ms)
        if not (yield from self._updated(session, request)):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not session.wanted:
            self._end(session.id)
            return FetchPlan([], None, full=True)
        session.epoch = next_epoch(epoch)
        return FetchPlan(list(session.wanted.values()), session, full=False)

    def find(self, session_id: int, epoch: int) -> ClientFetchSession | ErrorCode:
        """Return the session whose next request has this epoch, or why there is none."""
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return why_not_next(session, session_id, epoch) or session

    def use(self, session: ClientFetchSession, now_ms: int) -> None:
        """Begin to apply a request: the session is unusable until its next epoch is set."""
        session.epoch = UNUSABLE
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)

    def _updated(self, session: ClientFetchSession, request: messages.FetchRequest) -> Work[Any]:
        """Apply a request to its session; return whether the session still exists."""
        growth = applied(session, request)
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
                # The client disconnected, and part of its request is not applied.
                if self._sessions.get(session.id) is session:
                    self._end(session.id)
                raise
            if self._sessions.get(session.id) is not session:
                # It was evicted, or its client began a new one on another connection.
                return False

    def expire(self, now_ms: int) -> None:
        """End the sessions not used for ``EXPIRY_MS``. O(sessions that end)."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms < EXPIRY_MS:
                return
            self._end(oldest.id)

    def _grows(self, session: ClientFetchSession, grown: int) -> bool:
        """Charge the growth of a session; return False when there is no memory for it: then the
        session must end."""
        if grown <= 0:
            self._put_back(-grown, session)
            return True
        return self._take(grown, session)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._put_back(session.held, session)

    def _open(self, session: ClientFetchSession, now_ms: int) -> bool:
        """Keep a new session; False without room: then the client names all again."""
        size = sum(bytes_of(topic) for topic, _ in session.wanted)
        while len(self._sessions) >= self._slots or not self._has_room(size, session):
            if not self._evict_one(size, session, now_ms):
                return False
        if not self._take(size, session):
            return False
        while session.id == NO_SESSION or session.id in self._sessions:
            session.id = self._random.randrange(1, MAX_INT32)
        self._sessions[session.id] = session
        return True

    def _has_room(self, count: int, session: ClientFetchSession) -> bool:
        """Whether sessions may take ``count`` bytes more from this one's account."""
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

    def _evict_one(self, size: int, fresh: ClientFetchSession, now_ms: int) -> bool:
        """Evict a session not used for ``EVICTION_MS``, or, where memory is short, the largest one
        if it has more than twice the memory of the new one. O(sessions) for the latter."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms < EVICTION_MS:
            largest = max(self._sessions.values(), key=lambda session: session.held)
            if self._has_room(size, fresh) or largest.held <= 2 * size:
                return False
            oldest = largest
        self._end(oldest.id)
        self.evicted += 1
        return True
