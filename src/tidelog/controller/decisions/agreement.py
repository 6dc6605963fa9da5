"""What the nodes of the store say of each other: which of them contradict the others.

Owns the rules of several nodes. Those of a single one: see ``metadata.soundness``. A node that
another one contradicts is damaged like one that cannot be read: it is named, and changes nothing.
Its content is kept, and counts again once the others agree.

| nodes that contradict each other | result |
|---|---|
| a state, and its topic's replicas: its leader, or a | the state is damaged: no replica that it |
| member of its ISR that owes no stop, is not assigned | names becomes stale (promise 20) |
| a deletion, and a topic with its id that is not marked | the deletion is damaged: it would |
| | delete the replicas of a living topic |
| an epoch, and the counter that gave it | the counter goes on above it; by more than a |
| | million, the node of the epoch is damaged |
| a state in a topic that was resized, and no | the partition's node is damaged: its birth and |
| node of its partition | retirement are not known |
| a partition's node, and no state of it | the state is damaged: its ISR is not known |
| an epoch, and no counter that could have given it | the counter is damaged: an epoch of a node |
| | that is gone, higher than all others, could repeat |
| a topic's counts, and its partitions | they are not known: ``completion`` counts |
| a topic's id, and that of its history | the topic's node is damaged: replicas with the other id |
| | would become stale |

None of this holds while the store counts as an older copy: its acceptance writes in parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import PartitionState, Record, TopicNode
from tidelog.model.topics import TopicPartition

MOST_RAISED = 1_000_000
"""A counter may have gone back by as much as the acceptance of a restored store raises it."""


def contradicted(cluster: ClusterState) -> Iterator[Damaged]:
    """Yield the nodes that others contradict, and raise counters that went back. O(nodes)."""
    if cluster.went_back is not None:
        return
    yield from list(_states(cluster, cluster.states))
    yield from list(_lost(cluster, cluster.topics))
    yield from list(_deletions(cluster))
    yield from list(_epochs(cluster))
    yield from list(_ids(cluster, cluster.topics))


def contradicted_of(cluster: ClusterState, topics: Collection[str]) -> Iterator[Damaged]:
    """Yield the same of some topics whose nodes other programs have written."""
    if cluster.went_back is not None:
        return
    for name in topics:
        node = cluster.topics.get(name)
        places = () if node is None else (TopicPartition(name, x) for x in node.partitions)
        yield from _states(cluster, places)
    yield from _lost(cluster, topics)
    yield from _ids(cluster, topics)


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


def _lost(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the nodes of partitions that are missing where the other one of the two is there.

    A topic that was never resized gets the missing node of a partition again: see ``completion``.
    """
    # The nodes of a large topic that is deleted go in several commits, while it is marked.
    for name in (name for name in topics if name not in cluster.marked):
        node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
        was_resized = history is not None and bool(
            history.resize_epoch or history.resize or history.former
        )
        for tp in () if node is None else (TopicPartition(name, x) for x in node.partitions):
            has_state, has_node = tp in cluster.states, tp in cluster.partition_nodes
            if has_state and not has_node and was_resized:
                path, why = layout.partition(*tp), f"it is missing, and {name} was resized"
            elif has_node and not has_state:
                path, why = layout.state(*tp), "it is missing, and the partition's node is there"
            else:
                continue
            if path not in cluster.damaged:
                yield Damaged(path, f"{why}: put it back, for example from a backup of the store")


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
    # The partition below the count takes records, and the one above it is retired.
    for index, is_retired in ((count - 1, False), (count, True)):
        node = cluster.partition_nodes.get(TopicPartition(name, index))
        if node is not None and (node.retirement_epoch >= 0) != is_retired:
            return False
    return count >= history.initial_partition_count


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
        why = _why_not_of(cluster, tp, state, replicas)
        if why is not None:
            yield Damaged(layout.state(*tp), why, state)


def _why_not_of(
    cluster: ClusterState, tp: TopicPartition, state: PartitionState, replicas: list[int]
) -> str | None:
    assigned = f"{layout.topic(tp.topic)} assigns the partition to {replicas}"
    if state.leader not in replicas and state.leader != NO_LEADER:
        return f"its leader is {state.leader}, and {assigned}"
    history = cluster.topic_histories.get(tp.topic)
    if history is None:
        return None
    # A replica that was moved away owes a stop until it has left the ISR (KIP-455).
    owing = history.pending_stops.get(tp.partition, {})
    hosts = {*replicas, *(state.target_replicas or ()), *owing}
    strange = not hosts.issuperset(state.isr)
    if strange:
        return f"its ISR is {state.isr}, and {assigned}"
    members = [*state.isr, *state.eligible_replicas]
    if members and not set(members).intersection(replicas):
        return f"its members are {members}, and {assigned}"
    return None


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


def _epochs(cluster: ClusterState) -> Iterator[Damaged]:
    """Yield the nodes far above their counters; the counters go on above all others."""
    counters = cluster.counters
    partition_epoch = counters.get(layout.PARTITION_EPOCH, 0)
    nodes = (
        (layout.partition(*tp), node.partition_epoch, node)
        for tp, node in cluster.partition_nodes.items()
        if node.partition_epoch > partition_epoch
    )
    yield from _counted(counters, layout.PARTITION_EPOCH, nodes)
    controller_epoch = cluster.controller_epoch
    states = (
        (layout.state(*tp), state.controller_epoch, state)
        for tp, state in cluster.states.items()
        if state.controller_epoch > controller_epoch
    )
    yield from _counted(counters, layout.CONTROLLER_EPOCH, states)
    broker_epoch = counters.get(layout.BROKER_EPOCH, 0)
    brokers = (
        (layout.broker(broker), node.broker_epoch, node)
        for broker, node in cluster.brokers.items()
        if node.broker_epoch > broker_epoch
    )
    yield from _counted(counters, layout.BROKER_EPOCH, brokers)


def _counted(
    counters: dict[str, int], counter: str, above: Iterable[tuple[str, int, Record]]
) -> Iterator[Damaged]:
    is_missing = counter not in counters
    most = counters.get(counter, 0) + MOST_RAISED
    for path, epoch, node in above:
        if is_missing:
            why = f"it is missing, but it gave {path} the epoch {epoch}"
            yield Damaged(counter, why)
            return
        if epoch > most:
            why = f"its epoch {epoch} is far above {counter}, {most - MOST_RAISED}"
            yield Damaged(path, why, node)
        else:
            counters[counter] = max(epoch, counters.get(counter, 0))
