"""DeleteTopics, and each deletion until no replica is left.

Owns the two queues (KIP-516, "Deletion") and the steps of each:

| | Kafka's queue, below level 1.4 | with topic ids, from level 1.4 |
|---|---|---|
| requested | ``/admin/delete_topics/T`` | ``/tidelog/deletions/ID`` replaces the topic's nodes |
| meanwhile | the topic stays in the store; brokers are not sent it | the name is free |
| a confirmation | kept in memory: requested again after a restart | shortens the node |
| the last one | one write removes the topic's nodes and the mark | removes the node |

A controller at level 1.4 moves what it finds in Kafka's queue to the other one. Which replicas a
broker must stop: see ``stops``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import NO_ID, ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Remove, RequestRefusal, Write
from tidelog.controller.decisions.ended_data import remembered, was_accepted
from tidelog.controller.decisions.soft_state import forget_replicas, free_topic
from tidelog.controller.decisions.stops import (
    ANY_PARTITION_EPOCH,
    Stop,
    held_partitions,
    holders,
)
from tidelog.metadata import layout
from tidelog.metadata.records import DeletionMark, DeletionNode, TopicHistory
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

AT_ONCE = 100
"""Topics with at most this many partitions together are removed in one commit: some 50 kB."""


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """One topic of a DeleteTopics request: by name, or by id (then ``name`` is None)."""

    name: str | None
    topic_id: UUID = NO_ID


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result for one topic; ``refusal`` None means that it is on the queue."""

    name: str | None
    topic_id: UUID
    refusal: RequestRefusal | None = None


def repeated_names(cluster: ClusterState, asked: Sequence[PendingDelete]) -> frozenset[str]:
    """Return the topics that a request names more than once, by name or by id."""
    times = Counter(_name_of(cluster, one) for one in asked)
    return frozenset(name for name, count in times.items() if name is not None and count > 1)


def cost_of_deletion(cluster: ClusterState, one: PendingDelete) -> int:
    """Return the cost of a topic's deletion in writes."""
    node = cluster.topics.get(_name_of(cluster, one) or "")
    return 1 if node is None else 5 + 2 * len(node.partitions)


def delete_topics(
    cluster: ClusterState,
    asked: Sequence[PendingDelete],
    enabled: bool = True,
    repeated: Collection[str] | None = None,
) -> Decision[list[Deleted]]:
    """Decide DeleteTopics. ``enabled`` is ``delete.topic.enable``.

    ``asked`` may be a slice of a request; ``repeated`` has the names that repeat in the whole.
    """
    writes: list[Write] = []
    answers: list[Deleted] = []
    repeated = repeated_names(cluster, asked) if repeated is None else repeated
    names: list[str | None] = [_name_of(cluster, one) for one in asked]
    nodes = [cluster.topics[name] for name in set(names) if name in cluster.topics]
    may_be_cut = sum(len(node.partitions) for node in nodes) > AT_ONCE
    for one, name in zip(asked, names, strict=True):
        refusal = _why_not(cluster, one, name, enabled)
        if refusal is None and name in repeated:
            sentence = f"The topic {name} is named more than once."
            refusal = RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
        if refusal is not None or name is None:
            answers.append(Deleted(one.name, one.topic_id, refusal))
            continue
        answers.append(Deleted(name, cluster.topic_id(name)))
        if _by_id(cluster, name):
            writes.extend(_leave(cluster, name, may_be_cut))
        elif name not in cluster.marked:
            writes.append(Put(layout.deletion_mark(name), DeletionMark()))
    return Decision(answers, tuple(writes), splits=True)


def try_again(cluster: ClusterState, asked: Iterable[PendingDelete]) -> None:
    """Forget why these topics could not be deleted, so that the store is asked again."""
    for one in asked:
        free_topic(cluster, _name_of(cluster, one))


def take_up(cluster: ClusterState, enabled: bool = True) -> Decision[list[str]]:
    """Act on the marks in ``/admin/delete_topics`` of any program; the answer names moved topics.

    A mark without a topic is removed, and so is every mark while deletion is disabled, as in
    Kafka. At level 1.4 a marked topic moves to the queue with ids; below it the mark is the queue.
    """
    writes: list[Write] = []
    moved: list[str] = []
    for name in sorted(cluster.marked):
        if layout.topic(name) in cluster.damaged:
            # Which brokers have replicas of it is unknown: it waits until the node is repaired.
            continue
        if not enabled or name not in cluster.topics:
            writes.append(Remove(layout.deletion_mark(name)))
        elif name in cluster.undeletable:
            continue
        elif _by_id(cluster, name):
            moved.append(name)
            writes.extend(_leave(cluster, name, may_be_cut=True))
        else:
            # All may have confirmed while its nodes could not be removed.
            writes.extend(_finished(cluster, name))
    return Decision(moved, tuple(writes), splits=True)


def note_confirmed(cluster: ClusterState, broker: int, stopped: Iterable[Stop]) -> None:
    """Remember in memory that a broker has deleted replicas: what it reported of them before is no
    proof against a later topic of the name. A stop without ``delete`` has left its replica."""
    gone: dict[tuple[UUID, int], set[int]] = {}
    for stop in stopped:
        if stop.name in cluster.marked:
            cluster.confirmed.setdefault(stop.name, set()).add((broker, stop.partition))
        if stop.delete:
            gone.setdefault((stop.topic_id, stop.partition), set()).add(stop.partition_epoch)
    if gone:
        forget_replicas(
            cluster,
            broker,
            lambda topic_id, index, end: (
                not gone[topic_id, index].isdisjoint((ANY_PARTITION_EPOCH, end.partition_epoch))
            ),
            among=gone.keys(),
        )


def by_topic(stopped: Iterable[Stop]) -> list[list[Stop]]:
    """Group stopped replicas by topic: each topic's record is written once."""
    of_topics: dict[tuple[str, UUID], list[Stop]] = {}
    for stop in stopped:
        of_topics.setdefault((stop.name, stop.topic_id), []).append(stop)
    return list(of_topics.values())


def cost_of_confirmation(of_topic: Sequence[Stop]) -> int:
    """Return the cost of confirming a topic's stops in writes: the last one removes its nodes."""
    return 5 + 2 * len(of_topic)


def confirm(cluster: ClusterState, broker: int, stopped: Collection[Stop]) -> Decision[list[None]]:
    """Note that a broker no longer has these replicas, and finish deletions without replicas."""
    writes: list[Write] = []
    names = {stop.name for stop in stopped}
    indexes: dict[UUID, set[int]] = {}
    for stop in stopped:
        indexes.setdefault(stop.topic_id, set()).add(stop.partition)
    for topic_id, gone in indexes.items():
        writes += _shortened(cluster, broker, topic_id, gone)
    for name in sorted(names & cluster.marked):
        writes += _finished(cluster, name)
    # First: as long as it is not written, the deletion is there.
    writes[:0] = _ended(cluster, writes)
    by_name: dict[str, list[Stop]] = {}
    for stop in stopped:
        by_name.setdefault(stop.name, []).append(stop)
    for name in sorted(names - cluster.marked):
        writes += _without_note(cluster, broker, name, by_name[name])
    return Decision([], tuple(writes), splits=True)


def _shortened(cluster: ClusterState, broker: int, topic_id: UUID, gone: set[int]) -> list[Write]:
    node = cluster.deletions.get(topic_id)
    if node is None:
        return []
    left: dict[int, list[int]] = {}
    for index, brokers in node.partitions.items():
        rest = [x for x in brokers if not (index in gone and x == broker)]
        if rest:
            left[index] = rest
    path = layout.deletion(topic_id)
    if left == node.partitions:
        return []
    return [Put(path, msgspec.structs.replace(node, partitions=left)) if left else Remove(path)]


def _ended(cluster: ClusterState, writes: Iterable[Write]) -> list[Put]:
    """Return the memory of deletions that end with these writes, in a store that was accepted: a
    broker that the acceptance did not know may still have replicas (docs/decisions/0103)."""
    if not was_accepted(cluster):
        return []
    removed = [write.path for write in writes if isinstance(write, Remove)]
    above = [path.rpartition("/") for path in removed]
    ended = [layout.parse_id(name) or NO_ID for x, _, name in above if x == layout.DELETIONS]
    ended += [cluster.topic_id(name) for x, _, name in above if x == layout.TOPICS]
    return remembered(cluster, ended)


def _finished(cluster: ClusterState, name: str) -> list[Write]:
    """Return the last step of Kafka's queue, if every broker with a replica has confirmed."""
    node = cluster.topics.get(name)
    if node is None or name in cluster.undeletable:
        return []
    confirmed = cluster.confirmed.get(name, set())
    for index in held_partitions(cluster, name):
        if any((broker, index) not in confirmed for broker in holders(cluster, name, index)):
            return []
    return _nodes_go(cluster, name)


def _without_note(
    cluster: ClusterState, broker: int, name: str, stopped: Iterable[Stop]
) -> list[Write]:
    history = cluster.topic_histories.get(name)
    if history is None or not history.pending_stops:
        return []
    done = {
        (stop.partition, stop.leader_epoch, stop.partition_epoch)
        for stop in stopped
        if stop.name == name and stop.topic_id == cluster.topic_id(name)
    }
    left: dict[int, dict[int, int]] = {}
    epochs: dict[int, dict[int, int]] = {}
    for index, noted in history.pending_stops.items():
        of_notes = history.stop_partition_epochs.get(index, {})
        mine = (index, noted.get(broker), of_notes.get(broker, ANY_PARTITION_EPOCH))
        # A note with other epochs belongs to a later decision, which is not confirmed yet.
        rest = {b: e for b, e in noted.items() if not (b == broker and mine in done)}
        if rest:
            left[index] = rest
        if rest.keys() & of_notes.keys():
            epochs[index] = {b: e for b, e in of_notes.items() if b in rest}
    if left == history.pending_stops:
        return []
    changed: TopicHistory = msgspec.structs.replace(
        history, pending_stops=left, stop_partition_epochs=epochs
    )
    return [Put(layout.topic_history(name), changed)]


def _name_of(cluster: ClusterState, one: PendingDelete) -> str | None:
    return one.name if one.name is not None else cluster.names.get(one.topic_id)


def _by_id(cluster: ClusterState, name: str) -> bool:
    return cluster.level.topic_ids and cluster.topic_id(name) != NO_ID


def _why_not(
    cluster: ClusterState, one: PendingDelete, name: str | None, enabled: bool
) -> RequestRefusal | None:
    if not enabled:
        sentence = "Topic deletion is switched off (delete.topic.enable=false)."
        return RequestRefusal(ErrorCode.TOPIC_DELETION_DISABLED, sentence)
    if one.name is not None and one.topic_id != NO_ID:
        sentence = "A topic is named by its name or by its id, not by both."
        return RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
    if one.name is None and one.topic_id == NO_ID:
        return RequestRefusal(ErrorCode.INVALID_REQUEST, "Neither a name nor an id was given.")
    if name is None:
        return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
    if layout.topic(name) in cluster.damaged:
        damaged = str(cluster.damaged[layout.topic(name)])
        return RequestRefusal(ErrorCode.UNKNOWN_SERVER_ERROR, damaged)
    if name not in cluster.topics:
        return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name}.")
    if name in cluster.undeletable:
        return RequestRefusal(ErrorCode.UNKNOWN_SERVER_ERROR, cluster.undeletable[name])
    return None


def _leave(cluster: ClusterState, name: str, may_be_cut: bool) -> list[Write]:
    """Return the writes that replace a topic by its deletion, with the brokers that have replicas.

    The topic is marked first if several commits may remove its nodes: a topic that exists while it
    is on the queue would be sent to brokers, and that would confirm a deletion that never was.
    """
    held = {index: holders(cluster, name, index) for index in held_partitions(cluster, name)}
    history = cluster.topic_histories.get(name)
    removed = {} if history is None else history.former
    # A new topic of the name begins above these (0016).
    epochs = {index: former.leader_epoch for index, former in removed.items()}
    epochs |= {
        index: state.leader_epoch
        for index in held
        if (state := cluster.states.get(TopicPartition(name, index))) is not None
    }
    record = Put(layout.deletion(cluster.topic_id(name)), DeletionNode(name, held, epochs))
    gone = _nodes_go(cluster, name)
    if not may_be_cut or name in cluster.marked:
        return [record, *gone]
    mark = layout.deletion_mark(name)
    return [Put(mark, DeletionMark()), record, *gone, Remove(mark)]


def _nodes_go(cluster: ClusterState, name: str) -> list[Write]:
    paths = []
    for index in sorted(cluster.topics[name].partitions):
        paths += [layout.state(name, index), layout.partition(name, index)]
    # The topic after the nodes that belong to it, and its mark last: between any two commits it is
    # either marked, so that the next controller goes on, or removed.
    paths += [
        layout.topic_history(name),
        layout.topic_configs(name),
        layout.partitions(name),
        layout.topic(name),
        layout.deletion_mark(name),
    ]
    return [Remove(path) for path in paths if path in cluster.versions]
