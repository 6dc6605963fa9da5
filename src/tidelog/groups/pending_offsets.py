"""Offsets of one group that were committed in transactions which have not ended (KIP-98, KIP-447).

Owns which value each open transaction gives to a partition if it commits. Not the transactions of
a partition of the log: see `committing_producers`; not the rules: see `offsets`.

What comes later in the log wins, whatever its kind (decision 0122):

| after a pending offset of a partition the log has | the pending offset |
|---|---|
| a plain commit, or a tombstone | is dropped, however its transaction ends |
| a pending offset of the same transaction | is replaced |
| a pending offset of another transaction | stays until that one commits; then it is dropped |
| the commit marker of its transaction | is the group's offset |
| the abort marker of its transaction | is dropped |

So a pending offset that is left is later in the log than the group's offset of its partition. Each
step takes time by the partitions that it names and the offsets that it drops, and an offset is
dropped once: the number of open transactions is in none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import takewhile
from uuid import UUID

from tidelog.groups.offset_columns import OffsetColumns
from tidelog.groups.records import CommittedOffset
from tidelog.model.topics import TopicPartition


class PendingOffsets:
    """See the module."""

    __slots__ = ("_by_producer", "_flying", "_holders", "count", "partition_count")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[str, dict[int, CommittedOffset]]] = {}
        self._holders: dict[str, dict[int, dict[int, None]]] = {}
        """By topic and partition: the producers that have an offset of it, in the order of the log.
        Of no partition without one."""
        self._flying: dict[str, dict[int, list[UUID]]] = {}
        """Of transactions, written and not committed to the log yet: the topic ids of each
        partition, in the order of the log. They are not among the pending ones."""
        self.count = 0
        """Their number: a partition counts for each transaction that has an offset of it."""
        self.partition_count = 0
        """Of how many partitions there are any."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending, nor will be by a write in flight."""
        return not (self._by_producer or self._flying)

    # What is in flight -----------------------------------------------------------------------

    def wrote(self, columns: OffsetColumns) -> None:
        """Offsets of a transaction were written: they are the newest."""
        flying = self._flying.setdefault(columns.topic, {})
        for partition in columns.partitions:
            flying.setdefault(partition, []).append(columns.topic_id)

    def landed(self, columns: OffsetColumns, *, oldest: bool) -> None:
        """The ``oldest`` of them were committed, or the newest were refused."""
        flying = self._flying[columns.topic]
        for partition in columns.partitions:
            topic_ids = flying[partition]
            topic_ids.pop(0 if oldest else -1)
            if not topic_ids:
                del flying[partition]
        if not flying:
            del self._flying[columns.topic]

    # What is pending -------------------------------------------------------------------------

    def add(
        self,
        producer_id: int,
        topic: str,
        partitions: Iterable[int],
        values: Iterable[CommittedOffset],
    ) -> None:
        """The log has committed offsets of a transaction."""
        pending = self._by_producer.setdefault(producer_id, {}).setdefault(topic, {})
        holders = self._holders.setdefault(topic, {})
        for partition, value in zip(partitions, values, strict=True):
            producers = holders.get(partition)
            if producers is None:
                producers = holders[partition] = {}
                self.partition_count += 1
            elif partition in pending:
                del producers[producer_id]
                self.count -= 1
            producers[producer_id] = None  # the last one
            pending[partition] = value
            self.count += 1

    def overtake(self, topic: str, partitions: Iterable[int]) -> None:
        """The log has committed plain offsets, or tombstones, of these partitions."""
        holders = self._holders.get(topic)
        if holders is None:
            return
        for partition in partitions:
            producers = holders.pop(partition, None)
            if producers is not None:
                self.partition_count -= 1
                self._drop(producers, topic, partition)
        if not holders:
            del self._holders[topic]

    def end(self, producer_id: int, *, committed: bool) -> Mapping[str, dict[int, CommittedOffset]]:
        """The log has committed the marker of a transaction: return the offsets that the group has
        now, by topic."""
        ended = self._by_producer.pop(producer_id, {})
        for topic, pending in ended.items():
            holders = self._holders[topic]
            self.count -= len(pending)
            for partition in pending:
                producers = holders[partition]
                if committed and len(producers) > 1:
                    earlier = list(takewhile(producer_id.__ne__, producers))
                    self._drop(earlier, topic, partition)
                    for dropped in earlier:
                        del producers[dropped]
                del producers[producer_id]
                if not producers:
                    del holders[partition]
                    self.partition_count -= 1
            if not holders:
                del self._holders[topic]
        return ended if committed else {}

    def _drop(self, producers: Collection[int], topic: str, partition: int) -> None:
        """Drop the offsets of former holders of a partition."""
        self.count -= len(producers)
        by_producer = self._by_producer
        for producer_id in producers:
            topics = by_producer[producer_id]
            pending = topics[topic]
            del pending[partition]
            if not pending:
                del topics[topic]
                if not topics:
                    del by_producer[producer_id]

    def set_topic_id(self, topic: str, topic_id: UUID) -> None:
        """Give all pending offsets of a topic this topic id."""
        for partition, producers in self._holders.get(topic, {}).items():
            for producer_id in producers:
                pending = self._by_producer[producer_id][topic]
                pending[partition] = pending[partition].with_topic_id(topic_id)

    # Questions -------------------------------------------------------------------------------

    def has(self, producer_id: int, topic: str, partition: int) -> bool:
        """Whether a transaction has a pending offset of a partition."""
        return partition in self._by_producer.get(producer_id, {}).get(topic, ())

    def topics(self) -> Collection[str]:
        """Return the topics with a pending offset, to be read before a change."""
        return self._holders.keys()

    def of(self, topic: str) -> Collection[int]:
        """Return the partitions of a topic with a pending offset, to be read before a change."""
        return self._holders.get(topic, ())

    def topic_id_of(self, topic: str, partition: int) -> UUID | None:
        """Return the topic id of the last pending offset of a partition in the log; None without
        one."""
        producers = self._holders.get(topic, {}).get(partition)
        if producers is None:
            return None
        last = next(reversed(producers))
        return self._by_producer[last][topic][partition].topic_id

    def partitions(self) -> Iterator[TopicPartition]:
        """Yield all partitions with a pending offset."""
        for topic, holders in self._holders.items():
            for partition in holders:
                yield TopicPartition(topic, partition)

    def unstable(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, UUID]:
        """Return those of the partitions, None for all of the topic, whose offset depends on how a
        transaction ends: pending or in flight, with the topic id of the last such offset."""
        holders, flying = self._holders.get(topic, {}), self._flying.get(topic, {})
        if not holders and not flying:
            return {}
        unstable: dict[int, UUID] = {}
        for partition in holders.keys() | flying.keys() if partitions is None else partitions:
            if partition in flying:
                unstable[partition] = flying[partition][-1]
            elif (topic_id := self.topic_id_of(topic, partition)) is not None:
                unstable[partition] = topic_id
        return unstable

    def of_producers(self) -> Mapping[int, Mapping[str, Mapping[int, CommittedOffset]]]:
        """Return the pending offsets by producer id, topic and partition, to be read only."""
        return self._by_producer
