"""How long a retired partition stays for the sake of producers' open requests. Pure.

Owns when a shrink counts as published, durably, and until when its retired partitions stay. Not
what else keeps them: see ``removal``.

A producer that knows counts may have sent a batch right before the seal, and lost its response: the
leader knows the batch, and answers each further try with its first offset. Once the partition is
gone no leader can say whether the batch was written, and its producer can only give it up. Such a
batch was sent before the shrink was published, so all its tries end ``delivery.timeout.ms`` of the
producer after that: until then, ``retired.purge.delay.ms``, the partition is neither purged nor
removed. That holds for one that retention or DeleteRecords has emptied, too, and for one that never
had a record: their producers cannot tell these apart.

| the time in the topic's record | counts as |
|---|---|
| known and past | that time |
| absent: the shrink is new, or older than this rule, or restored | now, and is written |
| in the future: the clock was set back | now, and is written |
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision, Put, Write
from tidelog.controller.decisions.removal import retired_from_the_top
from tidelog.metadata import layout
from tidelog.metadata.records import TopicHistory
from tidelog.model.topics import TopicPartition


def note_retirements(
    cluster: ClusterState, names: Collection[str], now_ms: int
) -> Decision[list[str]]:
    """Write the time of each published shrink of these topics that has none; return the topics.

    The times of shrinks of which nothing is listed any more are left out by the same write.
    """
    noted: list[str] = []
    writes: list[Write] = []
    for name in names if cluster.went_back is None else ():
        history = cluster.topic_histories.get(name)
        if history is None or layout.topic_history(name) in cluster.damaged:
            continue
        if history.resize is not None and not history.resize.published:
            continue
        times = {
            epoch: now_ms if (at_ms := _time_of(history, epoch, now_ms)) is None else at_ms
            for epoch in sorted(_epochs(cluster, name).values())
        }
        if not times.items() <= history.retired_ms.items():
            changed = msgspec.structs.replace(history, retired_ms=times)
            writes.append(Put(layout.topic_history(name), changed))
            noted.append(name)
    return Decision(noted, tuple(writes), splits=True)


def open_until(cluster: ClusterState, name: str, now_ms: int, delay_ms: int) -> dict[int, int]:
    """Return the retired partitions of a topic for which a producer may have a request open, each
    with the time of day until when."""
    history = cluster.topic_histories.get(name)
    by_index = {}
    for index, epoch in _epochs(cluster, name).items():
        at_ms = None if history is None else _time_of(history, epoch, now_ms)
        until_ms = (now_ms if at_ms is None else at_ms) + delay_ms
        if until_ms > now_ms:
            by_index[index] = until_ms
    return by_index


def _time_of(history: TopicHistory, epoch: int, now_ms: int) -> int | None:
    at_ms = history.retired_ms.get(epoch)
    return None if at_ms is None or at_ms > now_ms else at_ms


def _epochs(cluster: ClusterState, name: str) -> dict[int, int]:
    """Return the resize epoch in which each listed retired partition retired."""
    return {
        index: cluster.partition_nodes[TopicPartition(name, index)].retirement_epoch
        for index in retired_from_the_top(cluster, name)
    }
