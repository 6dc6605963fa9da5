"""Which partitions the memory of a fetcher lets it fetch. No I/O.

Owns that rule. Not the state of a partition: see ``assigned``. Not the requests: see ``fetcher``.
"""

from __future__ import annotations

from collections.abc import Collection, Container

from tidelog.client.fetching.assigned import FetchedPartition
from tidelog.model.topics import TopicPartition


def with_room(
    states: Collection[FetchedPartition],
    only: Container[TopicPartition] | None,
    *,
    buffered_bytes: int,
    prefetch_bytes: int,
    partition_bytes: int,
) -> list[FetchedPartition]:
    """Return the partitions that may be fetched now, in their order.

    ``buffered_bytes``: of all partitions. Those without a gate are fetched while less than
    ``prefetch_bytes`` of them are buffered, those with a gate up to half of that. Of one partition
    less than ``2 * partition_bytes`` are buffered.

    ``only``: what the application asked for; None: everything. While none of that can be returned,
    what fills the memory may stay for ever: it is paused, not asked for, or beyond a shut gate.
    Then a partition that is asked for, and of which nothing is buffered, is fetched nevertheless.
    """
    gated_bytes = sum(state.buffered_bytes for state in states if state.gate is not None)
    has_room = buffered_bytes - gated_bytes < prefetch_bytes
    has_gated_room = gated_bytes < prefetch_bytes // 2
    is_stuck = not any(state.is_ready() and is_asked_for(state, only) for state in states)
    return [
        state
        for state in states
        if state.wants_more(2 * partition_bytes)
        and (
            (has_room if state.gate is None else has_gated_room)
            or (is_stuck and is_asked_for(state, only) and returns_next(state))
        )
    ]


def is_asked_for(state: FetchedPartition, only: Container[TopicPartition] | None) -> bool:
    """Whether the application asked for this partition; ``only`` is None: for everything."""
    return only is None or state.partition in only


def returns_next(state: FetchedPartition) -> bool:
    """Whether nothing is buffered, and what is fetched next may be returned."""
    return not state.buffered and (state.gate is None or state.fetch_offset < state.gate)
