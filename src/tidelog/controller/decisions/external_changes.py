"""External changes: nodes that other programs wrote, which are taken up, corrected or refused.

Owns the meaning of each external change. How the controller notices it: see
``controller.store_watches``.

| written by another program | result |
|---|---|
| a new topic's node | it is created: ids, counts, leaders (``completion``) |
| more partitions in a topic's node | they are added; at level 1.5, as a smaller count, a request |
| | for a resize (``external_counts``) |
| a topic's node without our fields, or with another id | the controller restores them |
| other replicas, or fewer partitions, in a topic's node | the former ones are restored: only a |
| | reassignment moves replicas; missing data deletes nothing (promises 20, 21) |
| other replicas, where the state contradicts those that are known | they are taken up if the |
| | state agrees with them, and what they leave out has no replica (``assignments``) |
| a topic's node removed or unreadable | reported as damaged; brokers leave the topic as it is |
| the same node, repaired | leaders are elected where they died meanwhile; all is sent |
| ``/admin/delete_topics/T`` | the topic is deleted (``deletion.take_up``) |
| ``/admin/reassign_partitions`` | its moves start (``reassignment_node``) |
| ``/config/topics/T``, ``/config/brokers/N`` | brokers are sent it at once |
| ``/config/changes/…`` | the node that it names is read; the note is removed |
| any of these as an ephemeral node | it counts as absent, with a log line (decision 0044) |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tidelog.controller.decisions import config_effects, reassignment_node
from tidelog.controller.decisions.assignments import (
    corrected,
    counted_state,
    former_nodes,
)
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.decision import Decision, Put, Remove, RequestRefusal, Write
from tidelog.controller.decisions.deletion import take_up as delete_marked
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.external_counts import taken_up, wanted, without_counts
from tidelog.controller.decisions.growth import Growth
from tidelog.controller.decisions.nodes import (
    check_agreement,
    check_topic,
    counts_as_none,
    indexes_with_state,
    note_rewritten,
    take,
    why_none,
)
from tidelog.controller.decisions.ordered_delivery import ORDERED, switched_on
from tidelog.controller.decisions.uncertain_replicas import settled_with_notes, written_once
from tidelog.metadata import layout
from tidelog.metadata.layout import Damaged
from tidelog.metadata.records import (
    ConfigChange,
    ConfigNode,
    Counter,
    PartitionState,
    Record,
    TopicNode,
)
from tidelog.metadata.store import Node
from tidelog.model.topics import TopicPartition

WATCHED = (
    layout.TOPICS,
    layout.TOPIC_CONFIGS,
    layout.BROKER_CONFIGS,
    layout.CONFIG_CHANGES,
    layout.DELETE_TOPICS,
)
"""Nodes whose children other programs write."""

WATCHED_CHILDREN = (layout.TOPICS, layout.TOPIC_CONFIGS, layout.BROKER_CONFIGS)
"""Nodes of these whose children are watched too: programs change their content in place."""


@dataclass
class Taken:
    """The result of external changes: log lines, and paths that a config change named."""

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    to_check: list[str] = field(default_factory=list)


def changed(cluster: ClusterState, nodes: Mapping[str, Node | None]) -> dict[str, Node | None]:
    """Return those nodes, as read now, that are not what the cluster knows of them."""
    return {path: node for path, node in nodes.items() if not _is_known(cluster, path, node)}


def as_writes(nodes: Mapping[str, Node | None], after: ClusterState) -> list[Write]:
    """Return external changes as writes, from which follows what brokers must be sent.

    ``after`` is the state with these changes: a mark that is not in it, because it was removed at
    once or its topic moved to the other queue, concerns no broker.
    """
    writes: list[Write] = []
    for path, node in nodes.items():
        above, _, name = path.rpartition("/")
        if above == layout.DELETE_TOPICS and name not in after.marked:
            continue
        is_none = node is None or path in after.ephemeral
        record = None if node is None or is_none else layout.decode(path, node.data)
        if is_none and not path.startswith(layout.TOPICS):
            writes.append(Remove(path))
        elif record is not None and not isinstance(record, Damaged):
            writes.append(Put(path, record))
    return writes


def take_up(
    cluster: ClusterState,
    nodes: Mapping[str, Node | None],
    entropy: Entropy,
    deletes: bool,
    now_ms: int = 0,
) -> Decision[Taken]:
    """Take up changed nodes, and decide what must be written because of them.

    ``now_ms`` is the time of day; ``deletes`` is ``delete.topic.enable``. This changes the cluster:
    call it with a ``draft``, for no other code may read that state before the writes are durable.
    """
    taken = Taken()
    writes: list[Write] = []
    indexes, unreadable = indexes_with_state(cluster), cluster.unreadable_topics
    damaged, former = set(cluster.damaged), former_nodes(cluster, _topics(nodes))
    for path, node in sorted(nodes.items()):
        above, _, name = path.rpartition("/")
        if above == layout.TOPICS:
            request = _take_topic(cluster, name, node, taken, indexes, writes)
            if request is not None:
                resized, line = taken_up(cluster, request, entropy, now_ms)
                writes += resized
                (taken.notes if resized else taken.errors).append(line)
            continue
        if path == layout.REASSIGN_PARTITIONS:
            writes += _notice_plan(cluster, node, taken)
            continue
        if path == layout.broker_configs(layout.ALL_BROKERS):
            # The effects are the difference to the known defaults.
            writes += config_effects.of_defaults(cluster, _defaults(cluster, path, node))
        configs = cluster.topic_configs.get(name, {})
        if layout.partition_of(path) is None:
            take(cluster, path, node)
        else:
            # Rare: a damaged node that was repaired.
            writes += _take_partition(cluster, path, node, taken)
            indexes = indexes_with_state(cluster)
        if above == layout.TOPIC_HISTORIES and layout.topic(name) not in cluster.versions:
            # A topic's node that exists is damaged by itself: no other node ends that.
            cluster.damaged.pop(layout.topic(name), None)
            check_topic(cluster, name, indexes)
        elif above in (layout.BROKER_CONFIGS, layout.TOPIC_CONFIGS):
            cluster.configs_changed_at = cluster.revision + 1
            if above == layout.TOPIC_CONFIGS:
                writes += _of_configs(cluster, name, configs, taken)
        elif above == layout.CONFIG_CHANGES and node is not None:
            taken.to_check += _named(path, node)
            writes.append(Remove(path))
        if path in cluster.damaged:
            taken.errors.append(str(cluster.damaged[path]))
        elif path in cluster.ephemeral:
            taken.notes.append(why_none(path))
        elif above != layout.CONFIG_CHANGES:
            taken.notes.append(f"{path} was {'removed' if node is None else 'written'}")
    note_rewritten(cluster, nodes)
    taken.errors += check_agreement(cluster, _topics(nodes), former)
    writes += settled_again(cluster, unreadable, damaged.difference(cluster.damaged))
    completed = complete(cluster, entropy)
    deleted: Decision[list[str]] = Decision([])
    if cluster.went_back is None:
        deleted = delete_marked(cluster, deletes)
    taken.notes += [*completed.answer, *(f"the topic {x} is deleted" for x in deleted.answer)]
    gone = {layout.topic(name) for name in deleted.answer}
    kept = [write for write in (*writes, *completed.writes) if not _concerns(write, gone)]
    # A revision of its own, by which the controller knows which brokers have the change.
    decided = (*written_once(cluster, kept), *deleted.writes)
    decided = decided or (Put(layout.REVISION, Counter(cluster.revision + 1)),)
    return Decision(taken, decided, splits=True)


def _topics(paths: Iterable[str]) -> set[str]:
    return {name for name in map(layout.topic_of, paths) if name}


def settled_again(
    cluster: ClusterState, unreadable: Collection[str], paths: Collection[str]
) -> list[Write]:
    """Elect leaders where a topic that was unreadable, or the node of a state at one of ``paths``,
    can be read again: brokers may have died meanwhile."""
    readable = cluster.topics.keys() - cluster.marked
    places = {
        TopicPartition(name, index)
        for name in readable.intersection(unreadable).difference(cluster.unreadable_topics)
        for index in cluster.topics[name].partitions
    }
    partitions = (layout.partition_of(path) for path in paths)
    states = {TopicPartition(*place) for place in partitions if place and place[0] in readable}
    return settled_with_notes(cluster, places, states)


def _concerns(write: Write, topics: set[str]) -> bool:
    """Return whether a write concerns a topic that the same commit removes."""
    path = write.path
    if not topics or not isinstance(write, Put):
        return False
    name = path.rpartition("/")[2]
    if path.startswith(f"{layout.TOPIC_HISTORIES}/"):
        return layout.topic(name) in topics
    return any(path == topic or path.startswith(f"{topic}/") for topic in topics)


def _is_known(cluster: ClusterState, path: str, node: Node | None) -> bool:
    if node is None:
        return path not in cluster.versions and path not in cluster.ephemeral
    if counts_as_none(path, node):
        return cluster.ephemeral.get(path) == node.version
    if cluster.versions.get(path) != node.version:
        return False
    # A node that was removed and created again may have its old version.
    record = layout.decode(path, node.data)
    if path in cluster.damaged:
        damaged = cluster.damaged[path]
        return record == damaged or (damaged.record is not None and record == damaged.record)
    return not isinstance(record, Damaged) and record == _known(cluster, path, record)


def _known(cluster: ClusterState, path: str, record: Record | None) -> Record | None:
    """Return the record that the cluster knows at a path; ``record`` where it keeps none.

    An unreadable node that replaced an empty one at once was taken for that: both have no rows.
    """
    above, _, name = path.rpartition("/")
    place = layout.partition_of(path)
    if place is not None:
        tp = TopicPartition(*place)
        is_state = path.endswith("/state")
        return cluster.states.get(tp) if is_state else cluster.partition_nodes.get(tp)
    if above == layout.TOPICS:
        return _as_written(cluster.topics.get(name), record)
    if above == layout.TOPIC_HISTORIES:
        return cluster.topic_histories.get(name)
    if above == layout.TOPIC_CONFIGS:
        return ConfigNode(cluster.topic_configs.get(name, {}))
    if above == layout.BROKER_CONFIGS:
        return ConfigNode(cluster.broker_configs.get(name, {}))
    return cluster.plan.content if path == layout.REASSIGN_PARTITIONS else record


def _as_written(present: TopicNode | None, record: Record | None) -> TopicNode | None:
    """Return a known topic with the counts of its node where they did not count (``agreement``).

    No program has asked for them while this controller was active.
    """
    if present is None or not isinstance(record, TopicNode):
        return present
    counts = {
        name: getattr(record, name)
        for name in ("initial_partition_count", "undeleted_partition_count")
        if getattr(present, name) is None
    }
    return msgspec.structs.replace(present, **counts) if counts else present


def _take_topic(
    cluster: ClusterState,
    name: str,
    node: Node | None,
    taken: Taken,
    with_state: Mapping[str, list[int]],
    writes: list[Write],
) -> Growth | None:
    """Take up a topic's node, with the write that puts it right; return a request for a resize."""
    path = layout.topic(name)
    present = cluster.topics.get(name)
    was_known = path in cluster.versions
    take(cluster, path, node)
    written = cluster.topics.get(name)
    request = None
    if node is not None and written is not None and present is not None:
        right = _put_right(cluster, name, present, written, taken)
        if right != written:
            take(cluster, path, Node(layout.encode(right), node.version))
            writes.append(Put(path, right))
        if cluster.level.resizes:
            request = wanted(name, present, written)
    check_topic(cluster, name, with_state)
    if path in cluster.damaged:
        taken.errors.append(str(cluster.damaged[path]))
        return None
    if path in cluster.ephemeral:
        taken.notes.append(why_none(path))
    if written is not None:
        taken.notes.append(
            f"{path} was {'rewritten' if was_known else 'created'} by another program"
        )
    return request


def _notice_plan(cluster: ClusterState, node: Node | None, taken: Taken) -> Sequence[Write]:
    noticed = reassignment_node.notice(cluster, node)
    taken.errors += noticed.errors
    taken.notes += noticed.notes
    return noticed.writes


def _take_partition(
    cluster: ClusterState, path: str, node: Node | None, taken: Taken
) -> list[Write]:
    """Take up a node of a partition; a state that is older than what this controller knows is put
    right. Only controllers write states, so the known one is the newest, also after damage."""
    place = layout.partition_of(path)
    damaged = cluster.damaged.get(path)
    newest: Record | None = None if damaged is None else damaged.former
    if place is not None and path.endswith("/state"):
        newest = counted_state(cluster, TopicPartition(*place)) or newest
    take(cluster, path, node)
    if place is None or not isinstance(newest, PartitionState):
        return []
    topic = layout.topic(place[0])
    written = cluster.states.get(TopicPartition(*place))
    if node is None or written is None:
        return []
    if written == newest or written.leader_epoch > newest.leader_epoch:
        return []
    taken.errors.append(
        f"{path} was written by another program with an older state, leader epoch "
        f"{written.leader_epoch} and ISR {written.isr}: the newest one is restored, leader epoch "
        f"{newest.leader_epoch} and ISR {newest.isr}."
        + (f" If that is the wrong one, repair {topic} first." if topic in cluster.damaged else "")
    )
    take(cluster, path, Node(layout.encode(newest), node.version))
    return [Put(path, newest)]


def _put_right(
    cluster: ClusterState, name: str, present: TopicNode, written: TopicNode, taken: Taken
) -> TopicNode:
    history = cluster.topic_histories.get(name)
    ours = present.topic_id if history is None else history.topic_id
    agreed, why_not = corrected(cluster, name, present, written, ours)
    right = {**present.partitions, **agreed}
    partitions = {**written.partitions, **right}
    if any(written.partitions.get(index) != replicas for index, replicas in right.items()):
        taken.errors.append(
            f"{layout.topic(name)} was rewritten with other replicas or fewer partitions: the "
            "former ones are restored. A reassignment moves replicas."
        )
    taken.errors += why_not
    if written.topic_id not in (None, ours):
        taken.errors.append(
            f"{layout.topic(name)} was rewritten with the id {written.topic_id}: the topic has the "
            f"id {ours}, which is restored."
        )
    if cluster.level.resizes:
        written = without_counts(present, written)
        partitions = right
    return msgspec.structs.replace(
        written,
        partitions=dict(sorted(partitions.items())),
        topic_id=ours,
        adding_replicas=present.adding_replicas,
        removing_replicas=present.removing_replicas,
    )


def _switched_on(
    cluster: ClusterState, name: str, before: Mapping[str, str], taken: Taken
) -> list[Write]:
    after = cluster.topic_configs.get(name, {})
    made = switched_on(cluster, name, before, after)
    if not isinstance(made, RequestRefusal):
        return made
    taken.errors.append(f"{layout.topic_configs(name)}: {ORDERED} stays false. {made.sentence}")
    return [Put(layout.topic_configs(name), ConfigNode({**after, ORDERED: "false"}))]


def _of_configs(
    cluster: ClusterState, name: str, before: Mapping[str, str], taken: Taken
) -> list[Write]:
    """Return what follows from a topic's new configurations; nothing if they cannot be read."""
    if layout.topic_configs(name) in cluster.damaged:
        return []
    return [*_effects(cluster, name), *_switched_on(cluster, name, before, taken)]


def _effects(cluster: ClusterState, name: str) -> list[Write]:
    if name not in cluster.topics:
        return []
    return config_effects.of_topic(cluster, name, cluster.topic_configs.get(name, {}))


def _defaults(cluster: ClusterState, path: str, node: Node | None) -> Mapping[str, str]:
    """Return the defaults of all brokers that a node has; the known ones if it cannot be read."""
    if node is None or counts_as_none(path, node):
        return {}
    record = layout.decode(path, node.data)
    if isinstance(record, ConfigNode):
        return record.config
    return cluster.broker_configs.get(layout.ALL_BROKERS, {})


def _named(path: str, node: Node) -> list[str]:
    record = layout.decode(path, node.data)
    if not isinstance(record, ConfigChange):
        return []
    entity = record.entity_path or f"{record.entity_type}/{record.entity_name}"
    kind, _, name = entity.partition("/")
    above = f"/config/{kind}"
    is_ours = above in (layout.TOPIC_CONFIGS, layout.BROKER_CONFIGS) and name and "/" not in name
    return [f"{above}/{name}"] if is_ours else []
