"""The topic that an audit reads, as it is at the start: counts, births, fences, and both log ends.

Owns the requests, in an order that makes the answers one: first metadata, then the ends, then the
fences, so that every fence below an end is known. Not what is read between them: see ``reading``.
"""

from __future__ import annotations

from collections.abc import Collection

from tidelog.cli.auditing.facts import AuditedPartition, AuditedTopic
from tidelog.cli.refusal import Failed
from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.client.fences import FenceList, counts_of, describe_fences, is_complete
from tidelog.client.metadata import Topic
from tidelog.client.offsets import EARLIEST, LATEST, IsolationLevel, list_offsets
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.audit_rules import TopicCounts


async def look_up(cluster: Cluster, name: str) -> AuditedTopic:
    """Look up a topic. Raises ClientError, and Failed for a topic whose keys have no order."""
    topic = (await cluster.topics([name]))[name]
    if topic.resize_epoch < 0 <= topic.max_partition_epoch:
        raise Failed(
            f"topic {name} has enable.ordered.delivery=false: no place and no order of its keys is "
            "promised"
        )
    tps = [TopicPartition(name, index) for index in topic.partitions]
    # A reader of transactions sees no further than the last stable offset.
    committed = IsolationLevel.READ_COMMITTED
    ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST), isolation=committed)
    starts = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
    fences = await _fences(cluster, topic, tps) if topic.resize_epoch > 0 else {}
    offsets = {
        tp.partition: (starts[tp].offset, max(starts[tp].offset, ends[tp].offset)) for tp in tps
    }
    return audited_of(topic, offsets, fences)


async def _fences(
    cluster: Cluster, topic: Topic, tps: Collection[TopicPartition]
) -> dict[int, FenceList]:
    async def attempt() -> dict[int, FenceList]:
        answer = await describe_fences(cluster, tps)
        for tp, described in answer.items():
            if not is_complete(described.fences, topic.resize_epoch):
                # Its high watermark is below it still.
                raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"the newest fence of {tp}")
        return {tp.partition: described.fences for tp, described in answer.items()}

    return await cluster.retry(attempt)


def audited_of(
    topic: Topic, offsets: dict[int, tuple[int, int]], fences: dict[int, FenceList]
) -> AuditedTopic:
    """Return the topic of an audit from its metadata, log ends and fences.

    A fence of a newer resize epoch than that of the metadata ends what is judged of its partition:
    clients did not see that count yet.
    """
    is_counted = topic.is_ordered
    partitions = {}
    for index, listed in topic.partitions.items():
        begin, end = offsets[index]
        places = fences.get(index, ())
        newer = [place for place in places if place.fence.resize_epoch > topic.resize_epoch]
        if newer:
            end = max(begin, min(end, newer[0].fence.offset))
        below = tuple(place for place in places if place.fence.offset < end)
        partitions[index] = AuditedPartition(begin, end, listed.is_retired, below)
    initial = topic.initial_partition_count if is_counted else len(topic.partitions)
    births = {partition.birth_epoch for partition in topic.partitions.values()}
    by_epoch = {
        epoch: count
        for epoch, count in counts_of(fences.values()).items()
        if epoch <= topic.resize_epoch
    }
    return AuditedTopic(topic, TopicCounts.of(initial, by_epoch, births), partitions, is_counted)
