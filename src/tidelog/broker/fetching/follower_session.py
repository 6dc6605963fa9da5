"""One follower's fetch session on its leader: what it asked for, and what of that is news to it.

Owns which partitions the next answer must look at (KIP-227); whose session it is, and the answer,
is ``feeds``'. A request costs what changed, not what is followed:

| event | what it marks as news |
|---|---|
| the request names a partition | that one; in another leader epoch all of it is told again |
| records appended, leadership gone, the log's start moved | that one; the answer goes out now |
| watermark or ISR moved | that one, for the next answer (now, if consumers read from followers) |
| a follower is outside of the ISR | its partition with each request, until it is in |
| another broker epoch of the follower | all |
| the follower is taken off the replicas | that one: refused until a request names it again |
| the request came on another connection than the one before | all that the last answer told |

The last two rows are for followers that give up a connection on which a request waits, and go on
with their session on the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidelog.broker.fetching.client_sessions import INITIAL_EPOCH, UNUSABLE, Wanted, next_epoch
from tidelog.network.router import Steps
from tidelog.protocol import messages

if TYPE_CHECKING:
    from uuid import UUID

    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.waiters import Waiter

AT_ONCE = 500
"""Partitions that are looked at in one step."""


class Feed(Wanted):
    """One partition in a follower's session; it waits at the partition for as long as it is in."""

    __slots__ = ("has_moved", "is_void", "partition", "session")

    def __init__(
        self,
        session: FollowerSession,
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
        if partition is not None and session.node_id not in partition.state.hosts:
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


class FollowerSession:
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
        seen = 0
        for topic in request.topics:
            for asked in topic.partitions:
                seen += 1
                if not seen % AT_ONCE:
                    yield 0
                self._take_one(topic, asked)
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                seen += 1
                if not seen % AT_ONCE:
                    yield 0
                self._drop(self.feeds.pop((forgotten.topic, index), None))

    def _take_one(self, topic: Any, asked: Any) -> None:
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
        self.news.pop(feed, None)
        self.news[feed] = None

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

    def began_at_once(
        self, request: messages.FetchRequest, connection: object, now_ms: int
    ) -> bool:
        """Do as ``began`` in one step; False, with nothing done, when there is much to do.

        Nearly every request says little, of a session in which little has happened.
        """
        few = AT_ONCE - len(self.news) - len(self.outside)
        for topic in request.topics:
            few -= len(topic.partitions)
        if few <= 0 or request.forgotten_topics_data or connection is not self.connection:
            return False
        if request.replica_broker_epoch != self.life:
            return False
        self.told.clear()
        for topic in request.topics:
            for asked in topic.partitions:
                self._take_one(topic, asked)
        self.epoch = next_epoch(self.epoch)
        self.fetched_ms = now_ms
        return True

    def to_note(self) -> list[Feed]:
        """Return the partitions whose follower is looked at with the request that has come."""
        return list(self.news | self.outside if self.outside else self.news)

    def _still_here(self, feeds: Iterable[Feed]) -> list[Feed]:
        return [feed for feed in feeds if self.feeds.get((feed.topic, feed.index)) is feed]
