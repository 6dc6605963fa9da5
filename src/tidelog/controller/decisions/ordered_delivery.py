"""The switch of ``enable.ordered.delivery``: which change is accepted, and its resize epoch.

Owns the rule of the switch (KIP-253). Other configurations: see ``configuration``. Pure.

| change | result at level 1.5 |
|---|---|
| false to true, the count is the initial count times a power of two | a resize epoch of its own |
| false to true, any other count | refused: records lie by the plain hash, which is another one |
| true to false | accepted; the promise of order ends, with an audit line (``audit_lines``) |
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import RequestRefusal, Write
from tidelog.controller.decisions.resize_requests import begun_again, count_of
from tidelog.model.errors import ErrorCode
from tidelog.partitioning.lineage import level_of

ORDERED = "enable.ordered.delivery"


def switched_on(
    cluster: ClusterState, name: str, before: Mapping[str, str], after: Mapping[str, str]
) -> list[Write] | RequestRefusal:
    """Return the writes with which a topic begins to keep the order of keys, or a refusal.

    No writes if the change of its configurations does not switch it on.
    """
    if not cluster.level.resizes or before.get(ORDERED) == after.get(ORDERED):
        return []
    node, history = cluster.topics.get(name), cluster.topic_histories.get(name)
    if node is None or is_ordered(cluster, name, before) or not is_ordered(cluster, name, after):
        return []
    if history is not None:
        first, count = history.initial_partition_count, count_of(node)
        below = level_of(first, count)
        if below != count:
            sentence = (
                f"The topic {name} cannot keep the order of its keys with {count} partitions: it "
                f"began with {first}, and only {first} times a power of two hashes as without "
                f"order. Resize it to {below} or {2 * below} first (CreatePartitions)."
            )
            return RequestRefusal(ErrorCode.INVALID_CONFIG, sentence)
    return begun_again(cluster, name)


def is_ordered(cluster: ClusterState, name: str, configs: Mapping[str, str]) -> bool:
    """Return whether a topic with these configurations keeps the order of keys."""
    return cluster.resolve(name, configs).configs.enable_ordered_delivery
