"""Detection of log truncation by a consumer (KIP-320): the rule, and the request to one leader.

Owns when a position is past the end of its epoch in the leader's log. Not where reading continues:
see ``fetcher``. When a leader does not know the epoch, only the offset counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.giving_up import unless_taken_over
from tidelog.client.errors import VersionUnsupported
from tidelog.client.leaders import led_elsewhere
from tidelog.client.offsets import EpochEnd, epoch_ends_at
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


def must_ask(epoch: int, leader_epoch: int, asked_in: int) -> bool:
    """Whether a leader must be checked before it is read from.

    ``epoch``: of the record before the position; ``leader_epoch``: the leader's; ``asked_in``: the
    leader epoch of the last check. A leader has all records of its own epoch.
    """
    return 0 <= epoch < leader_epoch != asked_in


def was_cut(offset: int, end: EpochEnd) -> bool:
    """Whether a log in which the position's epoch ends at ``end`` lacks records that were read."""
    return 0 <= end.end_offset < offset


async def ask_ends(
    cluster: Cluster,
    node_id: int,
    epochs: Mapping[TopicPartition, int],
    leader_epochs: Mapping[TopicPartition, int],
) -> dict[TopicPartition, EpochEnd | ErrorCode]:
    """Request the ends of epochs in a leader's log; none from a broker that does not serve it.

    ``leader_epochs``: those in which the broker leads. Raises TakenOver when it does not respond,
    and another one leads.
    """
    search = partial(led_elsewhere, cluster, node_id, leader_epochs)
    try:
        return await unless_taken_over(epoch_ends_at(cluster, node_id, epochs), search)
    except VersionUnsupported:
        return dict.fromkeys(epochs, EpochEnd(-1, -1))
