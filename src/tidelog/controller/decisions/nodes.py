"""The step from nodes of the store to the cluster state, for reads and for committed writes alike.

Owns how one node changes the state, and which nodes count as damaged or as absent. An ephemeral
node at a place of a persistent one counts as absent (docs/decisions/0044): ``journal`` replaces it.
No rule about leaders or topics is here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from tidelog.controller.decisions.agreement import (
    contradicted,
    contradicted_of,
    put_aside,
    to_judge,
    uncounted,
)
from tidelog.controller.decisions.assignments import former_nodes, unproved
from tidelog.controller.decisions.cluster import NO_ID, ClusterState, LogEnd
from tidelog.controller.decisions.decision import Put, Remove, Write
from tidelog.controller.decisions.plan import WrittenPlan
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import (
    BrokerNode,
    ClusterId,
    ConfigNode,
    Counter,
    DeletionMark,
    DeletionNode,
    EndedData,
    PartitionNode,
    PartitionState,
    ProducerIdBlock,
    ReassignPartitionsNode,
    Record,
    TopicHistory,
    TopicNode,
    UncertainReplicas,
    WentBack,
)
from tidelog.metadata.store import Node
from tidelog.model.topics import TopicPartition, metric_name

KEEPS_ALL = {
    layout.TOPIC_CONFIGS: {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    },
    layout.BROKER_CONFIGS: {
        "log.cleanup.policy": "delete",
        "log.retention.ms": "-1",
        "log.retention.bytes": "-1",
    },
}
"""What counts in the place of configurations that cannot be read: no record goes by it. The
defaults could delete what was to be kept (promise 20)."""


MINIMUM = "min.insync.replicas"
MACHINES = "min.insync.machines"

MOST_REPLICAS = str(2**31 - 1)
"""Counts in the place of a minimum that was never read: brokers and controllers cap it at the
number of replicas, so acks=all needs all of them."""


def counts_as_none(path: str, node: Node) -> bool:
    """Return whether a node is ephemeral at a path of a persistent node: it ends with a session.

    The only ephemeral node of controllers is ``/controller``; a note of a change is no state.
    """
    if not node.ephemeral or path == layout.CONTROLLER:
        return False
    return layout.is_place(path) and not path.startswith(f"{layout.CONFIG_CHANGES}/")


def why_none(path: str) -> str:
    """Return a sentence about an ephemeral node at a path of a persistent one."""
    return (
        f"The metadata node {path} is ephemeral and counts as absent: it ends with the session "
        "that created it, and tidelog replaces it when it writes this node. Create it as a "
        "persistent node to keep it."
    )


def load(cluster: ClusterState, nodes: Mapping[str, Node]) -> None:
    """Apply every node of the store, parents first."""
    for path in sorted(nodes):
        take(cluster, path, nodes[path])
    indexes = indexes_with_state(cluster)
    damaged = (path.rpartition("/") for path in list(cluster.damaged))
    unread = {name for above, _, name in damaged if above == layout.TOPIC_HISTORIES}
    for name in (cluster.topic_histories.keys() | unread) - cluster.topics.keys():
        check_topic(cluster, name, indexes)
    for name in indexes.keys() - cluster.topics.keys():
        # Whoever removes a topic removes the nodes below it first, or marks it.
        path = layout.topic(name)
        is_leaving = name in cluster.marked or name in cluster.deletions_by_name
        if path not in cluster.damaged and path not in cluster.ephemeral and not is_leaving:
            why = (
                f"it is missing, but {layout.state(name, min(indexes[name]))} is there: put it "
                "back, for example from a backup of the store, or remove what is below it, if the "
                "topic was deleted"
            )
            cluster.damaged[path] = Damaged(path, why)
    lacking = [x for x in cluster.states if not cluster.replicas(x) and x.topic in cluster.topics]
    for name in {tp.topic for tp in lacking}:
        check_topic(cluster, name, indexes)
    _damage(cluster, contradicted(cluster))
    for name, node in list(uncounted(cluster)):
        cluster.topics[name] = node


def check_agreement(
    cluster: ClusterState, topics: Collection[str], former: Mapping[str, Record]
) -> list[str]:
    """Judge the nodes of topics by each other again; return a line for each that is damaged now.

    Call it when other programs have written nodes of these topics. What is damaged keeps its
    ``former`` record, by path: see ``assignments.former_nodes``.
    """
    for path in _of_gone(cluster, topics):
        del cluster.damaged[path]
    for path, record in put_aside(cluster, topics):
        _put(cluster, path, record)
    lines = _damage(cluster, contradicted_of(cluster, topics))
    lines += _damage(cluster, unproved(cluster, former))
    for path in former.keys() & cluster.damaged:
        cluster.damaged[path] = replace(cluster.damaged[path], former=former[path])
    return lines


def _of_gone(cluster: ClusterState, topics: Collection[str]) -> list[str]:
    """Return the states that are named as missing, of those of these topics, where the nodes of
    their partitions are missing as well and the topic cannot be read, or is gone."""
    paths = []
    for path in cluster.damaged:
        place = None if path in cluster.versions else layout.partition_of(path)
        if place is None or place[0] not in topics or not path.endswith("/state"):
            continue
        if place[0] not in cluster.topics and layout.partition(*place) not in cluster.versions:
            paths.append(path)
    return paths


def note_rewritten(cluster: ClusterState, paths: Iterable[str]) -> None:
    """Note the partitions whose nodes other programs have written: only a controller's own writes
    make partitions that are newer than the reports of brokers."""
    written: set[TopicPartition] = set()
    by_hand: set[TopicPartition] = set()
    for path in paths:
        place = layout.partition_of(path)
        if place is not None:
            (by_hand if path.endswith("/state") else written).add(TopicPartition(*place))
    loaded = cluster.loaded
    # A topic's own node may be missing just now.
    if written:
        there = (x for x in loaded.rewritten if _may_exist(cluster, x.topic))
        loaded = loaded._replace(rewritten=frozenset((*there, *written)))
    if by_hand:
        there = (x for x in loaded.by_hand if _may_exist(cluster, x.topic))
        loaded = loaded._replace(by_hand=frozenset((*there, *by_hand)))
    cluster.loaded = loaded


def _note_own(cluster: ClusterState, writes: Iterable[Write]) -> None:
    """Note that what other programs have written ends with an incarnation that a controller's own
    write removes, or with a topic that it removes or creates."""
    partitions: set[TopicPartition] = set()
    topics: set[str] = set()
    for write in writes:
        path, is_gone = write.path, isinstance(write, Remove)
        above, _, name = path.rpartition("/")
        place = layout.partition_of(path) if is_gone and not path.endswith("/state") else None
        if place is not None:
            partitions.add(TopicPartition(*place))
        elif above == layout.TOPICS and (is_gone or path not in cluster.versions):
            topics.add(name)
    if partitions or topics:
        rewritten, by_hand = (
            frozenset(tp for tp in there - partitions if tp.topic not in topics)
            for there in (cluster.loaded.rewritten, cluster.loaded.by_hand)
        )
        cluster.loaded = cluster.loaded._replace(rewritten=rewritten, by_hand=by_hand)


def _may_exist(cluster: ClusterState, topic: str) -> bool:
    path = layout.topic(topic)
    return path in cluster.versions or path in cluster.damaged or topic in cluster.topic_histories


def judge_reports(
    cluster: ClusterState, replicas: Mapping[tuple[UUID, int], LogEnd], held: Mapping[UUID, str]
) -> list[str]:
    """Judge the nodes that the report of a broker's replicas concerns; return a line for each that
    is damaged now. ``held`` has the names of the topic ids."""
    topics = to_judge(cluster, replicas, held)
    if not topics or cluster.went_back is not None:
        return []
    before = set(cluster.damaged)
    lines = check_agreement(cluster, topics, former_nodes(cluster, topics))
    return lines if cluster.damaged.keys() - before else []


def _damage(cluster: ClusterState, all_damaged: Iterable[Damaged]) -> list[str]:
    lines = []
    for damaged in all_damaged:
        _remove(cluster, damaged.path)
        cluster.damaged[damaged.path] = damaged
        lines.append(str(damaged))
    return lines


def take(cluster: ClusterState, path: str, node: Node | None) -> None:
    """Take up a node as the store has it, by whichever program; None if it does not exist."""
    cluster.damaged.pop(path, None)
    cluster.ephemeral.pop(path, None)
    if node is None or counts_as_none(path, node):
        cluster.versions.pop(path, None)
        _remove(cluster, path)
        if node is not None:
            cluster.ephemeral[path] = node.version
        return
    was_known = path in cluster.versions
    cluster.versions[path] = node.version
    record = layout.decode(path, node.data)
    if isinstance(record, Damaged):
        _put_unreadable(cluster, path, was_known)
        cluster.damaged[path] = record
    elif record is not None:
        _put(cluster, path, record)


def _put_unreadable(cluster: ClusterState, path: str, was_known: bool) -> None:
    """Take up that a node cannot be read: no record goes by its configurations, and none is
    acknowledged with fewer replicas than it may ask for; others go."""
    above, _, name = path.rpartition("/")
    if above not in KEEPS_ALL:
        _remove(cluster, path)
        return
    is_of_topic = above == layout.TOPIC_CONFIGS
    configs = cluster.topic_configs if is_of_topic else cluster.broker_configs
    former = configs.get(name, {}) if was_known else {MINIMUM: MOST_REPLICAS}
    minimums = {key: former[key] for key in (MINIMUM, MACHINES) if key in former}
    configs[name] = {**KEEPS_ALL[above], **minimums}


def indexes_with_state(cluster: ClusterState) -> dict[str, list[int]]:
    """Return the partitions that have a state, by topic. Walks over all states."""
    indexes: dict[str, list[int]] = {}
    for tp in cluster.states:
        indexes.setdefault(tp.topic, []).append(tp.partition)
    return indexes


def check_topic(cluster: ClusterState, name: str, indexes: Mapping[str, list[int]]) -> None:
    """Count a topic's node as damaged when other nodes show that it lacks something.

    Missing metadata deletes nothing (promise 20): a FULL without it would make replicas stale.
    ``indexes`` is the result of ``indexes_with_state``, computed once for many topics.
    """
    path = layout.topic(name)
    if path in cluster.damaged:
        return
    node = cluster.topics.get(name)
    if node is None:
        history = layout.topic_history(name)
        # A history that cannot be read shows as well that the topic was not deleted.
        if name in cluster.topic_histories or history in cluster.damaged:
            lost = "only an ephemeral one is left" if path in cluster.ephemeral else "it is missing"
            why = (
                f"{lost}, but {history} is there: put it back, for example from a backup of the "
                "store. If that node is removed too, the topic is deleted with its records"
            )
            cluster.damaged[path] = Damaged(path, why)
        return
    lacking = [index for index in indexes.get(name, ()) if index not in node.partitions]
    if lacking:
        _remove(cluster, path)
        why = f"it lacks the partition {min(lacking)}, whose state is there"
        cluster.damaged[path] = Damaged(path, why)


def apply(cluster: ClusterState, writes: Iterable[Write]) -> None:
    """Apply writes that are durable."""
    if cluster.loaded.rewritten or cluster.loaded.by_hand:
        writes = list(writes)
        _note_own(cluster, writes)
    for write in writes:
        cluster.ephemeral.pop(write.path, None)
        if isinstance(write, Put) and _is_contradicted(cluster, write):
            cluster.versions[write.path] = cluster.versions.get(write.path, -1) + 1
            continue
        cluster.damaged.pop(write.path, None)
        if isinstance(write, Remove):
            cluster.versions.pop(write.path, None)
            _remove(cluster, write.path)
        else:
            cluster.versions[write.path] = cluster.versions.get(write.path, -1) + 1
            _put(cluster, write.path, write.record)
        if write.path.startswith((layout.TOPIC_CONFIGS, layout.BROKER_CONFIGS)):
            # The commit of these writes raises the revision last.
            cluster.configs_changed_at = cluster.revision + 1


def _is_contradicted(cluster: ClusterState, put: Put) -> bool:
    """Return whether other nodes contradict the very state of a write: it restores what the
    controller knew, and that is no less wrong for it beside the same nodes. A deletion that another
    program has written as the controller does is right with the removals of the same commit."""
    damaged = cluster.damaged.get(put.path)
    is_state = isinstance(put.record, PartitionState)
    return is_state and damaged is not None and damaged.record == put.record


def _put(cluster: ClusterState, path: str, record: Record) -> None:
    name = path.rpartition("/")[2]
    match record:
        case PartitionState() | PartitionNode():
            _put_partition(cluster, path, record)
        case TopicNode():
            _put_topic(cluster, name, record)
        case TopicHistory():
            cluster.topic_histories[name] = record
            if record.resize is None:
                cluster.resizing.discard(name)
            else:
                cluster.resizing.add(name)
        case BrokerNode():
            cluster.brokers[int(name)] = record
        case DeletionNode():
            topic_id = layout.parse_id(name) or NO_ID
            cluster.deletions[topic_id] = record
            cluster.deletions_by_name.setdefault(record.name, {})[topic_id] = record
        case DeletionMark():
            cluster.marked.add(name)
            _note_rows_of(cluster, name)
        case ConfigNode():
            kind = cluster.topic_configs
            if path.startswith(layout.BROKER_CONFIGS):
                kind = cluster.broker_configs
            kind[name] = dict(record.config)
        case Counter():
            cluster.counters[path] = record.value
        case ProducerIdBlock():
            cluster.producer_ids = record
        case ClusterId():
            cluster.cluster_id = record.id
        case ReassignPartitionsNode():
            cluster.plan = cluster.plan.read(record)
        case WentBack():
            cluster.went_back = record.sentence
            cluster.past = cluster.past._replace(founded_as=record.founded_as)
        case EndedData():
            cluster.past = cluster.past._replace(ended=record)
        case UncertainReplicas():
            cluster.past = cluster.past._replace(uncertain=record)
        case _:
            # Nodes that only tools and other controllers read.
            pass


def _put_partition(
    cluster: ClusterState, path: str, record: PartitionState | PartitionNode
) -> None:
    place = layout.partition_of(path)
    assert place is not None
    tp = TopicPartition(*place)
    if isinstance(record, PartitionState):
        cluster.states[tp] = record
        _note_move(cluster, tp, record)
    else:
        cluster.partition_nodes[tp] = record


def _note_move(cluster: ClusterState, tp: TopicPartition, state: PartitionState | None) -> None:
    targets = None if state is None else state.target_replicas
    _note_row(cluster, tp)
    if state is None or targets is None:
        if tp in cluster.moves:
            del cluster.moves[tp]
            cluster.arrived.discard(tp)
        return
    cluster.moves[tp] = targets
    if set(targets) <= set(state.isr):
        cluster.arrived.add(tp)
    else:
        cluster.arrived.discard(tp)


def _note_row(cluster: ClusterState, tp: TopicPartition) -> None:
    """Note how a partition of the plan stands; the deletion of its topic ends its row."""
    if tp not in cluster.plan.rows:
        return
    state = cluster.states.get(tp)
    if state is None or tp.topic in cluster.marked:
        cluster.plan.note(tp, [], None)
    else:
        cluster.plan.note(tp, cluster.replicas(tp), state.target_replicas)


def _note_rows_of(cluster: ClusterState, name: str) -> None:
    """Note the rows of a topic that is marked for deletion now, or is no longer."""
    node = cluster.topics.get(name)
    if node is not None and cluster.plan.rows:
        for index in node.partitions:
            _note_row(cluster, TopicPartition(name, index))


def _put_topic(cluster: ClusterState, name: str, record: TopicNode) -> None:
    cluster.names.pop(cluster.topic_id(name), None)
    cluster.topics[name] = record
    cluster.names_in_metrics[metric_name(name)] = name
    topic_id = cluster.topic_id(name)
    if topic_id != NO_ID:
        cluster.names[topic_id] = name


def _forget_deletion(cluster: ClusterState, topic_id: UUID) -> None:
    node = cluster.deletions.pop(topic_id, None)
    if node is not None:
        named = cluster.deletions_by_name[node.name]
        del named[topic_id]
        if not named:
            del cluster.deletions_by_name[node.name]


def _remove(cluster: ClusterState, path: str) -> None:
    above, _, name = path.rpartition("/")
    place = layout.partition_of(path)
    if place is not None:
        tp = TopicPartition(*place)
        kind: dict[TopicPartition, object] = (
            cluster.states if path.endswith("/state") else cluster.partition_nodes  # type: ignore[assignment]
        )
        kind.pop(tp, None)
        if path.endswith("/state"):
            _note_move(cluster, tp, None)
    elif path == layout.WENT_BACK:
        cluster.went_back = None
        cluster.past = cluster.past._replace(founded_as="")
    elif path == layout.ENDED_DATA:
        cluster.past = cluster.past._replace(ended=EndedData())
    elif path == layout.UNCERTAIN_REPLICAS:
        cluster.past = cluster.past._replace(uncertain=UncertainReplicas())
    elif path == layout.REASSIGN_PARTITIONS:
        cluster.plan = WrittenPlan()
    elif above == layout.TOPICS:
        cluster.names.pop(cluster.topic_id(name), None)
        cluster.topics.pop(name, None)
        cluster.names_in_metrics.pop(metric_name(name), None)
    elif above == layout.TOPIC_HISTORIES:
        cluster.topic_histories.pop(name, None)
        cluster.resizing.discard(name)
    elif above == layout.BROKERS:
        cluster.brokers.pop(int(name), None)
    elif above == layout.DELETIONS:
        _forget_deletion(cluster, layout.parse_id(name) or NO_ID)
    elif above == layout.DELETE_TOPICS:
        cluster.marked.discard(name)
        _note_rows_of(cluster, name)
        cluster.confirmed.pop(name, None)
    elif above == layout.TOPIC_CONFIGS:
        cluster.topic_configs.pop(name, None)
    elif above == layout.BROKER_CONFIGS:
        cluster.broker_configs.pop(name, None)
