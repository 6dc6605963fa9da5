"""One follower's fetch session (KIP-227) on the leader, and its dirty partitions.

Owns which partitions of the session the next response must check (``dirty``). Not which session a
request belongs to, nor the response: see ``follower_sessions``. The cost of a request grows with
the changes, not with the partitions followed:

| event | dirty afterwards |
|---|---|
| the request names a partition | it; with another leader epoch its watermark is sent again |
| an append; this leadership ended; the log start offset moved | it; a delayed response is sent |
| the high watermark or the ISR changed | it; a delayed response is sent if ``prompt`` |
| the follower is not in the ISR | its partition, with each request until it has joined |
| the request has another broker epoch of the follower | all |
| the follower is no longer a replica | it: refused until a request names it again |
| the request came on another connection than the last one | all in the last response |

The last row is for followers that close a connection with a delayed request and continue the
session on the next connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.broker.fetching.client_sessions import Wanted
from tidelog.broker.fetching.session_rules import (
    INITIAL_EPOCH,
    UNUSABLE,
    applied,
    named_in,
    next_epoch,
)
from tidelog.model.work import Work
from tidelog.protocol import messages
from tidelog.runtime import pace

if TYPE_CHECKING:
    from uuid import UUID

    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.waiters import Waiter
    from tidelog.replication.resize_rules import Named


class SessionPartition(Wanted):
    """One partition in a follower's session; registered as a waiter of the partition meanwhile."""

    __slots__ = ("has_moved", "is_void", "partition", "session")

    def __init__(
        self,
        session: FollowerSession,
        topic: str,
        topic_id: UUID,
        asked: messages.FetchRequest.FetchPartition,
        named: Named,
    ) -> None:
        super().__init__(topic, topic_id, asked, named)
        self.session = session
        self.partition: HostedPartition | None = None
        self.is_void = False
        """Whether the follower was no replica at some time since a request named this: it must name
        it again."""
        self.has_moved = False
        """Whether the partition has changed since it was last read."""

    def more(self, size: int) -> None:
        """See ``waiters.Waiter``."""
        session = self.session
        session.dirty[self] = None
        self.has_moved = session.has_woken = True
        if size and self.partition is not None:
            follower = self.partition.followers.get(session.node_id)
            if follower is not None:
                follower.leader_appended(session.fetched_ms)
        for waiting in list(session.waiting):
            waiting.more(size)

    def moved(self) -> None:
        """See ``waiters.FollowerWaiter``."""
        session = self.session
        session.dirty[self] = None
        self.has_moved = True
        session.has_woken |= session.prompt
        partition = self.partition
        if partition is not None and session.node_id not in partition.state.hosts:
            # Its former fetch offset no longer counts, even if it is assigned again at once.
            self.is_void = True
        if partition is not None and session.node_id not in partition.state.isr:
            # ``dirty`` alone is not enough: a response that finds no change clears it before the
            # next request, and no event would mark an idle partition again.
            session.out_of_isr[self] = None
        if session.prompt:
            for waiting in list(session.waiting):
                waiting.more(0)

    def attach(self, partition: HostedPartition | None) -> None:
        """Become a waiter of a partition, and leave the former one (it was replaced or removed)."""
        if partition is not self.partition:
            if self.partition is not None:
                self.partition.waiting.followers.pop(self, None)
            self.partition = partition
            if partition is not None:
                partition.waiting.followers[self] = None


@dataclass(slots=True, eq=False)
class FollowerSession:
    """The session of one follower."""

    id: int
    node_id: int
    prompt: bool
    """Whether followers are sent a new high watermark at once: consumers read from them."""
    epoch: int = INITIAL_EPOCH
    broker_epoch: int = -1
    fetched_ms: int = 0
    connection: object = None
    entries: dict[tuple[str, int], SessionPartition] = field(default_factory=dict)
    dirty: dict[SessionPartition, None] = field(default_factory=dict)
    """What the next response checks, in this order: those whose records were sent come last."""
    out_of_isr: dict[SessionPartition, None] = field(default_factory=dict)
    """Those whose follower is not in the ISR: checked with each request."""
    sent: list[SessionPartition] = field(default_factory=list)
    """The partitions of the last response."""
    waiting: dict[Waiter, None] = field(default_factory=dict)
    """The delayed fetch of the present request."""
    has_woken: bool = False
    """Whether an event since the last read has woken delayed fetches."""

    def take(
        self,
        topic: messages.FetchRequest.FetchTopic,
        asked: messages.FetchRequest.FetchPartition,
    ) -> int:
        """See ``session_rules.Session``: memory is not counted here."""
        key, named = (topic.topic, asked.partition), named_in(topic, asked)
        entry = self.entries.get(key)
        if entry is None:
            entry = SessionPartition(self, topic.topic, topic.follower_topic_id, asked, named)
            self.entries[key] = entry
        else:
            if asked.current_leader_epoch != entry.leader_epoch:
                # The follower has dropped a response of the former leader epoch.
                entry.sent(-2, -2, -2)
            entry.update(topic.follower_topic_id, asked, named)
            entry.is_void = False
        self.dirty.pop(entry, None)
        self.dirty[entry] = None
        return 0

    def forget(self, topic: messages.FetchRequest.ForgottenTopic, index: int) -> int:
        """See ``session_rules.Session``."""
        self._drop(self.entries.pop((topic.topic, index), None))
        return 0

    def _drop(self, entry: SessionPartition | None) -> None:
        if entry is not None:
            entry.attach(None)
            self.dirty.pop(entry, None)
            self.out_of_isr.pop(entry, None)

    def end(self) -> None:
        """Remove all partitions, and leave their waiters."""
        for entry in list(self.entries.values()):
            self._drop(entry)
        self.entries.clear()
        self.sent.clear()

    def apply(self, request: messages.FetchRequest, connection: object, now_ms: int) -> Work[Any]:
        """Apply a request of this session, in steps.

        No other request is accepted before the last step. A follower that loses its connection
        meanwhile must begin a new session: it cannot know which part was applied.
        """
        after, self.epoch = next_epoch(self.epoch), UNUSABLE
        if connection is not self.connection:
            # The last response may be lost: all its partitions are dirty again.
            for part in pace.parts(self._still_here(self.sent)):
                for entry in part:
                    entry.sent(-2, -2, -2)
                    self.dirty[entry] = None
                yield None
            self.connection = connection
        if request.replica_broker_epoch != self.broker_epoch:
            self.broker_epoch = request.replica_broker_epoch
            self.dirty.update(dict.fromkeys(self.entries.values()))
        self.sent.clear()
        yield from applied(self, request)
        self.epoch = after
        self.fetched_ms = now_ms

    def apply_at_once(
        self, request: messages.FetchRequest, connection: object, now_ms: int
    ) -> bool:
        """Apply a request in one step, as ``apply`` does; return False, with nothing changed, when
        it is too much for one step.

        Nearly every request names few partitions of a session with few dirty ones.
        """
        few = pace.PART - len(self.dirty) - len(self.out_of_isr)
        for topic in request.topics:
            few -= len(topic.partitions)
        if few <= 0 or request.forgotten_topics_data or connection is not self.connection:
            return False
        if request.replica_broker_epoch != self.broker_epoch:
            return False
        self.sent.clear()
        for topic in request.topics:
            for asked in topic.partitions:
                self.take(topic, asked)
        self.epoch = next_epoch(self.epoch)
        self.fetched_ms = now_ms
        return True

    def to_note(self) -> list[SessionPartition]:
        """Return the partitions for which the fetch offset is noted with the present request."""
        return list(self.dirty | self.out_of_isr if self.out_of_isr else self.dirty)

    def _still_here(self, entries: Iterable[SessionPartition]) -> list[SessionPartition]:
        return [entry for entry in entries if self.entries.get((entry.topic, entry.index)) is entry]
