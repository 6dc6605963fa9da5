"""The settings of autoscaling of one topic, from its configurations. Pure (KIP-253).

Owns which topics are resized by their load, and how long their retired partitions stay. Not the
decision: see ``autoscaling``.
"""

from __future__ import annotations

from tidelog.controller.decisions.autoscaling import Settings
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.removal import DRAINED
from tidelog.model.configs.resolve import RETIRED_PURGE
from tidelog.model.configs.topic import TopicConfigs

AUTO = "partitions.auto"


def settings_of(cluster: ClusterState, name: str) -> Settings | None:
    """Return a topic's settings; None if it is not resized by its load.

    Nor is one whose ``retired.purge`` is not set, or that does not keep the order of its keys: such
    a change is refused, but another program may have written it into the store.
    """
    own = cluster.topic_configs.get(name)
    history = cluster.topic_histories.get(name)
    if own is None or AUTO not in own or RETIRED_PURGE not in own or history is None:
        return None
    configs = cluster.resolve(name).configs
    is_wanted = configs.partitions_auto and configs.enable_ordered_delivery
    if not is_wanted or not cluster.level.resizes:
        return None
    return settings_from(configs, history.initial_partition_count)


def settings_from(configs: TopicConfigs, initial_count: int) -> Settings:
    """Return the settings of a topic with these configurations and this initial count."""
    retired_ms: int | None = None
    if configs.retired_purge == DRAINED and not configs.compacted:
        retired_ms = 0
    elif configs.expires and configs.retention_ms >= 0:
        retired_ms = configs.retention_ms
    return Settings(
        initial_count,
        configs.partitions_auto_target_bytes_per_second,
        configs.partitions_auto_min,
        configs.partitions_auto_max,
        configs.partitions_auto_grow_cooldown_ms,
        configs.partitions_auto_shrink_cooldown_ms,
        configs.partitions_auto_shrink_utilization,
        retired_ms,
    )
