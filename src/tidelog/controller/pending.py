"""What one broker still has to be told: names, never bytes, of what changed in the store.

Owns the step from committed writes to what they concern, and the order in which it is told:
configurations, what to stop, whom to lead or follow, and last what clients may see. Pure.
Grows with what changed since the broker was told last; the state itself is the limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from tidelog.controller.decisions.cluster import Cluster
from tidelog.controller.decisions.decision import Put, Remove, Write
from tidelog.controller.decisions.elections import is_unclean_election
from tidelog.controller.requests import BROKER, TOPIC, Gone
from tidelog.metadata import layout
from tidelog.metadata.records import PartitionState, TopicMemory, TopicNode
from tidelog.model.topics import TopicPartition


@dataclass
class Changes:
    """What some commits changed, as far as brokers must know of it."""

    configs: set[tuple[int, str]] = field(default_factory=set)
    partitions: set[TopicPartition] = field(default_factory=set)
    gone: dict[str, Gone] = field(default_factory=dict)
    stops: bool = False
    """Whether there may be replicas to stop that were not told of yet."""
    brokers: bool = False

    def __bool__(self) -> bool:
        return bool(self.configs or self.partitions or self.gone or self.stops or self.brokers)

    def slices(self, most: int) -> Iterator[Changes]:
        """Yield partitions, and what is gone or came, in parts; what is to be stopped is in none.

        Each has whole topics, so that no client ever sees a part of one, and at most ``most``
        partitions, unless one topic has more. What is gone comes first: its name may live again.
        There is one part at least.
        """
        part = Changes(gone=self.gone, brokers=self.brokers)
        if len(self.partitions) <= most:
            part.partitions = self.partitions
            yield part
            return
        by_topic: dict[str, list[TopicPartition]] = {}
        for where in self.partitions:
            by_topic.setdefault(where.topic, []).append(where)
        # In one order for all brokers: what one is told is made for the others, too.
        for name in sorted(by_topic):
            if part.partitions and len(part.partitions) + len(by_topic[name]) > most:
                yield part
                part = Changes()
            part.partitions.update(by_topic[name])
        yield part

    def add(self, other: Changes) -> None:
        """Take up later changes."""
        self.configs |= other.configs
        self.partitions |= other.partitions
        for name, gone in other.gone.items():
            earlier = self.gone.get(name)
            if earlier is None:
                self.gone[name] = gone
            # Two lives of a name ended since: the broker knows at most the first of them.
        self.stops |= other.stops
        self.brokers |= other.brokers


def changes_of(before: Cluster, writes: Iterable[Write]) -> Changes:
    """Return what writes change; ``before`` is the state that they are about to be applied to."""
    found = Changes()
    for write in writes:
        path = write.path
        above, _, name = path.rpartition("/")
        place = layout.partition_of(path)
        if place is not None:
            if isinstance(write, Put) and path.endswith("/state"):
                found.partitions.add(TopicPartition(*place))
        elif above == layout.TOPICS:
            _add_topic(before, found, write, name)
        elif above == layout.TOPIC_MEMORIES:
            _add_debts(before, found, write, name)
            _add_stops(before, found, write, name)
        elif above == layout.TOPIC_CONFIGS:
            found.configs.add((TOPIC, name))
        elif above == layout.BROKER_CONFIGS:
            found.configs.add((BROKER, "" if name == layout.ALL_BROKERS else name))
        elif above == layout.BROKERS:
            found.brokers = True
            # Who is offline, and where leaders are reached, stands in what is said of partitions.
            found.partitions.update(before.partitions_of(int(name)))
        elif above == layout.DELETIONS:
            found.stops = True
        elif above == layout.DELETE_TOPICS and isinstance(write, Put):
            # Kafka's queue: the topic stays in the store, but nobody is to see it any more.
            found.stops = True
            _add_gone(before, found, name)
    return found


def _add_topic(before: Cluster, found: Changes, write: Write, name: str) -> None:
    known = before.topics.get(name)
    if isinstance(write, Remove):
        _add_gone(before, found, name)
        return
    # Even if it has none: with them brokers hear of the revision before its first LeaderAndIsr.
    found.configs.add((TOPIC, name))
    indexes = set() if known is None else set(known.partitions)
    if isinstance(write.record, TopicNode):
        # Also those whose states come with a later commit, or when their broker registers: told of
        # a part, clients would hash keys by its count, and place groups by it.
        indexes.update(write.record.partitions)
    # Of a known one, too: an assignment changed, so every partition's replicas may have.
    found.partitions.update(TopicPartition(name, index) for index in indexes)


def _add_gone(before: Cluster, found: Changes, name: str) -> None:
    known = before.topics.get(name)
    if known is not None:
        topic_id = before.topic_id(name)
        found.gone[name] = Gone(name, topic_id, tuple(sorted(known.partitions)))


def _add_stops(before: Cluster, found: Changes, write: Write, name: str) -> None:
    known = before.memories.get(name)
    noted = {} if known is None else known.pending_stops
    if isinstance(write, Put) and isinstance(write.record, TopicMemory):
        found.stops |= write.record.pending_stops != noted


def _add_debts(before: Cluster, found: Changes, write: Write, name: str) -> None:
    # LeaderAndIsr tells leaders of debt records, so one that goes must reach them. One that comes
    # does so with a change of the state; what is added to it is nothing to a leader.
    memory = before.memories.get(name)
    if memory is None or not memory.unclean:
        return
    left: Collection[int] = ()
    if isinstance(write, Put) and isinstance(write.record, TopicMemory):
        left = write.record.unclean
    found.partitions.update(TopicPartition(name, x) for x in memory.unclean if x not in left)


def unclean_elections(before: Cluster, writes: Iterable[Write]) -> int:
    """Return how many unclean leaders are elected. O(writes)."""
    count = 0
    for write in writes:
        if isinstance(write, Put) and isinstance(write.record, PartitionState):
            place = layout.partition_of(write.path)
            if place is not None:
                former = before.states.get(TopicPartition(*place))
                count += is_unclean_election(former, write.record)
    return count
