"""Offsets of one group that are in its log and do not count yet, and removals in flight.

Owns which they are: in flight, until the log has committed them, and then pending, until their
transaction ends (`pending_offsets`). Commits arrive and end in the order of the log, so a topic
keeps its records as they were written; what each partition has is known only while some rule asks
for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from tidelog.groups.offset_columns import OffsetRecords
from tidelog.groups.pending_offsets import PendingOffsets
from tidelog.groups.records import CommittedOffset
from tidelog.model.topics import TopicPartition


class OffsetsInFlight:
    """See the module."""

    __slots__ = ("_by_partition", "_topics", "count", "pending")

    def __init__(self) -> None:
        self._topics: dict[str, deque[tuple[Sequence[int], UUID]]] = {}
        self._by_partition: dict[TopicPartition, list[UUID]] | None = None
        self.count = 0
        """Their number without pending ones: a partition counts as often as it has any."""
        self.pending: PendingOffsets | None = None
        """None: no transaction has any, nor a write of one in flight."""

    def add(self, topic: str, partitions: Sequence[int], topic_id: UUID) -> None:
        """Offsets of these partitions were written, in one record of a write."""
        flying = self._topics.get(topic)
        if flying is None:
            flying = self._topics[topic] = deque()
        flying.append((partitions, topic_id))
        self.count += len(partitions)
        if self._by_partition is not None:
            _add(self._by_partition, topic, partitions, topic_id)

    def end(self, topic: str, *, oldest: bool) -> None:
        """The ``oldest`` record of a topic was committed, or the newest was refused."""
        flying = self._topics[topic]
        partitions, _ = flying.popleft() if oldest else flying.pop()
        self.count -= len(partitions)
        if not flying:
            del self._topics[topic]
        if not self._topics:
            self._by_partition = None
        elif self._by_partition is not None:
            _remove(self._by_partition, topic, partitions, oldest)

    def by_partition(self) -> Mapping[TopicPartition, Sequence[UUID]]:
        """Return the topic id of each offset that does not count yet, as in ``CommittedOffset``, in
        the order of the log; ``NO_TOPIC_ID`` for a removal.

        To be read before anything changes. O(all in flight) if nothing has asked since none was:
        pending ones take no time.
        """
        flying = self._by_partition_in_flight()
        return flying if self.pending is None else _NotCounted(self.pending, flying)

    def has_topic(self, topic: str) -> bool:
        """Whether offsets of a topic do not count yet."""
        return topic in self._topics or (self.pending is not None and bool(self.pending.of(topic)))

    def topics(self) -> list[str]:
        """Return the topics with offsets that do not count yet, some of them twice. O(these)."""
        return [*self._topics, *(() if self.pending is None else self.pending.topics())]

    def partitions_of(self, topic: str) -> list[int]:
        """Return the partitions of a topic with offsets that do not count yet. O(these)."""
        uncounted = {} if self.pending is None else dict.fromkeys(self.pending.of(topic))
        for partitions, _ in self._topics.get(topic, ()):
            uncounted.update(dict.fromkeys(partitions))
        return list(uncounted)

    def _by_partition_in_flight(self) -> Mapping[TopicPartition, Sequence[UUID]]:
        if self._by_partition is None:
            indexed: dict[TopicPartition, list[UUID]] = {}
            for topic, flying in self._topics.items():
                for partitions, topic_id in flying:
                    _add(indexed, topic, partitions, topic_id)
            if not indexed:
                return indexed
            self._by_partition = indexed
        return self._by_partition

    # Transactions ----------------------------------------------------------------------------

    def wrote(self, records: Sequence[OffsetRecords]) -> None:
        """Offsets of a transaction were written, after the others of the same write."""
        pending = self._changing()
        for record in records:
            columns = record.columns
            self.add(columns.topic, columns.partitions, columns.topic_id)
            pending.wrote(columns)

    def landed(self, records: Sequence[OffsetRecords], *, oldest: bool) -> None:
        """The ``oldest`` of them were committed, or the newest were refused."""
        pending = self._changing()
        for record in records:
            self.end(record.columns.topic, oldest=oldest)
            pending.landed(record.columns, oldest=oldest)
        self._drop_if_empty()

    def pend(
        self,
        producer_id: int,
        topic: str,
        partitions: Sequence[int],
        values: Iterable[CommittedOffset],
    ) -> None:
        """The log has committed offsets of a transaction: they count once it commits."""
        self._changing().add(producer_id, topic, partitions, values)

    def overtake(self, topic: str, partitions: Iterable[int]) -> None:
        """The log has committed plain offsets, or tombstones, while some are pending."""
        self._changing().overtake(topic, partitions)
        self._drop_if_empty()

    def end_transaction(
        self, producer_id: int, *, committed: bool
    ) -> Mapping[str, dict[int, CommittedOffset]]:
        """The log has committed a marker: return the offsets that count now, by topic."""
        counted = self._changing().end(producer_id, committed=committed)
        self._drop_if_empty()
        return counted

    def begin_topic(self, topic: str, topic_id: UUID) -> None:
        """All pending offsets of a topic are of this topic id."""
        if self.pending is not None:
            self._changing().set_topic_id(topic, topic_id)

    def unstable(self, topic: str, partitions: Iterable[int] | None = None) -> Mapping[int, UUID]:
        """Return those of the partitions, None for all of the topic, whose offset depends on how a
        transaction ends, with the topic id of the last such offset. O(partitions)."""
        return {} if self.pending is None else self.pending.unstable(topic, partitions)

    def _changing(self) -> PendingOffsets:
        """Return the pending offsets to change them."""
        if self.pending is None:
            self.pending = PendingOffsets()
        return self.pending

    def _drop_if_empty(self) -> None:
        if self.pending is not None and self.pending.is_empty:
            self.pending = None


class _NotCounted(Mapping[TopicPartition, Sequence[UUID]]):
    """What is pending, and then what is in flight: the log has committed the former."""

    __slots__ = ("_flying", "_pending")

    def __init__(
        self, pending: PendingOffsets, flying: Mapping[TopicPartition, Sequence[UUID]]
    ) -> None:
        self._pending = pending
        self._flying = flying

    def __contains__(self, tp: object) -> bool:
        assert isinstance(tp, TopicPartition)
        return tp in self._flying or tp.partition in self._pending.of(tp.topic)

    def __getitem__(self, tp: TopicPartition) -> Sequence[UUID]:
        pending = self._pending.topic_id_of(tp.topic, tp.partition)
        return self._flying[tp] if pending is None else [pending, *self._flying.get(tp, ())]

    def __iter__(self) -> Iterator[TopicPartition]:
        yield from self._pending.partitions()
        for tp in self._flying:
            if tp.partition not in self._pending.of(tp.topic):
                yield tp

    def __len__(self) -> int:
        both = sum(tp.partition in self._pending.of(tp.topic) for tp in self._flying)
        return self._pending.partition_count + len(self._flying) - both


def _add(
    indexed: dict[TopicPartition, list[UUID]],
    topic: str,
    partitions: Sequence[int],
    topic_id: UUID,
) -> None:
    for partition in partitions:
        indexed.setdefault(TopicPartition(topic, partition), []).append(topic_id)


def _remove(
    indexed: dict[TopicPartition, list[UUID]], topic: str, partitions: Sequence[int], oldest: bool
) -> None:
    for partition in partitions:
        tp = TopicPartition(topic, partition)
        topic_ids = indexed[tp]
        topic_ids.pop(0 if oldest else -1)
        if not topic_ids:
            del indexed[tp]
