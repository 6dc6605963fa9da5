"""Fetchers of the partitions that this broker follows, one for each leader.

Owns the fetchers, and the map from partition to fetcher. Not the fetch requests: see
``source_fetcher``. There are at most as many fetchers as brokers in the cluster; one without
partitions waits, without a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.broker.following.source_fetcher import FollowerFetcher, Shared
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition


class Followers:
    """The fetchers of one broker. ``role_steps`` calls it after each change of a role."""

    def __init__(self, shared: Shared) -> None:
        """``shared``: the parts of the broker that each fetcher uses."""
        self._shared = shared
        self.copies = shared.copies
        """The targets of reassignments on this broker."""
        self.copies.begin, self.copies.end = self._begin, self._pause
        self._node_id = shared.configs.node_id
        self._fetchers: dict[int, FollowerFetcher] = {}
        self._of: dict[TopicPartition, tuple[HostedPartition, int, int]] = {}
        self._new: dict[TopicPartition, HostedPartition] = {}
        """New replicas that are not fetched yet."""

    def applied(self, partition: HostedPartition) -> None:
        """LeaderAndIsr was applied to a partition: follow its leader, or stop following."""
        if self._is_to_follow(partition) and self.copies.may_fetch(partition):
            self._begin(partition.key)

    def created(self, partition: HostedPartition) -> None:
        """Do as ``applied`` for a new replica, which is fetched after ``taken_new``."""
        if self._is_to_follow(partition):
            self._new[partition.key] = partition

    def _is_to_follow(self, partition: HostedPartition) -> bool:
        """Note which leader a partition follows now; return whether it follows any."""
        key, state = partition.key, partition.state
        leader = state.leader
        if leader < 0 or leader == self._node_id or partition.offline_reason is not None:
            self.stopped(key)
            return False
        present = (partition, leader, state.leader_epoch)
        # Of another leader or epoch: a response in flight is of the former one.
        if self._of.get(key) != present:
            self._leave(key)
            self._of[key] = present
            if leader not in self._fetchers:
                self._fetchers[leader] = FollowerFetcher(self._shared, leader)
        return True

    def taken_new(self) -> Iterable[HostedPartition]:
        """Return the new replicas, for ``applied``, and forget that they are new."""
        new, self._new = self._new, {}
        return new.values()

    def stopped(self, key: TopicPartition) -> None:
        """Stop following a partition; a response in flight is ignored."""
        self.copies.forget(key)
        self._leave(key)

    def _leave(self, key: TopicPartition) -> None:
        self._pause(key)
        self._of.pop(key, None)
        self._new.pop(key, None)

    def _begin(self, key: TopicPartition) -> None:
        """Fetch a partition from now on, unless it is fetched already."""
        present = self._of.get(key)
        if present is not None and not self._fetchers[present[1]].follows(key):
            self._fetchers[present[1]].follow(present[0])

    def _pause(self, key: TopicPartition) -> None:
        """Fetch a partition no longer, for now."""
        present = self._of.get(key)
        if present is not None:
            self._fetchers[present[1]].leave(key)

    @property
    def has_sources(self) -> bool:
        """Whether this broker follows any partition."""
        return bool(self._of)

    def proofs(self, leaders: Iterable[int]) -> dict[int, asyncio.Future[None]]:
        """Return a future of each of these leaders that is followed over an open connection.

        It is done when the leader has responded to a request sent later than now, and may stay
        without a result. The failure of another leader would not be noticed here.
        """
        return {
            leader: fetcher.proof()
            for leader in leaders
            if (fetcher := self._fetchers.get(leader)) is not None and fetcher.is_connected
        }

    def lost_for_ms(self, leader: int) -> int:
        """For how much longer a leader counts as lost, in ms; 0: it does not.

        A leader counts as lost after its connection broke, or while a response is overdue.
        """
        fetcher = self._fetchers.get(leader)
        return 0 if fetcher is None else fetcher.source_lost_for_ms

    def has_lost(self, leader: int) -> bool:
        """Whether a leader followed by this broker counts as lost."""
        return self.lost_for_ms(leader) > 0

    @property
    def noticed_a_loss(self) -> bool:
        """Whether any leader counts as lost."""
        return any(fetcher.source_lost_for_ms > 0 for fetcher in self._fetchers.values())

    async def close(self) -> None:
        """End all fetchers."""
        fetchers, self._fetchers = self._fetchers, {}
        self._of.clear()
        await self.copies.close()
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers.values()))
