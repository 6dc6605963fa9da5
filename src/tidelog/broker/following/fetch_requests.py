"""Contents of a follower's next fetch request to one leader: the partitions that have changed.

Owns the follower's half of a fetch session (KIP-227): the partitions followed, which of them the
next request names, which are paused after an error, session id and epoch. Pure. The cost of a
request grows with the changes since the last one, not with the partitions followed:

| event | effect |
|---|---|
| a partition is followed, in this leader epoch | the next request names it |
| its response was applied | the next request names it, if the log end or start has changed |
| its response was an error | the next request forgets it; named again after its pause |
| a throttle limits it | the same |
| a partition is no longer followed | the next request forgets it |
| the session is lost | the next request begins a new session, and names all |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import TYPE_CHECKING

from tidelog.client.fetching.fetch_sessions import (
    FULL_EPOCH,
    MAX_EPOCH,
    PartitionFetch,
    SessionRequest,
)
from tidelog.model.topics import TopicPartition
from tidelog.protocol.primitives import NO_UUID

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition


THROTTLE_CHECKED_MS = 500
"""The longest pause of a partition that a throttle limits."""


class Followed:
    """One partition of a source in one leader epoch."""

    __slots__ = ("asked", "failures", "hosted", "resting")

    def __init__(self, hosted: HostedPartition) -> None:
        self.hosted = hosted
        self.asked: PartitionFetch | None = None
        """Its entry in the leader's session; None: a response for it is ignored."""
        self.failures = 0
        self.resting = False


class FollowedPartitions:
    """The partitions that one broker follows from another."""

    def __init__(self) -> None:
        self._followed: dict[TopicPartition, Followed] = {}
        self._due: dict[TopicPartition, Followed] = {}
        self._at_leader: set[TopicPartition] = set()
        self._forgotten: dict[TopicPartition, None] = {}
        self._resting: list[tuple[int, int, TopicPartition, Followed]] = []
        self._turns = count()
        self._id = 0
        self._epoch = FULL_EPOCH

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._followed

    def follow(self, hosted: HostedPartition) -> None:
        """Fetch a partition, from the next request on."""
        self._followed[hosted.key] = self._due[hosted.key] = Followed(hosted)

    def leave(self, key: TopicPartition) -> None:
        """Stop the fetches of a partition; a response in flight is ignored."""
        if self._followed.pop(key, None) is not None:
            self._due.pop(key, None)
            self._forget(key)

    def _forget(self, key: TopicPartition) -> None:
        if key in self._at_leader:
            self._at_leader.discard(key)
            self._forgotten[key] = None

    def asked(self, key: TopicPartition) -> Followed | None:
        """Return a partition whose response counts, or None."""
        followed = self._followed.get(key)
        return None if followed is None or followed.asked is None else followed

    def taken(self, followed: Followed) -> None:
        """The response of a partition was applied."""
        followed.failures = 0
        self._due[followed.hosted.key] = followed

    def rest(self, followed: Followed, until_ms: int) -> None:
        """Pause a partition after an error, until this time."""
        followed.failures += 1
        self._pause(followed, until_ms)

    def pause_limited(
        self, free_in_ms: Callable[[HostedPartition, int], float], node_id: int, now_ms: int
    ) -> None:
        """Pause what the next request may not name yet: a throttle limits it. Its rate may change
        meanwhile, so a pause is short. O(partitions of the next request)."""
        self.wake(now_ms)
        for followed in list(self._due.values()):
            pause_ms = free_in_ms(followed.hosted, node_id)
            if pause_ms:
                self._pause(followed, now_ms + ceil(min(pause_ms, THROTTLE_CHECKED_MS)))

    def _pause(self, followed: Followed, until_ms: int) -> None:
        key = followed.hosted.key
        followed.asked = None
        followed.resting = True
        self._due.pop(key, None)
        self._forget(key)
        heappush(self._resting, (until_ms, next(self._turns), key, followed))

    def wake(self, now_ms: int) -> int | None:
        """Resume the partitions whose pause is over; return when the next pause ends, or None."""
        resting = self._resting
        while resting:
            until_ms, _, key, followed = resting[0]
            if self._followed.get(key) is followed:
                if until_ms > now_ms:
                    return until_ms
                followed.resting = False
                self._due[key] = followed
            heappop(resting)
        return None

    @property
    def nothing_to_ask(self) -> bool:
        """Whether a request would have no partitions: all are paused, or none is followed."""
        return not self._due and not self._at_leader

    def due(self) -> Iterable[Followed]:
        """Return the candidates for the next request: it omits those that have not changed."""
        return self._due.values()

    def ask(self, max_bytes: int, *, with_ids: bool) -> SessionRequest:
        """Return the contents of the next request, and note them."""
        full = self._epoch == FULL_EPOCH
        wanted: dict[TopicPartition, PartitionFetch] = {}
        for key, followed in self._due.items():
            fetch = _partition_fetch(followed.hosted, max_bytes, with_ids=with_ids)
            if fetch != followed.asked:
                followed.asked = wanted[key] = fetch
                self._at_leader.add(key)
        self._due.clear()
        # Named in both lists, one that was left and is followed again would leave the session
        # (KIP-227).
        forgotten = [key for key in self._forgotten if key not in wanted]
        self._forgotten.clear()
        return SessionRequest(self._id, self._epoch, wanted, [] if full else forgotten)

    def sent(self) -> None:
        """The request was sent: the leader expects the next session epoch."""
        if self._epoch != FULL_EPOCH:
            self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1

    def answered(self, session_id: int) -> None:
        """Note the session id of a response without a session error."""
        if session_id == 0:
            self.begin_again()
        elif session_id != self._id or self._epoch == FULL_EPOCH:
            self._id, self._epoch = session_id, 1

    @property
    def has_session(self) -> bool:
        """Whether the leader has a session with the partitions named before."""
        return self._epoch != FULL_EPOCH

    def begin_again(self) -> None:
        """Begin a new session with the next request: this one is lost. O(followed)."""
        self._id, self._epoch = 0, FULL_EPOCH
        self._at_leader.clear()
        self._forgotten.clear()
        for key, followed in self._followed.items():
            followed.asked = None
            if not followed.resting:
                self._due[key] = followed


def _partition_fetch(hosted: HostedPartition, max_bytes: int, *, with_ids: bool) -> PartitionFetch:
    """Return the entry of a partition, with the log end as its fetch offset."""
    log = hosted.log
    end = log.end_offset
    last_epoch = log.epochs.epoch_at(end - 1) if end > log.start_offset else -1
    topic_id = hosted.topic_id if with_ids else NO_UUID
    return PartitionFetch(
        end, max_bytes, hosted.leader_epoch, last_epoch, log.start_offset, topic_id
    )
