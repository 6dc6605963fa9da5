"""What a consumer's user passes and receives: listeners, offsets with their metadata, errors.

Owns these types. Not the record: see ``client.fetching.consumer_record``. Names are kafka-python's,
those of the listeners Kafka's in snake case.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tidelog.model.topics import TopicPartition


class OffsetAndMetadata(NamedTuple):
    """A position to commit: the next offset to read, a note, the epoch of the record before."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """What a transaction says of the consumer whose offsets it commits (KIP-447).

    The group refuses the offsets of a member that it has replaced. Without a generation it takes
    them from any client.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time: its offset, its timestamp in ms, its leader epoch."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class ConsumerRebalanceListener:
    """Called inside ``poll`` (and ``close``) when partitions come and go; methods may be coroutines
    in ``tidelog.aio``."""

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> object:
        """Partitions go to other members when this returns."""

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> object:
        """Partitions are this consumer's, beside those that it kept; nothing of them was read."""

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> object:
        """Partitions have gone to other members already: nothing of them can be committed."""
        return self.on_partitions_revoked(lost)


class PartitionKeyRebalanceListener:
    """For an application that keeps state per key, which goes where the keys go (KIP-253).

    A record is delivered only between ``on_partition_key_assigned`` and
    ``on_partition_key_maybe_revoked`` of its partition. So an application that writes its state in
    the latter and reads it in the former has the state of all earlier records of a key, on
    whichever consumer and in whichever partition they were, while topics grow and shrink and
    members come and go. A consumer that the group has removed gets ``on_partition_key_lost``
    instead of the latter.

    All are called inside ``poll``, never beside it, and at the end in ``close``. ``generation``
    and ``member`` are those of this consumer in its group: a store that refuses writes of an older
    generation is safe from a member that was removed and does not know it yet. A callback that
    raises is called again by the next ``poll``; until it returns nothing is committed, reported or
    delivered. In ``tidelog.aio`` the methods may be coroutines.
    """

    def on_partition_key_maybe_revoked(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> object:
        """Write the state of all keys of these partitions: another consumer may read it next.

        Called before keys may move (all records before a resize are processed), before partitions
        are given up, and before an automatic commit.
        """

    def on_partition_key_assigned(
        self, partitions: Collection[TopicPartition], generation: int, member: str
    ) -> object:
        """Read the state of the keys of these partitions: no other consumer has it any more."""

    def on_partition_key_lost(self, partitions: Collection[TopicPartition]) -> object:
        """Forget the state of all keys of these partitions, and write nothing.

        The group has removed this consumer, or its coordinator was silent for a session: another
        one may have read what was written last, and what came after the last commit comes again.
        """
