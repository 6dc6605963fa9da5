"""Readers of a consumer, by its settings: one for each subscription.

Owns what a reader and its member are made with. Not when they are made, nor their end: see
``consumer`` and ``left_readers``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidelog.aio.consumer_hooks import ConsumerHooks
from tidelog.aio.consumer_settings import ConsumerSettings
from tidelog.client.cluster import Cluster
from tidelog.client.fetching.resets import OffsetReset
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.groups.self_assigned import SelfAssigned
from tidelog.model.topics import TopicPartition


def new_member(
    cluster: Cluster,
    settings: ConsumerSettings,
    topics: Collection[str],
    partitions: Iterable[TopicPartition] | None,
) -> GroupMember | SelfAssigned:
    """Return a member of the group, or what reads ``partitions``, or without a group all."""
    if partitions is None and settings.group_id is not None:
        return GroupMember(cluster, settings.group_id, topics, **settings.of_member())
    alone = SelfAssigned(cluster, settings.group_id)
    if partitions is not None:
        alone.assign(partitions)
    alone.subscribe(topics)
    return alone


def new_reader(
    cluster: Cluster,
    settings: ConsumerSettings,
    member: GroupMember | SelfAssigned,
    hooks: ConsumerHooks,
) -> GroupReader:
    """Return a reader that reads as this member."""
    return GroupReader(
        cluster,
        member=member,
        hooks=hooks,
        reset=OffsetReset(settings.auto_offset_reset),
        isolation=settings.isolation,
        auto_commit_ms=settings.auto_commit_ms,
        options=settings.of_fetches(),
        prefetch_bytes=settings.fetch_buffer_bytes,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        rebalance_timeout_ms=settings.max_poll_interval_ms,
        is_aware=settings.enable_ordered_delivery,
    )
