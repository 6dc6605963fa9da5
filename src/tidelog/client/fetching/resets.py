"""Resets of positions that are outside the log, or that a group has not committed.

Owns the policy (auto.offset.reset) and the lookup of where reading begins. Not when it is needed:
see ``fetcher`` and ``groups.group_reader``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from tidelog.client import offsets
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.metadata import Partition
from tidelog.client.offsets import FoundOffset, IsolationLevel
from tidelog.model.topics import TopicPartition


class OffsetReset(Enum):
    """What to do with a position outside the log (Kafka's auto.offset.reset)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


def reset_of(partition: Partition | None, offset: int, wanted: OffsetReset) -> OffsetReset:
    """Return how a position outside the log is reset.

    One from before a partition's birth goes to its start, whatever the policy, as OffsetFetch does
    it (docs/design/elastic.md): all that is in the partition came after what was read, and
    ``latest`` would skip it. A member has such a position where a retired partition was removed
    before the member read past its seal, and the topic has grown again since.
    """
    is_of_former = partition is not None and offset < partition.birth_offset
    return OffsetReset.EARLIEST if is_of_former else wanted


async def reset_offsets(
    cluster: Cluster,
    reset: OffsetReset,
    partitions: Iterable[TopicPartition],
    isolation: IsolationLevel,
    *,
    failed: dict[TopicPartition, ClientError] | None = None,
    taken: Callable[[dict[TopicPartition, FoundOffset]], None] | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """Look up the starts or ends of partitions; see ``list_offsets``."""
    place = offsets.EARLIEST if reset is OffsetReset.EARLIEST else offsets.LATEST
    return await offsets.list_offsets(
        cluster, dict.fromkeys(partitions, place), isolation=isolation, failed=failed, taken=taken
    )
