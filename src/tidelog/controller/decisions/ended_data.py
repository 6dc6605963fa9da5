"""What ended in a store since it was accepted as a restored one: proof that replicas are stale.

Owns the memory of deletions and of what operators gave up, in ``/tidelog/ended_data``, and whether
a store was ever accepted. Which replicas count as stale: see ``late_replicas``.
Source: docs/decisions/0103.

An acceptance raises the controller epoch by a million, so the epoch alone shows that there was one:
a node that is missing, damaged or too old to know a topic keeps a replica, and removes none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from tidelog.controller.decisions.cluster import NO_ID, ClusterState
from tidelog.controller.decisions.decision import Put
from tidelog.metadata import layout
from tidelog.metadata.records import EndedData

JUMP = 1_000_000
"""The jump of epochs and counters in an acceptance: more than a broker that is away can have seen
beyond the others, and 2,000 acceptances fit into the 31 bits of an epoch."""

MOST_ENDED = 4_000
"""Topics that the node remembers, some 100 kB; the oldest are forgotten first."""


def was_accepted(cluster: ClusterState) -> bool:
    """Return whether this store was ever accepted as a restored one."""
    return cluster.controller_epoch >= JUMP and cluster.went_back is None


def has_ended(cluster: ClusterState, topic_id: UUID, partition: int, broker: int) -> bool:
    """Return whether a decision since the acceptance ended a replica, or all of its topic."""
    places = cluster.past.ended.topics.get(layout.id_text(topic_id))
    return places is not None and (not places or (partition, broker) in places)


def remembered(
    cluster: ClusterState,
    topics: Collection[UUID],
    replicas: Mapping[UUID, Iterable[tuple[int, int]]] | None = None,
) -> list[Put]:
    """Return the write that remembers whole topics, and single replicas, as ended; or none."""
    ended = dict(cluster.past.ended.topics)
    for topic_id, places in (replicas or {}).items():
        text = layout.id_text(topic_id)
        all_places = sorted({*ended.get(text, ()), *places})
        if all_places and ended.get(text) != []:
            ended[text] = all_places
    for topic_id in topics:
        if topic_id != NO_ID:
            ended.pop(layout.id_text(topic_id), None)
            ended[layout.id_text(topic_id)] = []
    kept = dict(list(ended.items())[-MOST_ENDED:])
    return [] if kept == cluster.past.ended.topics else [Put(layout.ENDED_DATA, EndedData(kept))]
