"""The report about a restored store: what its brokers hold that it does not know.

Owns the report, as an operator reads it before accepting, and which brokers have reported what. Not
the acceptance: see ``restoration``; not how unknown data come back: see ``unknown_data``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_ID, ClusterState, LogEnd
from tidelog.controller.decisions.late_replicas import late_replicas
from tidelog.controller.decisions.newest_commands import named_brokers
from tidelog.controller.decisions.restored_resizes import counted
from tidelog.controller.decisions.unknown_data import Unknown, configs_of, find
from tidelog.metadata import layout
from tidelog.model.topics import TopicPartition

MOST_LATE = 10_000
"""Late replicas that a report lists: some 3 MB. The others follow when these are settled."""


def report(cluster: ClusterState) -> dict[str, Any]:
    """Return what an operator needs to know before accepting, as plain data for JSON."""
    return {
        "went_back": cluster.went_back,
        "brokers_heard": sorted(present_brokers(cluster)),
        "brokers_missing": sorted(missing_brokers(cluster)),
        "unknown": list(_unknown(cluster)),
        "unknown_comes_back": True,
        "partitions": list(_partitions(cluster)),
        "resized": list(_resized(cluster)),
        "late": _late(cluster),
    }


def missing_brokers(cluster: ClusterState) -> set[int]:
    """Return the brokers that are assigned or registered, or that the newest commands name, and
    that have not reported their replicas."""
    assigned = {
        broker
        for node in cluster.topics.values()
        for replicas in node.partitions.values()
        for broker in replicas
    }
    assigned.update(*cluster.moves.values())
    return (assigned | cluster.brokers.keys() | named_brokers(cluster)) - present_brokers(cluster)


def present_brokers(cluster: ClusterState) -> set[int]:
    """Return the brokers that have registered, reported their replicas, and may lead."""
    return cluster.inventories.keys() & (cluster.fit - cluster.presumed)


def ends_of(cluster: ClusterState, tp: TopicPartition) -> dict[int, LogEnd]:
    """Return the log end of every usable replica of a partition, on any broker."""
    ends = {}
    for broker in cluster.inventories.keys() | cluster.nameless.keys():
        # Of any incarnation: the store may not know the newest one.
        end = cluster.any_log_end(broker, tp)
        if end is not None and broker in cluster.brokers and (broker, tp) not in cluster.broken:
            ends[broker] = end
    return ends


def _unknown(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    """Yield the data of replicas that the store does not know, by topic."""
    for one in find(cluster):
        yield _listed(
            one.name,
            one.topic_id,
            [
                _replica(broker, index, end)
                for index, ends in sorted(one.ends.items())
                for broker, end in sorted(ends.items())
            ],
            is_known=one.is_known,
            configs=configs_of(cluster, one),
        )
    held: dict[UUID, list[dict[str, int]]] = {}
    for broker, inventory in sorted(cluster.inventories.items()):
        for (topic_id, index), end in sorted(inventory.items()):
            if topic_id in cluster.deletions:
                held.setdefault(topic_id, []).append(_replica(broker, index, end))
    for topic_id, replicas in held.items():
        name = cluster.deletions[topic_id].name
        yield _listed(name, topic_id, replicas, is_being_deleted=True)


def _listed(
    name: str,
    topic_id: UUID,
    replicas: list[dict[str, int]],
    *,
    is_known: bool = False,
    is_being_deleted: bool = False,
    configs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "topic": name,
        # None: brokers below level 1.4 hold replicas without one.
        "topic_id": layout.id_text(topic_id) if topic_id != NO_ID else None,
        "is_known": is_known,
        "is_being_deleted": is_being_deleted,
        "configs": dict(configs or {}),
        "replicas": replicas,
    }


def _partitions(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    """Yield the partitions with a replica on an unassigned broker, or without any replica."""
    for name, node in sorted(cluster.topics.items()):
        for index, replicas in sorted(node.partitions.items()):
            ends = ends_of(cluster, TopicPartition(name, index))
            if ends and ends.keys() <= set(cluster.hosts(TopicPartition(name, index))):
                continue
            held = [_replica(broker, index, end) for broker, end in sorted(ends.items())]
            yield {"topic": name, "partition": index, "assigned": replicas, "replicas": held}
    for one in find(cluster):
        present = cluster.topics[one.name].partitions if one.is_known else {}
        # Partition numbers have no gaps: some broker has these, or had them.
        for index in sorted(set(range(max(one.ends))) - one.ends.keys() - present.keys()):
            yield {"topic": one.name, "partition": index, "assigned": [], "replicas": []}


def _resized(cluster: ClusterState) -> Iterator[dict[str, Any]]:
    """Yield the topics that were ever resized, with the counts that they go on with.

    As if every broker that is missing were given up.
    """
    unknown = {one.name: one for one in find(cluster)}
    gives_up = bool(missing_brokers(cluster))
    for name in sorted(cluster.topics.keys() | unknown.keys()):
        one = unknown.get(name)
        is_known = name in cluster.topics and (one is None or one.is_known)
        present = cluster.topics[name].partitions if is_known else {}
        ends = {x: ends_of(cluster, TopicPartition(name, x)) for x in present}
        ends |= {} if one is None else one.ends
        counting = counted(cluster, name, ends, is_known=is_known, gives_up_brokers=gives_up)
        if counting is not None:
            counts, _ = counting
            yield {
                "topic": name,
                "count": counts.count,
                "resize_epoch": counts.published_epoch,
                "newest_resize_epoch": counts.newest_epoch,
                "retired": sorted(counts.sealed_by),
                "lost": list(counts.lost),
            }


def _late(cluster: ClusterState) -> list[dict[str, Any]]:
    """Return the replicas that an accepted store does not know, see ``late_replicas``."""
    rows = []
    for one in late_replicas(cluster)[:MOST_LATE]:
        is_known = one.topic_id in cluster.names
        unknown = Unknown(one.topic, one.topic_id, is_known)
        rows.append(
            {
                "topic": one.topic,
                "topic_id": layout.id_text(one.topic_id),
                "is_known": is_known,
                **_replica(one.broker, one.partition, one.end),
                "fate": one.fate.value,
                "why": one.why,
                "configs": configs_of(cluster, unknown),
            }
        )
    return rows


def _replica(broker: int, partition: int, end: LogEnd) -> dict[str, int]:
    return {
        "broker": broker,
        "partition": partition,
        "leader_epoch": end.leader_epoch,
        "end_offset": end.end_offset,
    }
