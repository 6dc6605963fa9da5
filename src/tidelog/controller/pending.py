"""Pending changes of a control channel: the names of changed entities, never their content.

Owns the step from committed writes to the entities that they concern. A channel sends them in this
order: configurations, replicas to stop, leaders and followers, then the metadata for clients, and
last which deleted topics have no configuration any more: the end of a topic is no change of one
that lives, and each of its replicas would store that change. Pure. Grows with the changes since the
last request to the broker, at most to the whole state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tidelog.controller.decisions.cluster import NO_ID, ClusterState
from tidelog.controller.decisions.decision import Put, Remove, Write
from tidelog.controller.decisions.elections import is_unclean_election
from tidelog.controller.requests import BROKER, TOPIC, Gone
from tidelog.metadata import layout
from tidelog.metadata.records import DeletionNode, PartitionState, Record, TopicHistory, TopicNode
from tidelog.model.topics import TopicPartition


@dataclass
class Changes:
    """The changes of some commits that brokers must be sent."""

    configs: set[tuple[int, str]] = field(default_factory=set)
    partitions: set[TopicPartition] = field(default_factory=set)
    gone: dict[str, Gone] = field(default_factory=dict)
    stops: set[str] = field(default_factory=set)
    """Topics that may have replicas to stop that no request has named yet. Not all that are owed:
    a plan for thousands of partitions leaves as many, and each of its steps frees a few."""
    all_stops: bool = False
    """Whether all replicas to stop that are owed are to be named, once more."""
    brokers: bool = False
    shown: set[TopicPartition] = field(default_factory=set)
    """Partitions of which only the metadata for clients has changed: a resize was published."""
    ended: set[tuple[int, str]] = field(default_factory=set)
    """Deleted topics whose configuration went with them: sent when their replicas are stopped."""
    kinds: set[type[Record]] = field(default_factory=set)
    """The records of the nodes that have changed: what follows in the controller itself."""

    def __bool__(self) -> bool:
        stops = self.stops or self.all_stops
        places = self.partitions or self.shown
        configs = self.configs or self.ended
        return bool(configs or places or self.gone or stops or self.brokers)

    def slices(self, most: int) -> Iterator[Changes]:
        """Yield partitions, deleted topics and brokers in parts; replicas to stop are in no part.

        Each part has whole topics, so that no client ever sees a part of one, and at most ``most``
        partitions, unless one topic has more. Deleted topics come first: a new topic may have the
        name. There is at least one part.
        """
        part = Changes(gone=self.gone, brokers=self.brokers)
        if len(self.partitions) + len(self.shown) <= most:
            part.partitions, part.shown = self.partitions, self.shown
            yield part
            return
        by_topic: dict[str, tuple[list[TopicPartition], list[TopicPartition]]] = {}
        for number, places in enumerate((self.partitions, self.shown)):
            for tp in places:
                by_topic.setdefault(tp.topic, ([], []))[number].append(tp)
        # In one order for all brokers: they share the requests that are built once.
        held = 0
        for name in sorted(by_topic):
            changed, shown = by_topic[name]
            if held and held + len(changed) + len(shown) > most:
                yield part
                part, held = Changes(), 0
            part.partitions.update(changed)
            part.shown.update(shown)
            held += len(changed) + len(shown)
        yield part

    def add(self, other: Changes) -> None:
        """Add later changes."""
        self.kinds |= other.kinds
        self.configs |= other.configs
        self.ended |= other.ended
        self.partitions |= other.partitions
        self.shown |= other.shown
        for name, gone in other.gone.items():
            earlier = self.gone.get(name)
            if earlier is None:
                self.gone[name] = gone
            elif earlier.topic_id == gone.topic_id:
                both = tuple(sorted({*earlier.partitions, *gone.partitions}))
                self.gone[name] = Gone(name, gone.topic_id, both, earlier.is_whole or gone.is_whole)
            # Two topics of this name were deleted: the broker knows at most the first of them.
        self.stops |= other.stops
        self.all_stops |= other.all_stops
        self.brokers |= other.brokers


def changes_of(before: ClusterState, writes: Iterable[Write]) -> Changes:
    """Return the changes of writes; ``before`` is the state without them."""
    writes = list(writes)
    changes = Changes(kinds=_kinds_of(writes))
    deleted = {x.path for x in writes if isinstance(x, Put) and isinstance(x.record, DeletionNode)}
    for write in writes:
        path = write.path
        above, _, name = path.rpartition("/")
        place = layout.partition_of(path)
        if place is not None:
            _add_partition(before, changes, write, TopicPartition(*place))
        elif above == layout.TOPICS:
            _add_topic(before, changes, write, name)
        elif above == layout.TOPIC_HISTORIES:
            _add_beginning(before, changes, write, name)
            _add_debts(before, changes, write, name)
            _add_stops(before, changes, write, name)
            _add_publication(before, changes, write, name)
        elif above == layout.TOPIC_CONFIGS:
            ends = isinstance(write, Remove) and _is_deleted(before, deleted, name)
            (changes.ended if ends else changes.configs).add((TOPIC, name))
        elif above == layout.BROKER_CONFIGS:
            changes.configs.add((BROKER, "" if name == layout.ALL_BROKERS else name))
        elif above == layout.BROKERS:
            changes.brokers = True
            # The metadata of partitions has offline replicas and the addresses of leaders.
            changes.partitions.update(before.partitions_of(int(name)))
        elif above == layout.DELETIONS:
            if isinstance(write, Put) and isinstance(write.record, DeletionNode):
                changes.stops.add(write.record.name)
        elif above == layout.DELETE_TOPICS and isinstance(write, Put):
            # Kafka's queue: the topic stays in the store, but clients no longer see it.
            changes.stops.add(name)
            _add_gone(before, changes, name)
    return changes


def changes_of_reading(
    unread: Collection[str], before: ClusterState, after: ClusterState
) -> Changes:
    """Return the changes when other topics can be read than before: brokers know which cannot.

    Another node than a topic's may have made it readable. One that is gone with all its nodes was
    deleted, and brokers still show it.
    """
    now = set(after.unreadable_topics)
    changes = Changes(brokers=now != set(unread))
    for name in set(unread) - now:
        node = after.topics.get(name)
        if node is not None:
            changes.partitions |= {TopicPartition(name, index) for index in node.partitions}
            continue
        indexes = {tp.partition for tp in before.states if tp.topic == name}
        history = before.topic_histories.get(name)
        topic_id = NO_ID if history is None else layout.parse_id(history.topic_id) or NO_ID
        changes.gone[name] = Gone(name, topic_id, tuple(sorted(indexes)) or (0,))
    return changes


def kinds_at(paths: Iterable[str]) -> set[type[Record]]:
    """Return the records of the nodes at these paths; containers have none."""
    return {kind for kind in map(layout.kind_of, paths) if kind is not None}


def _kinds_of(writes: Sequence[Write]) -> set[type[Record]]:
    # What is written says it by itself: to tell a kind by its path costs more than the write.
    kinds: set[type[Record]] = {type(x.record) for x in writes if isinstance(x, Put)}
    return kinds | kinds_at(x.path for x in writes if isinstance(x, Remove))


def _is_deleted(before: ClusterState, deleted: Collection[str], name: str) -> bool:
    """Whether a topic leaves the store with its configuration: it is in one of both queues."""
    topic_id = before.topic_id(name)
    is_queued = topic_id in before.deletions or layout.deletion(topic_id) in deleted
    return is_queued or name in before.marked or name not in before.topics


def _add_partition(
    before: ClusterState, changes: Changes, write: Write, tp: TopicPartition
) -> None:
    if isinstance(write, Remove):
        return
    if isinstance(write.record, PartitionState):
        changes.partitions.add(tp)
        if _frees_stops(before, tp, write):
            changes.stops.add(tp.topic)
    elif before.level.resizes and tp not in before.partition_nodes:
        # An epoch that comes late: brokers have a replica without one.
        changes.partitions.add(tp)


def _add_topic(before: ClusterState, changes: Changes, write: Write, name: str) -> None:
    former_node = before.topics.get(name)
    if isinstance(write, Remove):
        _add_gone(before, changes, name)
        return
    if not isinstance(write.record, TopicNode):
        return
    now = write.record.partitions
    if former_node is None or former_node.topic_id != write.record.topic_id:
        # Also partitions whose states come with a later commit, or when their broker registers:
        # with a part of a topic, clients would hash keys and place groups by a wrong count. No
        # broker was sent a topic without an id, so a topic that gets one concerns all partitions.
        indexes = set(now)
    else:
        # A reassignment of one partition sends no command for the others.
        former = former_node.partitions
        indexes = {index for index, replicas in now.items() if former.get(index) != replicas}
    if (
        former_node is None
        or former_node.topic_id != write.record.topic_id
        or len(now) > len(former_node.partitions)
    ):
        # Even if it has none: so brokers get the revision before its first LeaderAndIsr.
        changes.configs.add((TOPIC, name))
    changes.partitions.update(TopicPartition(name, index) for index in indexes)
    removed = [] if former_node is None else sorted(former_node.partitions.keys() - now.keys())
    if former_node is not None and former_node.topic_id == write.record.topic_id and removed:
        changes.gone[name] = Gone(name, before.topic_id(name), tuple(removed), is_whole=False)


def _add_gone(before: ClusterState, changes: Changes, name: str) -> None:
    node = before.topics.get(name)
    if node is not None:
        topic_id = before.topic_id(name)
        changes.gone[name] = Gone(name, topic_id, tuple(sorted(node.partitions)))


def _add_stops(before: ClusterState, changes: Changes, write: Write, name: str) -> None:
    old_history = before.topic_histories.get(name)
    noted = {} if old_history is None else old_history.pending_stops
    epochs = {} if old_history is None else old_history.stop_partition_epochs
    if isinstance(write, Put) and isinstance(write.record, TopicHistory):
        now, epochs_now = write.record.pending_stops, write.record.stop_partition_epochs
        # A note that goes, because a broker has confirmed, leaves nothing to send.
        if any(noted.get(index) != owed for index, owed in now.items()) or any(
            epochs.get(index) != of_notes for index, of_notes in epochs_now.items()
        ):
            changes.stops.add(name)


def _add_beginning(before: ClusterState, changes: Changes, write: Write, name: str) -> None:
    # A resize closes no partition before its brokers have responded to a request that came after
    # its plan (docs/decisions/0108). This one has nothing new, and costs them the least.
    old_history = before.topic_histories.get(name)
    if isinstance(write, Put) and isinstance(write.record, TopicHistory):
        is_new = old_history is None or old_history.resize is None
        changes.brokers |= is_new and write.record.resize is not None


def _add_publication(before: ClusterState, changes: Changes, write: Write, name: str) -> None:
    # Raised and new partitions come by their states. A publication changes what clients see of all
    # partitions: the count, the resize epoch, births and retirements. Nothing changes for their
    # leaders and followers, and producers wait for this one.
    old_history, node = before.topic_histories.get(name), before.topics.get(name)
    if (
        old_history is None
        or old_history.resize is None
        or old_history.resize.published
        or node is None
    ):
        return
    if isinstance(write, Put) and isinstance(write.record, TopicHistory):
        plan = write.record.resize
        if plan is None or plan.published:
            changes.shown.update(TopicPartition(name, index) for index in node.partitions)


def _frees_stops(before: ClusterState, tp: TopicPartition, write: Put) -> bool:
    # A replica that was moved away is stopped when this write takes it out of the ISR.
    history, state = before.topic_histories.get(tp.topic), before.states.get(tp)
    owed = {} if history is None else history.pending_stops.get(tp.partition, {})
    if not owed or state is None or not isinstance(write.record, PartitionState):
        return bool(owed)
    return not owed.keys().isdisjoint(set(state.isr).difference(write.record.isr))


def _add_debts(before: ClusterState, changes: Changes, write: Write, name: str) -> None:
    # LeaderAndIsr has a flag for debt records, so leaders must be sent the end of one. The begin of
    # one comes with a change of the state; additions to it do not concern a leader.
    history = before.topic_histories.get(name)
    if history is None or not history.unclean:
        return
    left: Collection[int] = ()
    if isinstance(write, Put) and isinstance(write.record, TopicHistory):
        left = write.record.unclean
    changes.partitions.update(TopicPartition(name, x) for x in history.unclean if x not in left)


def unclean_elections(before: ClusterState, writes: Iterable[Write]) -> int:
    """Return the number of unclean elections among writes. O(writes)."""
    count = 0
    for write in writes:
        if isinstance(write, Put) and isinstance(write.record, PartitionState):
            place = layout.partition_of(write.path)
            if place is not None:
                former = before.states.get(TopicPartition(*place))
                count += is_unclean_election(former, write.record)
    return count
