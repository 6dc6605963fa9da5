"""What a partition was when a Fetch read it, for one that begins to wait some turns later.

Owns the comparison: a request that reads very many partitions does so in steps, and so begins to
wait at them in steps. What came to one between the step that read it and the step that begins to
wait there is to count as if the request had waited there since it was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.partitions.read_limit import read_limit

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.state import LeaderAndIsrState


class Sight(NamedTuple):
    """What wakes those who wait at a partition when it changes."""

    state: LeaderAndIsrState
    """Leader epoch, leader and replicas. A stop changes it too, and so does each other ISR: then
    the request looks once for nothing."""
    is_offline: bool
    generation: int
    """Of the log: another one after a cut, even if it was filled up again."""
    start_offset: int
    end: int
    """Up to where may be read: the high watermark, for a follower the log's end."""
    told_bytes: int
    """Bytes that those who wait have been told of so far."""


def sight_of(partition: HostedPartition, *, committed: bool) -> Sight:
    """Return what a consumer sees of a partition, or, if not ``committed``, what a follower does.
    O(1)."""
    log = partition.log
    end, told = read_limit(log, committed), partition.bytes_in
    if committed:
        told -= partition.waiting.uncommitted_bytes
    offline = partition.offline_reason is not None
    return Sight(partition.state, offline, log.generation, log.start_offset, end, told)


def come_since(before: Sight, now: Sight) -> int | None:
    """Return what one who had waited meanwhile would have been told (``Waiter.more``): so many
    bytes more, or 0 to look again; None is nothing."""
    if before == now:
        return None
    if before[:4] == now[:4] and now.end > before.end:
        return max(0, now.told_bytes - before.told_bytes)
    return 0
