"""State of a partition when a Fetch request read it, compared with its state some turns later.

Owns the comparison. A request for very many partitions reads them in steps, and then registers its
wait at them in steps. A change of a partition between these two steps must count as if the request
had waited there since the read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.partitions.read_limit import read_limit
from tidelog.broker.partitions.waiters import bytes_below_stable
from tidelog.storage.log.stable import last_stable_offset

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.state import LeaderAndIsrState


class ReadPosition(NamedTuple):
    """The state of a partition whose changes wake a waiter."""

    state: LeaderAndIsrState
    """Leader epoch, leader and replicas. Another ISR changes it too: then the request reads once
    more and finds no change."""
    is_offline: bool
    generation: int
    """Of the log: each truncation changes it, also where the log has its former end again."""
    start_offset: int
    end: int
    """The read limit: the high watermark for consumers, or the last stable offset; the log end for
    followers."""
    notified_bytes: int
    """Bytes appended so far of which waiters have been notified; 0 for a reader of committed
    transactions: its waiters are notified when ``end`` moves alone."""


def read_position(
    partition: HostedPartition, *, committed: bool, stable: bool = False
) -> ReadPosition:
    """Return the present state, for a consumer if ``committed``, otherwise for a follower. O(1).

    ``stable``: for a consumer of committed transactions.
    """
    log = partition.log
    end, notified = read_limit(log, committed), partition.bytes_in
    if committed:
        notified -= partition.waiting.uncommitted_bytes
    if stable:
        end, notified = min(end, last_stable_offset(log)), 0
    offline = partition.offline_reason is not None
    return ReadPosition(partition.state, offline, log.generation, log.start_offset, end, notified)


def arrived_since(
    before: ReadPosition, partition: HostedPartition, *, committed: bool, stable: bool = False
) -> int | None:
    """Return the argument with which a waiter would have been called (``Waiter.more``): the number
    of new bytes, 0 for another change; None where it would not have been called.

    ``committed`` and ``stable`` are those of ``before``. For a reader of committed transactions two
    look-ups where the end moved.
    """
    now = read_position(partition, committed=committed, stable=stable)
    if before == now:
        return None
    if before[:4] == now[:4] and now.end > before.end:
        if stable:
            return bytes_below_stable(partition.log, before.end, now.end)
        return max(0, now.notified_bytes - before.notified_bytes)
    return 0
