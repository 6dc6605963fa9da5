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
step takes time by the partitions that it names; those of plain records and markers
also grow with the open transactions of the group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from tidelog.groups.offset_columns import OffsetRecords
from tidelog.groups.records import CommittedOffset


class PendingTopic:
    """The pending offsets of one transaction in one topic."""

    __slots__ = ("orders", "values")

    def __init__(self) -> None:
        self.values: dict[int, CommittedOffset] = {}
        self.orders: dict[int, int] = {}
        """By partition: numbers that rise in the order of the log."""

    def drop(self, partition: int) -> None:
        """Drop the pending offset of a partition, which it has."""
        del self.values[partition], self.orders[partition]


class PendingOffsets:
    """See the module."""

    __slots__ = ("_by_producer", "_order", "count", "flying")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[str, PendingTopic]] = {}
        self._order = 0
        self.count = 0
        """Their number: a partition counts for each transaction that has an offset of it."""
        self.flying: deque[OffsetRecords] = deque()
        """Those of transactions that were written and are not committed to the log yet: they are
        not among the pending ones."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is pending, nor will be by a write in flight."""
        return not (self._by_producer or self.flying)

    def add(
        self,
        producer_id: int,
        topic: str,
        partitions: Sequence[int],
        values: Iterable[CommittedOffset],
    ) -> None:
        """The log has committed offsets of a transaction."""
        self._order += 1
        topics = self._by_producer.setdefault(producer_id, {})
        pending = topics.setdefault(topic, PendingTopic())
        before = len(pending.values)
        pending.values.update(zip(partitions, values, strict=True))
        pending.orders.update(dict.fromkeys(partitions, self._order))
        self.count += len(pending.values) - before

    def overtake(self, topic: str, partitions: Iterable[int]) -> None:
        """The log has committed plain offsets, or tombstones, of these partitions."""
        partitions = set(partitions)
        for producer_id, topics in list(self._by_producer.items()):
            pending = topics.get(topic)
            if pending is None:
                continue
            for partition in pending.values.keys() & partitions:
                pending.drop(partition)
                self.count -= 1
            self._drop_if_empty(producer_id, topic)

    def end(self, producer_id: int, *, committed: bool) -> Mapping[str, PendingTopic]:
        """The log has committed the marker of a transaction: return the offsets that the group has
        now, by topic."""
        ended = self._by_producer.pop(producer_id, {})
        self.count -= sum(len(topic.values) for topic in ended.values())
        if not committed:
            return {}
        for other_id, topics in list(self._by_producer.items()):
            for name in topics.keys() & ended.keys():
                pending, winner = topics[name], ended[name]
                for partition in pending.values.keys() & winner.values.keys():
                    if pending.orders[partition] < winner.orders[partition]:
                        pending.drop(partition)
                        self.count -= 1
                self._drop_if_empty(other_id, name)
        return ended

    def set_topic_id(self, topic: str, topic_id: UUID) -> None:
        """Give all pending offsets of a topic this topic id."""
        for topics in self._by_producer.values():
            if (pending := topics.get(topic)) is not None:
                for partition, value in pending.values.items():
                    pending.values[partition] = value.with_topic_id(topic_id)

    def has(self, producer_id: int, topic: str, partition: int) -> bool:
        """Whether a transaction has a pending offset of a partition."""
        pending = self._by_producer.get(producer_id, {}).get(topic)
        return pending is not None and partition in pending.values

    def topic_ids(self) -> dict[str, dict[int, UUID]]:
        """Return, by topic and partition, the topic id of the last pending offset in the log."""
        ids: dict[str, dict[int, UUID]] = {}
        orders: dict[str, dict[int, int]] = {}
        for topics in self._by_producer.values():
            for name, pending in topics.items():
                own = {partition: value.topic_id for partition, value in pending.values.items()}
                if name not in ids:
                    ids[name], orders[name] = own, dict(pending.orders)
                    continue
                newest, last = ids[name], orders[name]
                for partition, order in pending.orders.items():
                    if order > last.get(partition, 0):
                        newest[partition], last[partition] = own[partition], order
        return ids

    def of_producers(self) -> Mapping[int, Mapping[str, Mapping[int, CommittedOffset]]]:
        """Return the pending offsets by producer id, topic and partition, to be read only."""
        return {
            producer_id: {name: topic.values for name, topic in topics.items()}
            for producer_id, topics in self._by_producer.items()
        }

    def _drop_if_empty(self, producer_id: int, topic: str) -> None:
        topics = self._by_producer[producer_id]
        if not topics[topic].values:
            del topics[topic]
            if not topics:
                del self._by_producer[producer_id]
