"""Metadata of the topics that a member reads: as new as what it was assigned by (KIP-253).

Owns the stamps of one generation. Not the assignment: see ``assignors``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.metadata import ClusterMetadata, Topic
from tidelog.client.stamps import is_newer, partition_stamp, stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.replication.resize_rules import ABSENT, Named

CATCH_UP_MS = 2_000
"""How long a member asks for newer metadata before it goes on with what it has."""


async def catch_up(cluster: Cluster, epochs: Mapping[str, int]) -> None:
    """Ask for metadata until each topic is at its resize epoch or a newer one, for a moment.

    A broker that is not reached, or has older metadata than another member, delays this member and
    does not stop it: it joins again when it sees the newer epoch.
    """

    async def attempt() -> None:
        stale = [name for name, epoch in epochs.items() if _is_stale(cluster.view, name, epoch)]
        if stale:
            await cluster.describe(stale)
        if any(_is_stale(cluster.view, name, epochs[name]) for name in stale):
            raise Refused(ErrorCode.INVALID_PARTITION_METADATA, f"topics {stale}")

    try:
        await cluster.retry(attempt, CATCH_UP_MS)
    except ClientError:
        return


def newest_epochs(epochs_of_members: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the newest resize epoch of each topic in the metadata of members."""
    newest: dict[str, int] = {}
    for epochs in epochs_of_members:
        for name, epoch in epochs.items():
            newest[name] = max(epoch, newest.get(name, -1))
    return newest


def _is_stale(view: ClusterMetadata, name: str, epoch: int) -> bool:
    topic = view.topics.get(name)
    return topic is None or topic.resize_epoch < epoch


def ordered_topics(view: ClusterMetadata, names: Iterable[str]) -> dict[str, Topic]:
    """Return the topics among these whose keys keep their order over resizes."""
    topics = {name: view.topics[name] for name in names if name in view.topics}
    return {name: topic for name, topic in topics.items() if not topic.error and topic.is_ordered}


def stamps_of(
    topics: Mapping[str, Topic], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Named]:
    """Return what requests of a generation say of its partitions; none of unordered topics."""
    stamps = {name: stamp_of(topic) for name, topic in topics.items()}
    return {
        tp: partition_stamp(
            stamps[tp.topic], topics[tp.topic].partitions[tp.partition].partition_epoch
        )
        for tp in partitions
        if tp.topic in topics and tp.partition in topics[tp.topic].partitions
    }


def looked_up_apart(
    view: ClusterMetadata, partitions: Iterable[TopicPartition]
) -> list[list[TopicPartition]]:
    """Return the partitions in the parts that a group's positions are asked for in.

    For a partition that was born in a growth the coordinator may have to ask its leader
    (``groups.births``), and a response has no offsets without that one: such partitions are a part
    for each leader, so that a leader that is dead holds up no partition of another one.
    """
    parts: dict[int | None, list[TopicPartition]] = {None: []}
    for tp in partitions:
        topic = view.topics.get(tp.topic)
        state = None if topic is None else topic.partitions.get(tp.partition)
        leader = None if state is None or state.birth_epoch == 0 else state.leader
        parts.setdefault(leader, []).append(tp)
    return [part for part in parts.values() if part]


def reborn(
    before: Mapping[TopicPartition, Named], now: Mapping[TopicPartition, Named]
) -> list[TopicPartition]:
    """Return the partitions of which requests name another incarnation than before."""
    partitions = []
    for tp, named in now.items():
        epochs = {before.get(tp, named).partition_epoch, named.partition_epoch}
        if len(epochs) > 1 and ABSENT not in epochs:
            partitions.append(tp)
    return partitions


def former_topics(seen: Mapping[str, Topic], view: ClusterMetadata) -> set[str]:
    """Return the names of which metadata show another topic than a generation reads: that one was
    deleted, and one of its name created. Positions in it say nothing of the new one."""
    return {
        name
        for name, topic in seen.items()
        if name in view.topics
        and not view.topics[name].error
        and view.topics[name].topic_id != topic.topic_id
    }


def deleted_topics(seen: Mapping[str, Topic], view: ClusterMetadata) -> set[str]:
    """Return the names of which metadata show no topic, or another one, than a generation reads.

    A position in such a topic is not committed: by the time that the request arrives, another topic
    may have been created with the name, and the position would count in it. A broker that does not
    know the topic yet only delays a commit.
    """
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    gone = {name for name in seen if name in view.topics and view.topics[name].error == unknown}
    return gone | former_topics(seen, view)


def is_resized(
    seen: Mapping[str, Topic], own: Iterable[TopicPartition], view: ClusterMetadata
) -> bool:
    """Whether metadata show a newer resize epoch than a generation reads with, another topic of the
    same name, or that one of its own partitions was removed."""
    if former_topics(seen, view):
        return True
    changed = set()
    for name, topic in seen.items():
        newest = view.topics.get(name)
        if newest is None or newest is topic or newest.topic_id != topic.topic_id:
            continue
        if is_newer(stamp_of(newest), stamp_of(topic)):
            return True
        if len(newest.partitions) < len(topic.partitions):
            changed.add(name)
    return bool(changed) and any(
        tp.topic in changed
        and tp.partition in seen[tp.topic].partitions
        and tp.partition not in view.topics[tp.topic].partitions
        for tp in own
    )
