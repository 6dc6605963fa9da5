"""Offsets of one group that are in its log and not committed yet, and their removals.

Owns which they are. Commits arrive and end in the order of the log, so a topic keeps its records as
they were written; what each partition has is known only while some rule asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from uuid import UUID

from tidelog.model.topics import TopicPartition


class OffsetsInFlight:
    """See the module."""

    __slots__ = ("_by_partition", "_topics", "count")

    def __init__(self) -> None:
        self._topics: dict[str, deque[tuple[Sequence[int], UUID]]] = {}
        self._by_partition: dict[TopicPartition, list[UUID]] | None = None
        self.count = 0
        """Their number: a partition counts as often as it has any."""

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
        """Return the topic id of each offset in flight, as in ``CommittedOffset``, in the order of
        the log; ``NO_TOPIC_ID`` for a removal.

        O(all) if nothing has asked since none was in flight.
        """
        if self._by_partition is None:
            indexed: dict[TopicPartition, list[UUID]] = {}
            for topic, flying in self._topics.items():
                for partitions, topic_id in flying:
                    _add(indexed, topic, partitions, topic_id)
            if not indexed:
                return indexed
            self._by_partition = indexed
        return self._by_partition


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
