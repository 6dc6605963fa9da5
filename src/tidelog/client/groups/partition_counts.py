"""How many partitions the topics of a group have: what its leader assigns, and checks later.

Owns how long newer metadata are waited for. Not what a change of the counts leads to: see
``group_member``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from tidelog.client.cluster import Cluster
from tidelog.client.groups.assignors import PartitionCounts

COUNTED_WITHIN_S = 0.3
"""How long a group's leader waits for newer partition counts while all members wait for it: brokers
hold metadata back that would name a lost leader (decision 0013), and counts need none. What it does
not learn now the next check of the counts finds."""


async def count_partitions(
    cluster: Cluster, topics: Iterable[str], within_s: float | None = None
) -> dict[str, PartitionCounts]:
    """Return the partition counts of these topics; 0 for one that does not exist.

    After ``within_s`` the counts that are known serve, where all are.
    """
    names = sorted(topics)
    described = cluster.view
    sound = {name for name, topic in described.topics.items() if not topic.error}
    is_known = sound.issuperset(names)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s if is_known else None):
            described = await cluster.describe(names)
    counts = {}
    for name in names:
        # The view and not the answer: a stale broker does not take it back.
        topic = cluster.view.topics.get(name) if name in described.topics else None
        if topic is None or topic.error:
            counts[name] = PartitionCounts()
        else:
            counts[name] = PartitionCounts(topic.count, len(topic.partitions))
    return counts
