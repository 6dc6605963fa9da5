"""Lookups of offsets: start and end of a log, by time, by leader epoch.

Owns the client's ListOffsets and OffsetForLeaderEpoch. Not committed offsets of groups: see
``groups.committed_offsets``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, VersionUnsupported, error_code
from tidelog.client.leaders import ask_leaders
from tidelog.client.metadata import ClusterMetadata
from tidelog.client.stamps import stamp_of
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, topics_field
from tidelog.protocol import messages

LATEST = -1
"""The end of the readable log: the high watermark, or the last stable offset."""

EARLIEST = -2
"""The start of the log."""

MAX_TIMESTAMP = -3
"""The record with the largest timestamp (KIP-734; ListOffsets from version 7)."""

MAX_TIMESTAMP_VERSION = 7


class IsolationLevel(IntEnum):
    """Whether a reader sees records of open and aborted transactions (Kafka's isolation.level)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class FoundOffset(NamedTuple):
    """``offset`` and ``timestamp`` (ms) are -1 when no record is that late."""

    offset: int
    timestamp: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The largest epoch not above the requested one, and its end; -1 and -1 for none."""

    leader_epoch: int
    end_offset: int


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    timeout_ms: int | None = None,
    failed: dict[TopicPartition, ClientError] | None = None,
    taken: Callable[[dict[TopicPartition, FoundOffset]], None] | None = None,
    as_of_view: bool = False,
) -> dict[TopicPartition, FoundOffset]:
    """Look up one offset per partition: EARLIEST, LATEST, MAX_TIMESTAMP, or a time in ms.

    A time finds the first record with a timestamp at or after it, or offset -1. Raises Refused;
    with ``failed`` it collects the errors of partitions instead. ``taken`` is called with the
    offsets of each leader when they arrive. ``as_of_view``: requests carry the count and the resize
    epoch of the client's metadata (KIP-253), so no end lies beyond a fence of a newer epoch.
    """

    request_timeout_ms = cluster.settings.request_timeout_ms
    if timeout_ms is not None:
        request_timeout_ms = min(request_timeout_ms, timeout_ms)

    async def ask(
        node_id: int, group: list[TopicPartition]
    ) -> dict[TopicPartition, FoundOffset | ErrorCode]:
        ask_for = messages.ListOffsetsRequest
        topics = topics_field(
            group,
            ask_for.ListOffsetsTopic,
            lambda tp: ask_for.ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=_epoch_of(cluster, tp),
                timestamp=wanted[tp],
            ),
        )
        if as_of_view:
            _count_in(topics, cluster.view)
        connection = await cluster.connection(node_id)
        version = connection.version_of(ApiKey.LIST_OFFSETS)
        if version < MAX_TIMESTAMP_VERSION and any(wanted[p] == MAX_TIMESTAMP for p in group):
            raise VersionUnsupported(f"{connection.peer} cannot look up the largest timestamp")
        answer: messages.ListOffsetsResponse = await connection.send(
            ask_for(replica_id=-1, isolation_level=isolation, topics=topics),
            version,
            request_timeout_ms,
        )
        offsets = {
            TopicPartition(topic.name, item.partition_index): error_code(item.error_code)
            if item.error_code
            else FoundOffset(item.offset, item.timestamp, item.leader_epoch)
            for topic in answer.topics
            for item in topic.partitions
        }
        if taken is not None:
            taken({tp: offset for tp, offset in offsets.items() if isinstance(offset, FoundOffset)})
        return offsets

    return await ask_leaders(cluster, wanted, ask, timeout_ms=timeout_ms, failed=failed)


async def offsets_for_leader_epoch(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    timeout_ms: int | None = None,
    failed: dict[TopicPartition, ClientError] | None = None,
) -> dict[TopicPartition, EpochEnd]:
    """Look up where leader epochs end in the leaders' logs (KIP-320).

    Raises Refused; with ``failed`` it collects the errors of partitions instead.
    """

    async def ask(
        node_id: int, group: list[TopicPartition]
    ) -> dict[TopicPartition, EpochEnd | ErrorCode]:
        return await epoch_ends_at(cluster, node_id, {tp: wanted[tp] for tp in group})

    return await ask_leaders(cluster, wanted, ask, timeout_ms=timeout_ms, failed=failed)


async def epoch_ends_at(
    cluster: Cluster, node_id: int, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochEnd | ErrorCode]:
    """Request the ends of leader epochs in one broker's log, once; errors are per partition."""
    ask_for = messages.OffsetForLeaderEpochRequest
    topics = topics_field(
        wanted,
        ask_for.OffsetForLeaderTopic,
        lambda tp: ask_for.OffsetForLeaderPartition(
            partition=tp.partition,
            current_leader_epoch=_epoch_of(cluster, tp),
            leader_epoch=wanted[tp],
        ),
    )
    answer: messages.OffsetForLeaderEpochResponse = await cluster.send(
        node_id, ask_for(replica_id=-1, topics=topics)
    )
    return {
        TopicPartition(topic.topic, item.partition): error_code(item.error_code)
        if item.error_code
        else EpochEnd(item.leader_epoch, item.end_offset)
        for topic in answer.topics
        for item in topic.partitions
    }


def _count_in(
    topics: Iterable[messages.ListOffsetsRequest.ListOffsetsTopic], view: ClusterMetadata
) -> None:
    """Let a request carry count, resize epoch and partition epoch of each topic that has them."""
    for topic in topics:
        viewed = view.topics.get(topic.name)
        stamp = None if viewed is None else stamp_of(viewed)
        if viewed is None or stamp is None:
            continue
        topic.undeleted_partition_count = stamp.undeleted_count
        topic.resize_epoch = stamp.resize_epoch
        for asked in topic.partitions:
            listed = viewed.partitions.get(asked.partition_index)
            # Of a partition that metadata do not list nothing is known: the leader refuses this.
            asked.partition_epoch = -1 if listed is None else listed.partition_epoch


def _epoch_of(cluster: Cluster, partition: TopicPartition) -> int:
    """Return the leader epoch in the cached metadata; -1 for none, which brokers do not check."""
    state = cluster.view.partition(partition)
    return -1 if state is None else state.leader_epoch
