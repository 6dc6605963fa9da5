"""What a reader of a group asks of the consumer on top of it: callbacks, and what is not returned.

Owns the interface, and its form for a reader that returns whole pieces and has no listeners. All
callbacks run inside ``GroupReader.poll`` and ``give_up``, never beside each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidelog.client.fetching.record_queue import QueuePlace
from tidelog.client.groups.committed_offsets import Membership
from tidelog.model.topics import TopicPartition


class ReaderHooks:
    """No listeners; what ``poll`` returned is processed when it is called again."""

    follows_keys = False
    """Whether there is a listener for the state of keys (KIP-253)."""

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions go to other members, when this returns."""

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions have gone to other members: the generation is over."""

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are this member's from now on, apart from those it kept."""

    async def keys_maybe_revoked(
        self, partitions: Sequence[TopicPartition], membership: Membership
    ) -> None:
        """Other members may load the state of these partitions' keys, when this returns."""

    async def keys_assigned(
        self, partitions: Sequence[TopicPartition], membership: Membership
    ) -> None:
        """Records of these partitions are delivered when this returns."""

    async def keys_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Other members have the state of these partitions' keys: the generation is over."""

    def undelivered(self) -> Mapping[TopicPartition, QueuePlace]:
        """Return where the application is, in partitions of which it has not got everything."""
        return {}

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before a position; -1 where it is not known."""
        return -1

    def drop(self, partitions: Collection[TopicPartition] | None) -> None:
        """Forget what the application has not got of these partitions; None: of all."""
