"""The second acceptance of a restored store: late replicas are taken back.

Owns the writes. Which replicas are late, and what may become of each: see ``late_replicas``. Two
decisions, one after the other: first the data that the store does not know, or that no broker had,
comes back as in an acceptance (``restoration``); then replicas of partitions that are led rejoin
them by a move that adds their broker (KIP-455), which a leader ends when they are in sync. The
nodes of all other topics and partitions stay as they are.

An operator names what is given up (``dropped``): a topic, a topic id, or topic-partition. Of a
replica that is ahead of its partition the records beyond it are given up: it rejoins, and cuts them
(they are on record then, ``tidelog doctor unclean``). Any other becomes stale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import ClusterState, LogEnd
from tidelog.controller.decisions.decision import Decision, Put, RequestRefusal, Write
from tidelog.controller.decisions.ended_data import remembered
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.late_replicas import Fate, LateReplica, late_replicas
from tidelog.controller.decisions.moves import Placement, started, written
from tidelog.controller.decisions.restoration import (
    Epochs,
    RestoredNodes,
    configs_writes,
    restored_topic,
    topic_of,
)
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.unknown_data import Unknown, node_of
from tidelog.metadata import layout
from tidelog.metadata.records import Counter
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

AT_ONCE = 100
"""The most partitions whose moves one decision begins: some 50 kB of states."""


def bring_back(
    cluster: ClusterState, dropped: Collection[str], entropy: Entropy
) -> Decision[list[str] | RequestRefusal]:
    """Decide the first part: what is given up, and the data that the store does not know.

    The answer names what is given up.
    """
    late = late_replicas(cluster)
    why = _why_not(cluster, late, dropped)
    if why is not None:
        return Decision(RequestRefusal(ErrorCode.INVALID_REQUEST, why))
    named = [one for one in late if _is_named(cluster, one, dropped)]
    ended: dict[UUID, list[tuple[int, int]]] = {}
    for one in named:
        if one.fate is not Fate.AHEAD:
            ended.setdefault(one.topic_id, []).append((one.partition, one.broker))
    back: dict[UUID, Unknown] = {}
    for one in late:
        if one.fate is Fate.COMES_BACK and one not in named:
            is_known = one.topic_id in cluster.names
            data = back.setdefault(one.topic_id, Unknown(one.topic, one.topic_id, is_known))
            data.ends.setdefault(one.partition, {})[one.broker] = one.end
    writes: list[Write] = [*remembered(cluster, (), ended)]
    counter = cluster.counters.get(layout.PARTITION_EPOCH, 0)
    all_ends = [ends for data in back.values() for ends in data.ends.values()]
    reported = [end.partition_epoch for ends in all_ends for end in ends.values()]
    epochs = Epochs(max([counter, *reported]))
    of_topics = [write for data in back.values() for write in _back(cluster, data, epochs, entropy)]
    if epochs.last > counter:
        # First: no two partitions get the same epoch.
        writes.append(Put(layout.PARTITION_EPOCH, Counter(epochs.last)))
    answer = [f"{x.where} of {layout.id_text(x.topic_id)} on broker {x.broker}" for x in named]
    return Decision(answer, (*writes, *of_topics), splits=True)


def rejoin(cluster: ClusterState, dropped: Collection[str]) -> Decision[int]:
    """Decide the second part: replicas of partitions that are led rejoin them.

    The answer is the number of partitions, at most ``AT_ONCE``: call it again until it is 0.
    """
    new: dict[TopicPartition, list[int]] = {}
    for one in late_replicas(cluster):
        if one.fate is Fate.REJOINS or (
            one.fate is Fate.AHEAD and _is_named(cluster, one, dropped)
        ):
            new.setdefault(one.where, []).append(one.broker)
    after = {}
    for tp, brokers in list(new.items())[:AT_ONCE]:
        now = Placement.of(cluster, tp)
        wanted = now.state.target_replicas or now.replicas
        after[tp] = started(now, [*wanted, *brokers])
    return Decision(len(after), tuple(written(cluster, after)))


def _back(cluster: ClusterState, data: Unknown, epochs: Epochs, entropy: Entropy) -> list[Write]:
    """Return the writes of one topic whose data comes back: all of it, or some partitions."""
    name = data.name
    before = cluster.topics[name].partitions if data.is_known else {}
    unknown = {index: by_broker for index, by_broker in data.ends.items() if index not in before}
    node, history = node_of(cluster, replace(data, ends=unknown), entropy)
    # Also partitions below these that have no replica either.
    ends = {x: data.ends.get(x, {}) for x in node.partitions if x in data.ends or x not in before}
    if not data.is_known:
        new = RestoredNodes(epochs, node.partitions)
        of_topic = topic_of(cluster, name, node, history, ends, new, is_known=False)
        return [*configs_writes(cluster, data), *of_topic]
    new = RestoredNodes(epochs, [x for x in ends if _begins(cluster, name, x, ends[x])])
    writes = restored_topic(cluster, name, node, history, ends, new, jump=0)
    if len(node.partitions) > len(before):
        # A leader learns a count with a leader epoch.
        for index in before.keys() - ends.keys():
            tp = TopicPartition(name, index)
            state = cluster.states.get(tp)
            if state is not None:
                raised = msgspec.structs.replace(state, leader_epoch=state.leader_epoch + 1)
                writes.append(put_state(cluster, tp, raised))
    return writes


def _begins(cluster: ClusterState, name: str, index: int, ends: Mapping[int, LogEnd]) -> bool:
    """Whether a partition gets a node of its own: it has none, or one of another incarnation."""
    node = cluster.partition_nodes.get(TopicPartition(name, index))
    epochs = {end.partition_epoch for end in ends.values()}
    return node is None or not epochs <= {-1, node.partition_epoch}


def _is_named(cluster: ClusterState, one: LateReplica, dropped: Collection[str]) -> bool:
    if one.fate is Fate.REJOINS:
        return False
    if one.topic_id not in cluster.names:
        names = {one.topic, layout.id_text(one.topic_id), str(one.where)}
    else:
        names = {str(one.where)}
    return not names.isdisjoint(dropped)


def _why_not(
    cluster: ClusterState, late: Collection[LateReplica], dropped: Collection[str]
) -> str | None:
    if not late:
        return (
            "The metadata store has not gone back in time, and knows all replicas of its brokers."
        )
    for text in dropped:
        if not any(_is_named(cluster, one, (text,)) for one in late):
            return f"drop_unknown: the report lists no {text} that the store does not know."
    return None
