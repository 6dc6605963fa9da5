"""Deleting topics, and following each deletion until no replica is left.

Owns the two steps: a topic leaves the cluster in one multi-write that puts it on the deletion
queue (KIP-516: in memory, mirrored to ``/tidelog/deletions/ID``), so that its name is free at
once; then each broker's confirmation shortens the queue's record until it goes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tidelog.controller.decisions.cluster import (
    NO_ID,
    Cluster,
    Decision,
    Put,
    Refusal,
    Remove,
    Write,
)
from tidelog.metadata import layout
from tidelog.metadata.records import DeletionNode
from tidelog.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Doomed:
    """One topic of a DeleteTopics request: by name, or by id (then ``name`` is None)."""

    name: str | None
    topic_id: UUID = NO_ID


@dataclass(frozen=True, slots=True)
class Deleted:
    """The answer for one topic; ``refusal`` None means that it is on the queue."""

    name: str | None
    topic_id: UUID
    refusal: Refusal | None = None


def delete_topics(
    cluster: Cluster, asked: Sequence[Doomed], enabled: bool = True
) -> Decision[list[Deleted]]:
    """Decide DeleteTopics. ``enabled`` is ``delete.topic.enable``."""
    writes: list[Write] = []
    answers: list[Deleted] = []
    found: list[str | None] = [_name_of(cluster, one) for one in asked]
    for one, name in zip(asked, found, strict=True):
        refusal = _why_not(cluster, one, name, enabled)
        if refusal is None and found.count(name) > 1:
            sentence = f"The topic {name} is named more than once."
            refusal = Refusal(ErrorCode.INVALID_REQUEST, sentence)
        if refusal is not None or name is None:
            answers.append(Deleted(one.name, one.topic_id, refusal))
            continue
        answers.append(Deleted(name, cluster.topic_id(name)))
        writes.extend(_leave(cluster, name))
    return Decision(answers, tuple(writes))


def confirm(
    cluster: Cluster, broker: int, gone: dict[UUID, Collection[int] | None]
) -> Decision[None]:
    """A broker no longer has partitions of deleted topics (None: of that topic it has none)."""
    writes: list[Write] = []
    for topic_id, indexes in gone.items():
        node = cluster.deletions.get(topic_id)
        if node is None:
            continue
        left: dict[int, list[int]] = {}
        for index, brokers in node.partitions.items():
            confirmed = indexes is None or index in indexes
            rest = [x for x in brokers if not (confirmed and x == broker)]
            if rest:
                left[index] = rest
        if left == node.partitions:
            continue
        path = layout.deletion(topic_id)
        if left:
            writes.append(Put(path, msgspec.structs.replace(node, partitions=left)))
        else:
            writes.append(Remove(path))
    return Decision(None, tuple(writes))


def held_by(cluster: Cluster, broker: int) -> dict[UUID, list[int]]:
    """Return what a broker still has to delete: topic id to partitions."""
    held: dict[UUID, list[int]] = {}
    for topic_id, node in cluster.deletions.items():
        indexes = [index for index, brokers in node.partitions.items() if broker in brokers]
        if indexes:
            held[topic_id] = sorted(indexes)
    return held


def _name_of(cluster: Cluster, one: Doomed) -> str | None:
    return one.name if one.name is not None else cluster.names.get(one.topic_id)


def _why_not(cluster: Cluster, one: Doomed, name: str | None, enabled: bool) -> Refusal | None:
    if not enabled:
        sentence = "Topic deletion is switched off (delete.topic.enable=false)."
        return Refusal(ErrorCode.TOPIC_DELETION_DISABLED, sentence)
    if one.name is not None and one.topic_id != NO_ID:
        sentence = "A topic is named by its name or by its id, not by both."
        return Refusal(ErrorCode.INVALID_REQUEST, sentence)
    if one.name is None and one.topic_id == NO_ID:
        return Refusal(ErrorCode.INVALID_REQUEST, "Neither a name nor an id was given.")
    if name is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
    if layout.topic(name) in cluster.damaged:
        damaged = str(cluster.damaged[layout.topic(name)])
        return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, damaged)
    if name not in cluster.topics:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name}.")
    return None


def _leave(cluster: Cluster, name: str) -> list[Write]:
    node = cluster.topics[name]
    writes: list[Write] = []
    for index in sorted(node.partitions):
        writes += _there(cluster, layout.state(name, index), layout.partition(name, index))
    writes += _there(
        cluster,
        layout.partitions(name),
        layout.topic(name),
        layout.memory(name),
        layout.topic_configs(name),
    )
    held = {index: list(replicas) for index, replicas in node.partitions.items()}
    topic_id = cluster.topic_id(name)
    writes.append(Put(layout.deletion(topic_id), DeletionNode(name, held)))
    return writes


def _there(cluster: Cluster, *paths: str) -> list[Write]:
    return [Remove(path) for path in paths if path in cluster.versions]
