"""Epochs of nodes, and the counters that gave them: no counter gives an epoch a second time.

Owns the rules of both. What other nodes of the store say of each other: see ``agreement``.

| nodes that contradict each other | result |
|---|---|
| an epoch, and the counter that gave it | the counter goes on above it, that of the |
| | controller epoch at a load only; by more than a million, the node of the epoch is damaged |
| an epoch, and no counter that could have given it | the counter is damaged: an epoch of a node |
| | that is gone, higher than all others, could repeat |

The epochs of removed incarnations count as those of partitions do: a topic's history has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import Record, TopicHistory
from tidelog.model.topics import TopicPartition

MOST_RAISED = 1_000_000
"""A counter may have gone back by as much as the acceptance of a restored store raises it."""


def all_epochs(cluster: ClusterState) -> Iterator[Damaged]:
    """Yield the nodes far above their counters; the counters go on above all others. O(nodes)."""
    yield from partition_epochs(cluster, cluster.partition_nodes)
    yield from controller_epochs(cluster, cluster.states, raises=True)
    brokers = (((broker,), node.broker_epoch, node) for broker, node in cluster.brokers.items())
    yield from _counted(cluster.counters, layout.BROKER_EPOCH, layout.broker, brokers)


def partition_epochs(cluster: ClusterState, places: Iterable[TopicPartition]) -> Iterator[Damaged]:
    """Yield the nodes of these partitions that are far above their counter, and raise it."""
    born = (
        (tp, node.partition_epoch, node)
        for tp in places
        if (node := cluster.partition_nodes.get(tp)) is not None
    )
    yield from _counted(cluster.counters, layout.PARTITION_EPOCH, layout.partition, born)


def former_epochs(cluster: ClusterState, topics: Iterable[str]) -> Iterator[Damaged]:
    """Yield the histories with former incarnations far above the counter, and raise it above all
    others: a partition that is born again would have an epoch that was removed."""
    removed = (
        ((name,), _newest_former(history), history)
        for name in topics
        if (history := cluster.topic_histories.get(name)) is not None
    )
    yield from _counted(cluster.counters, layout.PARTITION_EPOCH, layout.topic_history, removed)


def controller_epochs(
    cluster: ClusterState, places: Iterable[TopicPartition], *, raises: bool
) -> Iterator[Damaged]:
    """Yield the states of these partitions that are far above the controller epoch.

    Only an activation raises it: an active controller owns the epoch that it has written, and
    brokers refuse whichever other one it names.
    """
    led = (
        (tp, state.controller_epoch, state)
        for tp in places
        if (state := cluster.states.get(tp)) is not None
    )
    counters = cluster.counters if raises else dict(cluster.counters)
    yield from _counted(counters, layout.CONTROLLER_EPOCH, layout.state, led)


def _newest_former(history: TopicHistory) -> int:
    """Return the highest partition epoch that a topic's history has of a former incarnation."""
    stops = (x for epochs in history.stop_partition_epochs.values() for x in epochs.values())
    former = (x.partition_epoch for x in history.former.values())
    return max((*stops, *former), default=-1)


def _counted(
    counters: dict[str, int],
    counter: str,
    path_of: Callable[..., str],
    given: Iterable[tuple[tuple[Any, ...], int, Record]],
) -> Iterator[Damaged]:
    """Yield what is far above the counter of its epochs, which goes on above all others.

    ``given``: the arguments of ``path_of``, the epoch and the node of each.
    """
    is_missing = counter not in counters
    most = counters.get(counter, 0) + MOST_RAISED
    for place, epoch, node in given:
        if epoch <= counters.get(counter, 0):
            continue
        if is_missing:
            why = f"it is missing, but it gave {path_of(*place)} the epoch {epoch}"
            yield Damaged(counter, why)
            return
        if epoch > most:
            why = f"its epoch {epoch} is far above {counter}, {most - MOST_RAISED}"
            yield Damaged(path_of(*place), why, node)
        else:
            counters[counter] = epoch
