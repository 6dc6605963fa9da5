"""The offsets that a commit names: OffsetCommit and TxnOffsetCommit have the same fields.

Owns which of the named partitions a group may commit for. Not whether the group takes them: see
``groups.offsets``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelog.groups.records import CommittedOffset
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache, TopicMetadata

Named = tuple[TopicPartition, CommittedOffset]


def named_offsets(metadata: MetadataCache, request: Any, by_id: bool) -> Iterator[Named | None]:
    """Yield the offset to commit of each partition, None for one that does not exist.

    ``by_id``: the topics have the ids that the request names. The name of an id may be that of the
    next incarnation by the time that a later part is decided.
    """
    newest = metadata.max_partition_epoch
    for topic in request.topics:
        listed = metadata.topic(topic.name)
        for partition in topic.partitions:
            if (
                listed is None
                or (by_id and listed.topic_id != topic.topic_id)
                or not _was_ever(listed, partition.partition_index, newest)
            ):
                yield None
                continue
            offset = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                topic_id=listed.topic_id,
            )
            yield TopicPartition(topic.name, partition.partition_index), offset


def _was_ever(topic: TopicMetadata, index: int, newest: int) -> bool:
    """Whether a topic has a partition, or may have had it: ``newest`` counts all of the cluster."""
    return index in topic.partitions or (topic.resize_epoch > 0 and 0 <= index <= newest)
