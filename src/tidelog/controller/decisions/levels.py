"""Level changes: when a controller refuses its level, and what it writes when it changes it.

Owns the rules of the store for ``inter.broker.protocol.version``. What a controller sends at a
level: see ``model.levels``. Source: docs/design/levels.md.

| a controller at | finds | it |
|---|---|---|
| any level | a broker with older code | refuses its registration: UNSUPPORTED_VERSION |
| below 1.4 | unfinished deletions with ids | refuses to start: requests below 1.4 have no ids |
| below 1.4 | topics not marked as migrated | marks them: new replicas have no id |
| 1.4 | marks in ``/admin/delete_topics`` | moves them to the queue with ids |
| below 1.5 | a topic that was resized, or has retired partitions | refuses to start (KIP-253) |
| 1.5 | partitions without a node, and no count of | gives each a partition epoch before it is |
| | partition epochs: a store from before them | active; later ones: ``completion`` |
| 1.6 | no mark that transactions were offered | writes it as it becomes active |
| 1.6 | no such mark, and ``__transaction_state`` | has the topic compacted after that |
| below 1.6 | that mark, and ``__transaction_state`` | refuses to start: no broker ends open ones |
| below 1.6 | that mark alone: no transaction ever began | removes it as it becomes active |

A topic counts as resized from the first write of its first resize on. Below 1.5 no process knows
that its partitions have gates, or that some take no records.

``__transaction_state`` proves nothing without the mark: versions before 1.6 was offered created it
for any client that named it (docs/decisions/0143).

Marking is safe because no replica without an id is left of a deleted topic: below 1.4 a name is
free again only when every broker with a replica has confirmed, and a level goes down from 1.4 only
when every deletion has been confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.completion import without_epoch
from tidelog.controller.decisions.decision import Put, Remove, RequestRefusal, Write
from tidelog.metadata import layout
from tidelog.metadata.records import (
    ConfigNode,
    Counter,
    OfferedTransactions,
    PartitionNode,
    TopicHistory,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import numbers_of
from tidelog.model.topics import TRANSACTIONS_TOPIC, TopicPartition
from tidelog.model.wording import named

MARKS_PER_WRITE = 500
"""Topics marked in one multi-write: a few hundred bytes each, far below ZooKeeper's limit of 1 MB
for a request."""

POLICY, COMPACTED = "cleanup.policy", "compact"


def why_refused(cluster: ClusterState) -> str | None:
    """Return a sentence if a controller must not be active at its level on this store, or None."""
    return _why_transactions(cluster) or _why_resized(cluster) or _why_still_deleting(cluster)


def _why_transactions(cluster: ClusterState) -> str | None:
    """Open transactions would hold readers back for ever: below 1.6 no broker ends them."""
    topic = layout.topic(TRANSACTIONS_TOPIC)
    # What cannot be read is there: both have a version.
    were_offered = layout.OFFERED_TRANSACTIONS in cluster.versions
    if cluster.level.transactions or not were_offered:
        return None
    if topic not in cluster.versions and topic not in cluster.damaged:
        return None
    return (
        f"inter.broker.protocol.version={cluster.level.name} is refused: this cluster has offered "
        "transactions, and below 1.6 nothing would end those that are open. Start with 1.6 again. "
        "To go back, stop all transactional producers, wait until `tidelog transactions list` "
        f"shows none that is not Empty or complete, and delete the topic {TRANSACTIONS_TOPIC}."
    )


def mark_of_transactions(cluster: ClusterState) -> list[Write]:
    """Return the writes, if any, with which a controller becomes active at its level: the mark says
    whether the store's brokers may have begun transactions."""
    is_marked = layout.OFFERED_TRANSACTIONS in cluster.versions
    if not cluster.level.transactions:
        return [Remove(layout.OFFERED_TRANSACTIONS)] if is_marked else []
    if is_marked and layout.OFFERED_TRANSACTIONS not in cluster.damaged:
        return []
    mark = Put(layout.OFFERED_TRANSACTIONS, OfferedTransactions(cluster.level.name))
    return [mark, *_compacted(cluster)]


def _compacted(cluster: ClusterState) -> list[Write]:
    """Return the write that has ``__transaction_state`` compacted, if the topic is of a time before
    transactions: with the defaults its retention would delete states that count."""
    path = layout.topic_configs(TRANSACTIONS_TOPIC)
    configs = cluster.topic_configs.get(TRANSACTIONS_TOPIC, {})
    if TRANSACTIONS_TOPIC not in cluster.topics or configs.get(POLICY) == COMPACTED:
        return []
    if path in cluster.damaged:
        configs = {}
    return [Put(path, ConfigNode({**configs, POLICY: COMPACTED}))]


def _why_resized(cluster: ClusterState) -> str | None:
    if cluster.level.resizes:
        return None
    names = {name for name, history in cluster.topic_histories.items() if was_resized(history)}
    # Also if a topic's record cannot be read: births and retirements are in the partitions' nodes.
    names |= {
        tp.topic
        for tp, node in cluster.partition_nodes.items()
        if node.birth_epoch or node.retirement_epoch >= 0
    }
    if not names:
        return None
    return (
        f"inter.broker.protocol.version={cluster.level.name} is refused: topics "
        f"({named(sorted(names))}) were resized, and below 1.5 their keys would lose their order. "
        "Start with 1.5 again. Only a cluster without such topics goes back: delete them first."
    )


def was_resized(history: TopicHistory) -> bool:
    """Return whether a topic's partition count ever changed at level 1.5, or is changing."""
    return bool(history.resize_epoch or history.resize is not None or history.former)


def _why_still_deleting(cluster: ClusterState) -> str | None:
    if cluster.level.topic_ids:
        return None
    setting = f"inter.broker.protocol.version={cluster.level.name} is refused"
    for path, damaged in cluster.damaged.items():
        if path.rpartition("/")[0] == layout.DELETIONS:
            return f"{setting}: whether a deletion is done is not known. {damaged}"
    if not cluster.deletions:
        return None
    names = {node.name for node in cluster.deletions.values()}
    brokers = sorted(
        {
            broker
            for node in cluster.deletions.values()
            for holders in node.partitions.values()
            for broker in holders
        }
    )
    return (
        f"{setting}: deleted topics ({named(sorted(names))}) still have replicas on brokers "
        f"{brokers}. Start with 1.4 again until these brokers were up and the deletions are done."
    )


def why_broker_refused(cluster: ClusterState, broker: int, highest: str) -> str | None:
    """Return why a broker with older code cannot be commanded, or None.

    ``highest`` is the highest level that it knows (tag 10003 of BrokerRegistration), "" if the
    request has none.
    """
    broker_level = numbers_of(highest)
    if broker_level is None or broker_level >= (numbers_of(cluster.level.name) or broker_level):
        return None
    return (
        f"Broker {broker} knows levels up to {highest}, inter.broker.protocol.version of this "
        f"controller is {cluster.level.name}: bring it newer code, or lower the level."
    )


def marks(cluster: ClusterState) -> Iterator[tuple[Write, ...]]:
    """Yield writes, each to be committed before the next is drawn, that mark topics as migrated."""
    while not cluster.level.topic_ids:
        unmarked = [
            name for name, history in cluster.topic_histories.items() if not history.migrated
        ]
        if not unmarked:
            return
        yield tuple(
            Put(
                layout.topic_history(name),
                msgspec.structs.replace(cluster.topic_histories[name], migrated=True),
            )
            for name in sorted(unmarked)[:MARKS_PER_WRITE]
        )


def epochs(cluster: ClusterState) -> Iterator[tuple[Write, ...]]:
    """Yield writes, each to be committed before the next is drawn, of the first partition epochs.

    From level 1.5 on the first command of a broker has the epoch. A store that has counted such
    epochs may have lost a node: a new epoch would make all replicas of the partition stale.
    """
    is_counted = layout.PARTITION_EPOCH in cluster.counters
    if not cluster.level.resizes or cluster.went_back is not None or is_counted:
        return
    lacking: list[TopicPartition] = []
    for name, node in cluster.topics.items():
        lacking += without_epoch(cluster, name, node)
    for start in range(0, len(lacking), MARKS_PER_WRITE):
        some = lacking[start : start + MARKS_PER_WRITE]
        last = cluster.counters.get(layout.PARTITION_EPOCH, 0)
        yield (
            Put(layout.PARTITION_EPOCH, Counter(last + len(some))),
            *(
                Put(layout.partition(*tp), PartitionNode(epoch))
                for epoch, tp in enumerate(some, last + 1)
            ),
        )


def why_name_is_taken(cluster: ClusterState, name: str) -> RequestRefusal | None:
    """Return why a deleted topic's name cannot be used yet, or None.

    Below level 1.4 requests have no topic id: a StopReplica of the deleted topic, whose epoch
    overrides all, could delete replicas of the new one.
    """
    if name in cluster.marked:
        sentence = f"Topic '{name}' is marked for deletion; not every broker has confirmed it yet."
        return RequestRefusal(ErrorCode.TOPIC_ALREADY_EXISTS, sentence)
    pending = any(node.name == name for node in cluster.deletions.values())
    if pending and not cluster.level.topic_ids:
        sentence = f"Topic '{name}' was deleted; not every broker has confirmed it yet."
        return RequestRefusal(ErrorCode.TOPIC_ALREADY_EXISTS, sentence)
    return None
