"""How far clients and followers may read a partition: one rule for Fetch and ListOffsets.

Owns the rule, and the check of a consumer's count before it (KIP-253; the table is in
`replication.resize_rules`). Not which readers may read: see ``fetching.partition_reads``.

| reader | limit |
|---|---|
| a consumer, at any isolation level (there are no transactions yet) | the high watermark |
| a consumer with a count | the same, or the first fence or seal of a newer resize epoch below it |
| a follower that is a replica | the log's end |

What is copied into memory may have all of that. A part of a file, which ``sendfile`` sends later,
has committed batches only, a follower's too: a truncation must not cut it on its way, or another
leader's records come in its place.

A fence limits a consumer of an older resize epoch on the leader, and one of the partition's own on
a follower that has the next fence before the next LeaderAndIsr (KIP-392).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.replication.resize_rules import NOT_NAMED, Named, ToFetch, answer_to_fetch

if TYPE_CHECKING:
    from tidelog.broker.metadata.shown_epochs import ShownEpochs
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.storage.log.state import LogState

_ERRORS = {
    ToFetch.INCOMPLETE: ErrorCode.INVALID_REQUEST,
    ToFetch.ELSEWHERE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ToFetch.OLDER: ErrorCode.INVALID_PARTITION_METADATA,
}


def read_limit(log: LogState, committed: bool) -> int:
    """Return the offset below which records may be read; ``committed``: only committed ones."""
    return log.high_watermark if committed else log.end_offset


def limit_of_consumer(partition: HostedPartition, named: Named) -> int:
    """Return the offset below which a consumer may read, which was not refused. O(1), and O(log of
    the fences) where it is behind a resize."""
    log = partition.log
    mark = log.high_watermark
    if named is NOT_NAMED:
        return mark
    newest = log.fences.newest
    if newest is None or newest.resize_epoch <= named.resize_epoch or not _checks(partition):
        return mark
    fence = log.fences.first_after(named.resize_epoch)
    return mark if fence is None else min(mark, fence.offset)


def is_at_limit(offset: int, limit: int, high_watermark: int) -> bool:
    """Return whether nothing can be read at an offset now: it is the limit, or beyond the fence
    that is the limit (another member committed it)."""
    return offset == limit or limit < offset <= high_watermark


def why_not_read(partition: HostedPartition, named: Named, shown: ShownEpochs) -> ErrorCode:
    """Return why a consumer is refused for its count, or NONE. O(1)."""
    if named is NOT_NAMED or not _checks(partition):
        return ErrorCode.NONE
    answer = answer_to_fetch(named, partition.state, shown.of(partition.topic))
    return _ERRORS.get(answer, ErrorCode.NONE)


def _checks(partition: HostedPartition) -> bool:
    state, configs = partition.state, partition.log.configs
    return state.undeleted_count >= 0 and configs.enable_ordered_delivery
