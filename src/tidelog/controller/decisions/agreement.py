"""What the nodes of the store say of each other: which of them contradict the others.

Owns the rules of several nodes. Those of a single one: see ``metadata.soundness``; of epochs and
their counters: ``epoch_counters``; of incarnations: ``incarnations``; which of a state and an
assignment is right: ``assignments``. A node that another one contradicts is damaged like one that
cannot be read: it is named, and changes nothing. Its content is kept, and counts again once the
others agree.

| nodes that contradict each other | result |
|---|---|
| a state, and its topic's replicas: its leader, or a | the state is damaged: no replica that it |
| member of its ISR that owes no stop, is not assigned | names becomes stale (promise 20) |
| a deletion, and a topic with its id that is not marked | the deletion is damaged: it would |
| | delete the replicas of a living topic |
| a state in a topic that was resized, and no | the partition's node is damaged: its birth and |
| node of its partition | retirement are not known |
| a partition's node, and no state of it | the state is damaged: its ISR is not known |
| a topic's counts, and its partitions | they are not known: ``completion`` counts |
| a topic's id, and that of its history | the topic's node is damaged: replicas with the other id |
| | would become stale |
| a topic's id, and those of replicas: none has it | the same, whatever its history says |
| a state, and a higher leader epoch of a replica | the state is damaged: it is an older copy |
| a topic that was resized, and no history of it | the history is damaged: counts would go back |
| a topic's count, and its retired partitions, | the topic's node is damaged: an older copy |
| while its history cannot be read | |
| the same, unless the newest resize was a growth: | the topic's node is damaged: one of |
| then the count is that of before | both is an older copy, of before a resize |
| a partition's node, and a removal of that or a later | the partition's node is damaged: it is an |
| incarnation in the topic's history | older copy |
| a partition's node, and the incarnation of a replica | the same: the replicas would become stale |
| a state that another program wrote, and an assignment | the state is damaged: all replicas could |
| with which the newest known state does not agree | become stale by two nodes written by hand |
| a replica, and neither state nor node of its | the state is damaged: the partition is not new |
| partition | |

None of this holds while the store counts as an older copy: its acceptance writes in parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from uuid import UUID

import msgspec

from tidelog.controller.decisions.assignments import why_not_of
from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState, LogEnd
from tidelog.controller.decisions.ended_data import has_ended, was_accepted
from tidelog.controller.decisions.epoch_counters import (
    all_epochs,
    controller_epochs,
    former_epochs,
    partition_epochs,
)
from tidelog.controller.decisions.incarnations import is_of_another, removed, reported_epochs
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import PartitionNode, Record, TopicHistory, TopicNode
from tidelog.model.topics import TopicPartition

EPOCHS_ABOVE = 1_000
"""A state that an operator writes is so far above the newest epoch that is known: brokers may know
later ones in which nothing was written."""


def contradicted(cluster: ClusterState) -> Iterator[Damaged]:
    """Yield the nodes that others contradict, and raise counters that went back. O(nodes)."""
    if cluster.went_back is not None:
        return
    yield from list(_histories(cluster, cluster.topics))
    yield from list(former_epochs(cluster, cluster.topics))
    yield from list(removed(cluster, cluster.topics))
    yield from list(_states(cluster, cluster.states))
    yield from list(_lost(cluster, [*cluster.topics, *_unread(cluster)]))
    yield from list(_deletions(cluster))
    yield from list(all_epochs(cluster))
    yield from list(_ids(cluster, cluster.topics))
    yield from list(_counts(cluster, cluster.topics))


def contradicted_of(cluster: ClusterState, topics: Collection[str]) -> Iterator[Damaged]:
    """Yield the same of some topics whose nodes other programs have written."""
    if cluster.went_back is not None:
        return
    yield from _histories(cluster, topics)
    yield from list(former_epochs(cluster, topics))
    yield from removed(cluster, topics)
    yield from reported_epochs(cluster, topics)
    for name in topics:
        node = cluster.topics.get(name)
        places = [] if node is None else [TopicPartition(name, x) for x in node.partitions]
        yield from list(partition_epochs(cluster, places))
        # This controller goes on in its own epoch, which is the one that the store has.
        yield from list(controller_epochs(cluster, places, raises=False))
        yield from _states(cluster, places)
        yield from _older(cluster, places)
    yield from _lost(cluster, topics)
    yield from _ids(cluster, topics)
    yield from _reported_ids(cluster, topics)
    yield from _counts(cluster, topics)


def _older(cluster: ClusterState, places: Iterable[TopicPartition]) -> Iterator[Damaged]:
    """Yield the states below the leader epochs that replicas had when their brokers registered.

    Only another program puts such a state there: of an older store all brokers know more.
    """
    for tp in places:
        state = cluster.states.get(tp)
        if state is None:
            continue
        ends = {broker: cluster.log_end(broker, tp) for broker in cluster.hosts(tp)}
        epochs = {broker: end.leader_epoch for broker, end in ends.items() if end is not None}
        newest = max(epochs, key=epochs.__getitem__, default=NO_LEADER)
        epoch, has = epochs.get(newest, NO_LEADER), f"broker {newest} has"
        commanded = _commanded(cluster, tp)
        if commanded > epoch:
            epoch, has = commanded, "a broker was commanded in"
        if epoch > state.leader_epoch:
            why = (
                f"its leader epoch {state.leader_epoch} is older than {epoch}, which {has}: put a "
                "newer copy back, for its ISR is out of date. Without one, write it with the "
                f"leader epoch {epoch + EPOCHS_ABOVE}"
            )
            yield Damaged(layout.state(*tp), why, state)


def _commanded(cluster: ClusterState, tp: TopicPartition) -> int:
    """Return the newest leader epoch in which a broker was commanded that has registered since
    another program wrote the state, or -1."""
    node = cluster.partition_nodes.get(tp)
    command = cluster.kept.newest.get((cluster.topic_id(tp.topic), tp))
    if command is None or tp not in cluster.loaded.by_hand:
        return NO_LEADER
    is_of_it = node is None or command.partition_epoch in (-1, node.partition_epoch)
    return command.leader_epoch if is_of_it else NO_LEADER


def _reported_ids(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the nodes of topics whose brokers have replicas with other ids only: they would become
    stale. A topic that was deleted, or given up, is no proof."""
    if was_accepted(cluster):
        # Such replicas are late ones, which are kept: and the topic can be deleted for them.
        return
    names = [name for name in topics if not _is_reported(cluster, name)]
    if not names or not cluster.level.topic_ids:
        return
    ids: dict[str, list[UUID]] = {}
    for topic_id, name in cluster.held.items():
        if topic_id not in cluster.deletions and topic_id not in cluster.names:
            ids.setdefault(name, []).append(topic_id)
    for name in names:
        node = cluster.topics.get(name)
        if node is None or node.topic_id is None or name in cluster.marked:
            continue
        if _began_here(cluster, name, node):
            # The reports of brokers are older than it.
            continue
        for topic_id in ids.get(name, ()):
            broker = _holder(cluster, node, topic_id)
            if broker is not None:
                why = (
                    f"its id is {node.topic_id}, and broker {broker} has the topic with the id "
                    f"{layout.id_text(topic_id)}: if that is the newer topic, put its node back, "
                    f"and {layout.topic_history(name)} with it; otherwise move its folders off "
                    f"broker {broker}"
                )
                yield Damaged(layout.topic(name), why, node)
                break


def _began_here(cluster: ClusterState, name: str, node: TopicNode) -> bool:
    """Return whether this controller has created a topic since it loaded the store: what another
    program has written is no proof."""
    loaded = cluster.loaded
    places = {TopicPartition(name, x) for x in node.partitions} - loaded.rewritten
    stored = (cluster.partition_nodes.get(tp) for tp in places)
    return any(x is not None and x.partition_epoch > loaded.partition_epoch for x in stored)


def _is_reported(cluster: ClusterState, name: str) -> bool:
    node = cluster.topics.get(name)
    return node is not None and _holder(cluster, node, cluster.topic_id(name)) is not None


def _holder(cluster: ClusterState, node: TopicNode, topic_id: UUID) -> int | None:
    """Return a broker that reported a replica with an id and holds it rightfully; or None."""
    for index, replicas in node.partitions.items():
        for broker in replicas:
            is_there = (topic_id, index) in cluster.inventories.get(broker, {})
            if is_there and not has_ended(cluster, topic_id, index, broker):
                return broker
    return None


def to_judge(
    cluster: ClusterState, replicas: Mapping[tuple[UUID, int], LogEnd], held: Mapping[UUID, str]
) -> set[str]:
    """Return the topics that the report of a broker's replicas may contradict, or agree with now.

    ``held`` has the names of the topic ids.
    """
    topics = {
        name
        for path, damaged in cluster.damaged.items()
        if isinstance(damaged.record, (TopicNode, PartitionNode))
        and (name := layout.topic_of(path)) is not None
    }
    judges_epochs = cluster.level.resizes and not was_accepted(cluster)
    for (topic_id, index), end in replicas.items():
        name = held.get(topic_id, "")
        node = cluster.topics.get(name)
        if node is None:
            continue
        tp = TopicPartition(name, index)
        is_new = tp not in cluster.states and index in node.partitions
        contradicts = judges_epochs and is_of_another(cluster, tp, end)
        contradicts = contradicts or tp in cluster.loaded.by_hand
        if cluster.topic_id(name) != topic_id or is_new or contradicts:
            topics.add(name)
    return topics


def _ids(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the nodes of topics with another id than their histories: one of both is of a former
    topic of the name. An old tool leaves out the id, and writes no other."""
    for name in topics:
        node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
        if node is None or history is None or node.topic_id in (None, history.topic_id):
            continue
        why = (
            f"its id is {node.topic_id}, and {layout.topic_history(name)} has the id "
            f"{history.topic_id}: correct the wrong one"
        )
        yield Damaged(layout.topic(name), why, node)


def _histories(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the histories that are older than the nodes of their partitions, or missing where the
    topic was resized: counts, births and epochs would go back."""
    for name in (name for name in topics if name not in cluster.marked):
        node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
        path = layout.topic_history(name)
        if node is None or path in cluster.damaged:
            continue
        if history is None:
            if _was_resized(cluster, name):
                why = f"it is missing, and {name} was resized"
                yield Damaged(path, f"{why}: put it back, for example from a backup of the store")
            continue
        for index in node.partitions:
            stored = cluster.partition_nodes.get(TopicPartition(name, index))
            if stored is None or stored.birth_epoch == 0 > stored.retirement_epoch:
                continue
            epoch = max(stored.birth_epoch, stored.retirement_epoch)
            if epoch > history.resize_epoch:
                why = (
                    f"its resize epoch {history.resize_epoch} is older than {epoch}, which the "
                    f"partition {index} has: put a newer copy back"
                )
                yield Damaged(path, why, history, others=(layout.partition(name, index),))
                break


def _counts(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the nodes of topics whose count is not that of their partitions: the count or a
    partition's node is an older copy. One of before a growth is counted again (``uncounted``)."""
    for name in topics:
        node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
        count = None if node is None else node.undeleted_partition_count
        is_unread = layout.topic_history(name) in cluster.damaged
        if node is None or count is None or not 1 <= count <= len(node.partitions):
            continue
        if history is None and not is_unread:
            continue
        if history is not None and (not history.resize_epoch or history.resize is not None):
            # The count is the initial one, or that of the plan.
            continue
        index = _otherwise(cluster, node, name, count)
        if index is None or (history is not None and _has_grown(cluster, node, name, history)):
            continue
        stands = "is retired" if index < count else "takes records"
        why = f"its count is {count}, and {layout.partition(name, index)} {stands}: "
        if is_unread:
            why += f"{layout.topic_history(name)} cannot be read either, put both back"
        else:
            why += "put the older one of these nodes back"
        others = (layout.partition(name, index), layout.topic_history(name))
        yield Damaged(layout.topic(name), why, node, others=others)


def _otherwise(cluster: ClusterState, node: TopicNode, name: str, count: int) -> int | None:
    """Return a partition that is retired below a count, or takes records above it; or None."""
    for index in node.partitions:
        stored = cluster.partition_nodes.get(TopicPartition(name, index))
        if stored is not None and (stored.retirement_epoch >= 0) != (index >= count):
            return index
    return None


def _has_grown(cluster: ClusterState, node: TopicNode, name: str, history: TopicHistory) -> bool:
    """Return whether the newest resize was a growth: since then no partition is retired."""
    places = (TopicPartition(name, index) for index in node.partitions)
    nodes = [cluster.partition_nodes[tp] for tp in places if tp in cluster.partition_nodes]
    is_born = any(x.birth_epoch == history.resize_epoch for x in nodes)
    return is_born and all(x.retirement_epoch < 0 for x in nodes)


def _was_resized(cluster: ClusterState, name: str) -> bool:
    """Return whether a topic was ever resized, as far as its nodes say."""
    node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
    if history is not None:
        return bool(history.resize_epoch or history.resize or history.former)
    if node is None:
        return False
    stored = [cluster.partition_nodes.get(TopicPartition(name, x)) for x in node.partitions]
    if any(one is not None and (one.birth_epoch or one.retirement_epoch >= 0) for one in stored):
        return True
    # A shrink removes nodes, and a copy of before it still names their partitions. In a topic of
    # Kafka, which has no counts yet, a partition without a state gets its nodes later.
    has_counts = node.initial_partition_count is not None
    if has_counts and cluster.level.resizes and any(stored) and not all(stored):
        with_state = (TopicPartition(name, x) in cluster.states for x in node.partitions)
        return not all(with_state)
    counts = node.initial_partition_count, node.undeleted_partition_count
    return None not in counts and counts[0] != counts[1]


def _lost(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the nodes of partitions that are missing where the other one of the two is there.

    A topic that was never resized gets the missing node of a partition again: see ``completion``.
    """
    # The nodes of a large topic that is deleted go in several commits, while it is marked.
    for name in (name for name in topics if name not in cluster.marked):
        node = cluster.topics.get(name)
        if node is None and layout.topic(name) in cluster.damaged:
            yield from _lost_unread(cluster, name)
        was_resized = _was_resized(cluster, name)
        for tp in () if node is None else (TopicPartition(name, x) for x in node.partitions):
            has_state, has_node = tp in cluster.states, tp in cluster.partition_nodes
            if has_state and not has_node and was_resized:
                path, why = layout.partition(*tp), f"it is missing, and {name} was resized"
            elif has_node and not has_state:
                path, why = layout.state(*tp), "it is missing, and the partition's node is there"
            elif (
                broker := None if has_node or has_state else _replica_of(cluster, tp)
            ) is not None:
                path, why = layout.state(*tp), f"it is missing, and broker {broker} has a replica"
            else:
                continue
            if path not in cluster.damaged:
                yield Damaged(path, f"{why}: put it back, for example from a backup of the store")


def _unread(cluster: ClusterState) -> list[str]:
    names = (x.rpartition("/") for x in cluster.damaged)
    return [name for above, _, name in names if above == layout.TOPICS]


def _lost_unread(cluster: ClusterState, name: str) -> Iterator[Damaged]:
    """Yield the states that are missing beside the nodes of their partitions, while the topic's own
    node cannot be read: a state that was known is not to be forgotten meanwhile."""
    for tp in [x for x in cluster.partition_nodes if x.topic == name]:
        path = layout.state(*tp)
        if tp not in cluster.states and path not in cluster.damaged:
            why = f"it is missing, and {layout.topic(name)} cannot be read: put both back"
            yield Damaged(path, why)


def _replica_of(cluster: ClusterState, tp: TopicPartition) -> int | None:
    """Return an assigned broker that reported a replica of a partition, or None.

    Of a partition that a resize makes, or that was removed, only former incarnations are there.
    """
    history = cluster.topic_histories.get(tp.topic)
    if history is not None and (history.resize is not None or tp.partition in history.former):
        return None
    return next((x for x in cluster.replicas(tp) if cluster.any_log_end(x, tp) is not None), None)


def put_aside(cluster: ClusterState, topics: Collection[str]) -> list[tuple[str, Record]]:
    """Take back what was damaged only because other nodes of these topics contradicted it.

    The answer has the nodes, to be judged again with these.
    """
    records = []
    for path, damaged in list(cluster.damaged.items()):
        if damaged.record is not None and layout.topic_of(path) in topics:
            del cluster.damaged[path]
            records.append((path, damaged.record))
    return records


def uncounted(cluster: ClusterState) -> Iterator[tuple[str, TopicNode]]:
    """Yield the topics whose counts cannot be those of their partitions, without them."""
    for name, node in cluster.topics.items():
        end = len(node.partitions)
        initial, count = node.initial_partition_count, node.undeleted_partition_count
        counts = initial, count
        if initial is not None and not 1 <= initial <= end:
            initial = None
        if count is not None and not (1 <= count <= end and _agrees(cluster, name, count)):
            count = None
        if (initial, count) != counts:
            yield (
                name,
                msgspec.structs.replace(
                    node, initial_partition_count=initial, undeleted_partition_count=count
                ),
            )


def _agrees(cluster: ClusterState, name: str, count: int) -> bool:
    history = cluster.topic_histories.get(name)
    if history is None or not history.resize_epoch or history.resize is not None:
        # Its count is the initial one, or that of the plan.
        return True
    return _is_retired_above(cluster, name, count) and count >= history.initial_partition_count


def _is_retired_above(cluster: ClusterState, name: str, count: int) -> bool:
    # The partition below the count takes records, and the one above it is retired.
    for index, is_retired in ((count - 1, False), (count, True)):
        node = cluster.partition_nodes.get(TopicPartition(name, index))
        if node is not None and (node.retirement_epoch >= 0) != is_retired:
            return False
    return True


def _states(cluster: ClusterState, places: Iterable[TopicPartition]) -> Iterator[Damaged]:
    for tp in places:
        state, replicas = cluster.states.get(tp), cluster.replicas(tp)
        if state is None or not replicas:
            continue
        # In the good case the members of the ISR are the replicas.
        if state.leader in replicas and (
            state.isr == replicas or set(replicas).issuperset(state.isr)
        ):
            continue
        why = why_not_of(cluster, tp, state, replicas)
        if why is not None:
            yield Damaged(layout.state(*tp), why, state)


def _deletions(cluster: ClusterState) -> Iterator[Damaged]:
    if not cluster.deletions:
        return
    living = {cluster.topic_id(name): name for name in cluster.topics}
    for name, history in cluster.topic_histories.items():
        topic_id = layout.parse_id(history.topic_id)
        if topic_id is not None:
            living.setdefault(topic_id, name)
    for topic_id, node in cluster.deletions.items():
        alive = living.get(topic_id)
        # The nodes of a large topic go in several commits, while it is marked.
        if alive is not None and alive not in cluster.marked:
            why = f"the topic {alive} has this id and is not being deleted"
            yield Damaged(layout.deletion(topic_id), why, node)
