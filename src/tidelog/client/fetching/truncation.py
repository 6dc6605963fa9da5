"""Noticing that a log was cut behind a reader: the rule, and its question to one leader (KIP-320).

Owns when a position is behind what its leader has of the position's epoch. Where a reader goes on
then is ``fetcher``. A leader that knows nothing of an epoch settles nothing: the offset decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import VersionUnsupported
from tidelog.client.offsets import EpochEnd, epoch_ends_at
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


def must_ask(epoch: int, leader_epoch: int, asked_in: int) -> bool:
    """Whether a leader must be asked before it is read from.

    ``epoch``: in which what is before the position was written; ``leader_epoch``: the leader's;
    ``asked_in``: in which leader epoch it was asked last. A leader has all of its own epoch.
    """
    return 0 <= epoch < leader_epoch != asked_in


def was_cut(offset: int, end: EpochEnd) -> bool:
    """Whether a log of which this is the ``end`` of a position's epoch lacks what was read."""
    return 0 <= end.end_offset < offset


async def ask_ends(
    cluster: Cluster, node_id: int, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochEnd | ErrorCode]:
    """Ask a leader where epochs end in its log; a broker that cannot say settles nothing."""
    try:
        return await epoch_ends_at(cluster, node_id, epochs)
    except VersionUnsupported:
        return dict.fromkeys(epochs, EpochEnd(-1, -1))
