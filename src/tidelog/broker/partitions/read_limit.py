"""How far clients and followers may read a partition: one rule for Fetch and ListOffsets.

Owns the rule only. Not which readers may read: see ``fetching.partition_reads``; not which counts
are refused: see ``resize_checks``; not the last stable offset itself: see ``storage.log.stable``.

| reader | limit |
|---|---|
| a consumer | the high watermark |
| a consumer with a count | the same, or the first fence or seal of a newer resize epoch below it |
| either, of committed transactions only (KIP-98) | the same, or the last stable offset below it |
| a follower that is a replica | the log's end |

A fence limits a consumer of an older resize epoch on the leader, and one of the partition's own on
a follower that has the next fence before the next LeaderAndIsr (KIP-392).

What is copied into memory may have all of that. A part of a file, which ``sendfile`` sends later,
has committed batches only, a follower's too: a truncation must not cut it on its way, or another
leader's records come in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidelog.replication.resize_rules import NOT_NAMED, Named
from tidelog.storage.log.stable import last_stable_offset

if TYPE_CHECKING:
    from tidelog.broker.partitions.state import LeaderAndIsrState
    from tidelog.storage.log.state import LogState

READ_COMMITTED = 1
"""The isolation level of a request that is to get records of committed transactions only."""


class Readable(Protocol):
    """A hosted partition, as its readers' limit needs it."""

    @property
    def log(self) -> LogState: ...

    @property
    def state(self) -> LeaderAndIsrState: ...


def read_limit(log: LogState, committed: bool) -> int:
    """Return the offset below which records may be read; ``committed``: only committed ones."""
    return log.high_watermark if committed else log.end_offset


def limit_of_consumer(partition: Readable, named: Named) -> int:
    """Return the offset below which a consumer may read, which was not refused. O(1), and O(log of
    the fences) where it has not seen a resize."""
    log = partition.log
    mark = log.high_watermark
    if named is NOT_NAMED or not log.fences.entries:
        return mark
    newest = log.fences.entries[-1].resize_epoch
    if newest <= named.resize_epoch or not counts_are_checked(partition):
        return mark
    fence = log.fences.first_after(named.resize_epoch)
    return mark if fence is None else min(mark, fence.offset)


def limit_at(partition: Readable, named: Named, isolation_level: int) -> int:
    """Do as ``limit_of_consumer``, at an isolation level."""
    limit = limit_of_consumer(partition, named)
    if isolation_level != READ_COMMITTED:
        return limit
    return min(limit, last_stable_offset(partition.log))


def is_at_limit(offset: int, limit: int, high_watermark: int) -> bool:
    """Return whether nothing can be read at an offset now: it is the limit, or beyond the fence
    or the last stable offset that is the limit (another member committed it)."""
    return offset == limit or limit < offset <= high_watermark


def counts_are_checked(partition: Readable) -> bool:
    """Return whether the counts of clients are checked."""
    state, configs = partition.state, partition.log.configs
    return state.undeleted_count >= 0 and configs.enable_ordered_delivery
