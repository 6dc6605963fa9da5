"""Unknown data: topics and partitions of replicas that a restored store does not know.

Owns how it is found and named, and its new nodes. When a restored store is accepted: see
``restoration``. All of it comes back with the acceptance, unless the operator names it to be given
up (docs/decisions/0029):

| replicas of | come back with |
|---|---|
| a topic that the store does not know | its id, its brokers, the configurations that they keep |
| partitions of a topic that it knows | their brokers, and the topic's count |
| a topic whose name another topic without replicas has | the place of that topic |
| a partition above one without replicas | that one too: empty, flagged, on the same brokers |
| a topic that the store is deleting | nothing: its deletion goes on |
| a topic that ended since an earlier acceptance (``ended_data``) | nothing |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import NO_ID, ClusterState, LogEnd
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.ended_data import has_ended
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.new_partitions import MAX_PARTITIONS
from tidelog.metadata import layout
from tidelog.metadata.records import TopicHistory, TopicNode
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, why_invalid

Ends = dict[int, dict[int, LogEnd]]
"""Log ends by partition and broker."""


@dataclass
class Unknown:
    """The unknown data of one topic. ``is_known``: the store knows the topic itself."""

    name: str
    topic_id: UUID
    is_known: bool = False
    ends: Ends = field(default_factory=dict)

    def named_by(self, text: str) -> set[int]:
        """Return the partitions that an operator names by a topic, a topic id or topic-partition.

        The name of a topic that the store knows stands for none of its partitions: the operator
        names each of them.
        """
        if not self.is_known and text in (self.name, layout.id_text(self.topic_id)):
            return set(self.ends)
        return {index for index in self.ends if text == f"{self.name}-{index}"}


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A partition whose unknown replicas an operator gives up."""

    name: str
    topic_id: UUID
    partition: int
    brokers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}-{self.partition} of {layout.id_text(self.topic_id)}"


def by_topic_id(given_up: Iterable[GivenUp]) -> dict[UUID, list[tuple[int, int]]]:
    """Return the replicas that are given up, as partition and broker, by the id of their topic."""
    by_id: dict[UUID, list[tuple[int, int]]] = {}
    for one in given_up:
        places = [(one.partition, broker) for broker in one.brokers]
        by_id.setdefault(one.topic_id, []).extend(places)
    return by_id


def find(cluster: ClusterState) -> list[Unknown]:
    """Return the data of registered brokers that the store does not know, by name and id."""
    unknown: dict[tuple[str, UUID], Unknown] = {}

    def add(name: str, topic_id: UUID, index: int, broker: int, end: LogEnd) -> None:
        node = cluster.topics.get(name)
        is_known = node is not None and topic_id in (cluster.topic_id(name), NO_ID)
        if is_known and node is not None and index in node.partitions:
            return
        if is_known and (name in cluster.marked or _was_removed(cluster, name, index, end)):
            return
        if is_known:
            topic_id = cluster.topic_id(name)
        one = unknown.setdefault((name, topic_id), Unknown(name, topic_id, is_known))
        if (broker, TopicPartition(name, index)) not in cluster.broken:
            one.ends.setdefault(index, {})[broker] = end

    for broker in sorted(cluster.inventories.keys() & cluster.brokers.keys()):
        for (topic_id, index), end in sorted(cluster.inventories[broker].items()):
            # Also in a copy of a store that was accepted before.
            is_over = topic_id in cluster.deletions or has_ended(cluster, topic_id, index, broker)
            if not is_over:
                name = cluster.names.get(topic_id) or cluster.held.get(topic_id, "?")
                add(name, topic_id, index, broker, end)
        for tp, end in sorted(cluster.nameless.get(broker, {}).items()):
            if tp.topic not in cluster.topics or cluster.takes_nameless(tp.topic):
                add(tp.topic, NO_ID, tp.partition, broker, end)
    return [unknown[key] for key in sorted(unknown) if unknown[key].ends]


def _was_removed(cluster: ClusterState, name: str, index: int, end: LogEnd) -> bool:
    """Whether the store knows that an incarnation of a partition was removed (KIP-253)."""
    history = cluster.topic_histories.get(name)
    former = None if history is None else history.former.get(index)
    return former is not None and end.partition_epoch <= former.partition_epoch


def coming_back(
    cluster: ClusterState, dropped: Collection[str]
) -> tuple[list[Unknown], list[GivenUp]] | RequestRefusal:
    """Return the data that comes back and what is given up, or a refusal.

    ``dropped``: topics, topic ids, or partitions as topic-partition, each of them unknown.
    """
    unknown = find(cluster)
    given_up: list[GivenUp] = []
    for text in dict.fromkeys(dropped):
        hits = [(one, one.named_by(text)) for one in unknown]
        if not any(indexes for _, indexes in hits):
            sentence = f"drop_unknown: the report lists no {text} that the store does not know."
            return RequestRefusal(ErrorCode.INVALID_REQUEST, sentence)
        for one, indexes in hits:
            for index in sorted(indexes):
                brokers = tuple(one.ends.pop(index))
                given_up.append(GivenUp(one.name, one.topic_id, index, brokers))
    kept = [one for one in unknown if one.ends]
    times = Counter(one.name for one in kept)
    for one in kept:
        why = _why_not(cluster, one, is_alone=times[one.name] == 1)
        if why is not None:
            return RequestRefusal(ErrorCode.INVALID_REQUEST, why)
    return kept, given_up


def _why_not(cluster: ClusterState, one: Unknown, *, is_alone: bool) -> str | None:
    text = layout.id_text(one.topic_id)
    drop = f"give it up with --drop-unknown {text}"
    clause = why_invalid(one.name)
    if clause is not None:
        return f"{one.name[:300]!r} ({text}) cannot come back: {clause}; {drop}."
    if max(one.ends) >= MAX_PARTITIONS:
        named = f"{one.name}-{max(one.ends)}"
        return f"{named} is beyond {MAX_PARTITIONS} partitions: --drop-unknown {named}."
    if not is_alone:
        return (
            f"Replicas hold several topics {one.name}, one of them is {text}: {drop}, or another."
        )
    if not one.is_known and one.name in cluster.topics and _is_held(cluster, one.name):
        return (
            f"Replicas hold the topic {one.name} that the store knows, and another of that name "
            f"({text}): {drop}."
        )
    return None


def _is_held(cluster: ClusterState, name: str) -> bool:
    topic_id = cluster.topic_id(name)
    return any(
        held == topic_id
        for broker, inventory in cluster.inventories.items()
        if broker in cluster.brokers
        for held, _ in inventory
    )


def configs_of(cluster: ClusterState, one: Unknown) -> dict[str, str]:
    """Return the configurations that replicas keep of a topic that the store does not know."""
    kept = cluster.kept.configs.get(one.topic_id)
    return {} if kept is None or one.is_known else dict(kept[1])


def grown(partitions: Mapping[int, list[int]], ends: Ends) -> dict[int, list[int]]:
    """Return an assignment with the brokers of unknown replicas, numbered without a gap.

    The newest replica comes first. A partition without a replica gets the brokers of the next
    higher one.
    """
    made = dict(partitions)
    for index, by_broker in ends.items():
        made[index] = sorted(
            by_broker, key=lambda x: (-by_broker[x].leader_epoch, -by_broker[x].end_offset, x)
        )
    hosts: list[int] = []
    for index in range(max(made), -1, -1):
        hosts = made.setdefault(index, list(hosts))
    return dict(sorted(made.items()))


def node_of(
    cluster: ClusterState, one: Unknown, entropy: Entropy
) -> tuple[TopicNode, TopicHistory]:
    """Return the nodes that bring the unknown data of a topic back."""
    before = cluster.topics.get(one.name) if one.is_known else None
    history = cluster.topic_histories.get(one.name) if one.is_known else None
    partitions = grown({} if before is None else before.partitions, one.ends)
    count = len(partitions)
    if before is None:
        has_id = one.topic_id != NO_ID
        text = layout.id_text(one.topic_id if has_id else entropy.new_uuid())
        migrated = not has_id or not cluster.level.topic_ids
        before = TopicNode(partitions, topic_id=text)
        history = TopicHistory(text, count, migrated=migrated)
    if history is None:
        history = TopicHistory(layout.id_text(cluster.topic_id(one.name)), count)
    initial = history.initial_partition_count
    if not history.resize_epoch and history.resize is None:
        # As CreatePartitions counts a topic that grew below level 1.5.
        initial = count
    node = msgspec.structs.replace(
        before,
        partitions=partitions,
        initial_partition_count=initial,
        undeleted_partition_count=count,
    )
    changed: TopicHistory = msgspec.structs.replace(history, initial_partition_count=initial)
    return node, changed
