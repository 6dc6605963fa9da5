"""Incarnations of a partition: whether its node is that of the present one (KIP-253).

Owns the rules that compare the partition epoch of a node with what the topic's history has removed,
and with the replicas that brokers reported. What is damaged by them: see ``agreement``.
Source: docs/decisions/0120.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.ended_data import was_accepted
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.model.topics import TopicPartition


def removed(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the nodes of partitions whose incarnation was removed, as the topic's history says."""
    for name in topics:
        node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
        if node is None or history is None:
            continue
        for index, former in history.former.items():
            stored = cluster.partition_nodes.get(TopicPartition(name, index))
            if stored is None or index not in node.partitions:
                continue
            if stored.partition_epoch <= former.partition_epoch:
                why = (
                    f"its partition epoch {stored.partition_epoch} was removed: "
                    f"{layout.topic_history(name)} has the removal of {former.partition_epoch}. "
                    "Put a newer copy back"
                )
                others = (layout.topic_history(name),)
                yield Damaged(layout.partition(name, index), why, stored, others=others)


def reported_epochs(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the nodes of partitions of another incarnation than a replica that was never removed:
    all replicas would become stale."""
    if not cluster.level.resizes or was_accepted(cluster):
        # After an acceptance such replicas are late ones, which are kept.
        return
    for name in (name for name in topics if name not in cluster.marked):
        node = cluster.topics.get(name)
        for tp in () if node is None else (TopicPartition(name, x) for x in node.partitions):
            for broker in cluster.replicas(tp):
                end = cluster.any_log_end(broker, tp)
                if end is None or not is_of_another(cluster, tp, end):
                    continue
                stored, history = cluster.partition_nodes[tp], layout.topic_history(name)
                if end.partition_epoch > stored.partition_epoch:
                    put = ": put a newer copy back"
                elif history in cluster.damaged:
                    put = f": put {history} back first, which says whether that was removed"
                else:
                    put = ", which was never removed: put it back"
                why = (
                    f"its partition epoch is {stored.partition_epoch}, and broker {broker} has a "
                    f"replica of {end.partition_epoch}{put}"
                )
                yield Damaged(layout.partition(*tp), why, stored, others=(history,))
                break


def is_of_another(cluster: ClusterState, tp: TopicPartition, end: LogEnd) -> bool:
    """Return whether a replica of the topic shows that a partition's node is of another incarnation
    than the present one: it is newer, or nothing says that it was removed."""
    stored = cluster.partition_nodes.get(tp)
    if stored is None or end.partition_epoch in (-1, stored.partition_epoch):
        return False
    if end.partition_epoch > stored.partition_epoch:
        # No incarnation is older than one that a broker has seen, whenever it was born.
        return True
    history, loaded = cluster.topic_histories.get(tp.topic), cluster.loaded
    if stored.partition_epoch > loaded.partition_epoch and tp not in loaded.rewritten:
        # It was born since this controller loaded the store: reports are older than it.
        return False
    if history is None:
        # What was removed is not known: a replica of the node's own incarnation shows that it is
        # the present one.
        return not _is_reported(cluster, tp, stored.partition_epoch)
    former = history.former.get(tp.partition)
    # Below 0: it was removed by a controller that did not note which incarnation.
    return former is None or -1 < former.partition_epoch < end.partition_epoch


def _is_reported(cluster: ClusterState, tp: TopicPartition, epoch: int) -> bool:
    ends = (cluster.any_log_end(broker, tp) for broker in cluster.replicas(tp))
    return any(end is not None and end.partition_epoch == epoch for end in ends)
