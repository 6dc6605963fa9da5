"""Which partitions this broker follows, and from whom.

Owns the fetchers, one for each broker that leads something followed here, and which of them a
partition belongs to; fetching is ``follower_fetcher``'s. There are at most as many fetchers as
brokers in the cluster; one without partitions waits and keeps no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.following.source_fetcher import FollowerFetcher, Shared
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition


class Followers:
    """The fetchers of one broker; told by ``Partitions`` of every change."""

    def __init__(self, shared: Shared) -> None:
        """``shared`` is what each fetcher uses of the broker."""
        self._shared = shared
        self._node_id = shared.configs.node_id
        self._fetchers: dict[int, FollowerFetcher] = {}
        self._of: dict[TopicPartition, tuple[HostedPartition, int, int]] = {}

    def applied(self, partition: HostedPartition) -> None:
        """The controller has spoken of a partition: follow its leader, or nobody any more."""
        key, state = partition.key, partition.state
        leader = state.leader
        follows = leader >= 0 and leader != self._node_id and partition.offline_reason is None
        present = (partition, leader, state.leader_epoch)
        if follows and self._of.get(key) == present:
            return
        self.stopped(key)
        if follows:
            self._of[key] = present
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = FollowerFetcher(self._shared, leader)
            fetcher.follow(partition)

    def stopped(self, key: TopicPartition) -> None:
        """A partition is not followed any more; what is under way for it is not taken in."""
        former = self._of.pop(key, None)
        if former is not None:
            self._fetchers[former[1]].leave(key)

    @property
    def has_sources(self) -> bool:
        """Whether anything is followed here."""
        return bool(self._of)

    def response_proofs(self) -> Callable[[int], bool]:
        """Return what says of a broker whether it has answered a question of later than now.

        One that is not connected to, so that its end would not be noticed here, needs no proof.
        """
        asked = {
            leader: (fetcher, fetcher.next_proof)
            for leader, fetcher in self._fetchers.items()
            if fetcher.is_connected
        }

        def responds(leader: int) -> bool:
            if leader not in asked:
                return True
            fetcher, proof = asked[leader]
            return fetcher.proofs >= proof

        return responds

    def lost_for_ms(self, leader: int) -> int:
        """How much longer a broker that is followed here counts as gone; 0: it does not.

        One whose connection broke a moment ago does, as seen from here.
        """
        fetcher = self._fetchers.get(leader)
        return 0 if fetcher is None else fetcher.source_lost_for_ms

    def has_lost(self, leader: int) -> bool:
        """Whether a broker that is followed here has just gone away, as seen from here."""
        return self.lost_for_ms(leader) > 0

    @property
    def noticed_a_loss(self) -> bool:
        """Whether some broker counts as gone: what clients ask about now has been noticed."""
        return any(fetcher.source_lost_for_ms > 0 for fetcher in self._fetchers.values())

    async def close(self) -> None:
        """End all fetchers."""
        fetchers, self._fetchers = self._fetchers, {}
        self._of.clear()
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers.values()))
