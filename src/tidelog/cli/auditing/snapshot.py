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
    where = [TopicPartition(name, index) for index in topic.partitions]
    # A reader of transactions sees no further than the last stable offset.
    committed = IsolationLevel.READ_COMMITTED
    ends = await list_offsets(cluster, dict.fromkeys(where, LATEST), isolation=committed)
    starts = await list_offsets(cluster, dict.fromkeys(where, EARLIEST))
    fences = await _fences(cluster, topic, where) if topic.resize_epoch > 0 else {}
    offsets = {
        each.partition: (starts[each].offset, max(starts[each].offset, ends[each].offset))
        for each in where
    }
    return audited_of(topic, offsets, fences)


async def _fences(
    cluster: Cluster, topic: Topic, where: Collection[TopicPartition]
) -> dict[int, FenceList]:
    async def attempt() -> dict[int, FenceList]:
        found = await describe_fences(cluster, where)
        for each, described in found.items():
            if not is_complete(described.fences, topic.resize_epoch):
                # Its high watermark is below it still.
                raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"the newest fence of {each}")
        return {each.partition: described.fences for each, described in found.items()}

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
        known = fences.get(index, ())
        newer = [each for each in known if each.fence.resize_epoch > topic.resize_epoch]
        if newer:
            end = max(begin, min(end, newer[0].fence.offset))
        below = tuple(each for each in known if each.fence.offset < end)
        partitions[index] = AuditedPartition(begin, end, listed.is_retired, below)
    initial = topic.initial_partition_count if is_counted else len(topic.partitions)
    births = {each.birth_epoch for each in topic.partitions.values()}
    by_epoch = {
        epoch: count
        for epoch, count in counts_of(fences.values()).items()
        if epoch <= topic.resize_epoch
    }
    return AuditedTopic(topic, TopicCounts.of(initial, by_epoch, births), partitions, is_counted)
