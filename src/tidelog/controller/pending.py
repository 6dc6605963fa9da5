"""What one broker still has to be told: names, never bytes, of what changed in the store.

Owns the step from committed writes to what they concern, and the order in which it is told:
configurations, what to stop, whom to lead or follow, and last what clients may see. Pure.
Grows with what changed since the broker was told last; the state itself is the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog.controller.decisions.cluster import Cluster, Put, Remove, Write
from tidelog.controller.requests import BROKER, TOPIC, Gone
from tidelog.metadata import layout
from tidelog.metadata.records import DeletionNode, PartitionState
from tidelog.model.topics import TopicPartition


@dataclass
class Changes:
    """What some commits changed, as far as brokers must know of it."""

    configs: set[tuple[int, str]] = field(default_factory=set)
    partitions: set[TopicPartition] = field(default_factory=set)
    gone: dict[str, Gone] = field(default_factory=dict)
    deletions: bool = False
    brokers: bool = False

    def __bool__(self) -> bool:
        return bool(self.configs or self.partitions or self.gone or self.deletions or self.brokers)

    def add(self, other: Changes) -> None:
        """Take up later changes."""
        self.configs |= other.configs
        self.partitions |= other.partitions
        for name, gone in other.gone.items():
            earlier = self.gone.get(name)
            if earlier is None:
                self.gone[name] = gone
            # Two lives of a name ended since: the broker knows at most the first of them.
        self.deletions |= other.deletions
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
            _add_debts(before, found, name)
        elif above == layout.TOPIC_CONFIGS:
            found.configs.add((TOPIC, name))
        elif above == layout.BROKER_CONFIGS:
            found.configs.add((BROKER, "" if name == layout.ALL_BROKERS else name))
        elif above == layout.BROKERS:
            found.brokers = True
            # Who is offline, and where leaders are reached, stands in what is said of partitions.
            found.partitions.update(before.partitions_of(int(name)))
        elif above == layout.DELETIONS:
            found.deletions = True
    return found


def _add_topic(before: Cluster, found: Changes, write: Write, name: str) -> None:
    known = before.topics.get(name)
    if isinstance(write, Remove):
        if known is not None:
            topic_id = before.topic_id(name)
            found.gone[name] = Gone(name, topic_id, tuple(sorted(known.partitions)))
        return
    if known is not None and isinstance(write, Put):
        # An assignment changed: every partition's replicas may have.
        found.partitions.update(TopicPartition(name, index) for index in known.partitions)


def _add_debts(before: Cluster, found: Changes, name: str) -> None:
    # LeaderAndIsr tells leaders of debt records, so a change of one must reach them.
    memory = before.memories.get(name)
    if memory is not None and memory.unclean:
        found.partitions.update(TopicPartition(name, index) for index in memory.unclean)


def audit_lines(before: Cluster, writes: Iterable[Write]) -> list[str]:
    """Return one line for each deletion of a topic and each unclean election (promise 32)."""
    lines = []
    for write in writes:
        if not isinstance(write, Put):
            continue
        if isinstance(write.record, DeletionNode) and write.path not in before.versions:
            topic_id = write.path.rpartition("/")[2]
            count = len(write.record.partitions)
            name = write.record.name
            lines.append(f"topic {name} deleted, id {topic_id}, {count} partitions")
        place = layout.partition_of(write.path)
        if place is not None and isinstance(write.record, PartitionState):
            where, state = TopicPartition(*place), write.record
            known = before.states.get(where)
            new_epoch = known is None or known.leader_epoch < state.leader_epoch
            if state.is_unclean_leader and new_epoch:
                lines.append(
                    f"unclean election of {where}: broker {state.leader} leads in epoch "
                    f"{state.leader_epoch}; committed records may be lost"
                )
    return lines
