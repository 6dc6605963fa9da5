"""Selection of the replica that a consumer reads from: one in its rack (KIP-392). Pure rules.

The leader selects with each Fetch of a consumer that names its rack; a consumer that receives the
id of another broker reads there until that one refuses it. As ``RackAwareReplicaSelector`` of
Apache Kafka: the leader if it is in the rack, otherwise the replica there with the largest end
offset. The rack of a consumer may be a rack, or one machine of it (``model.racks``).

A replica can be selected only if it is in the ISR, alive, and holds the requested offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.model.racks import is_within


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live replica in the ISR, as its leader last saw it."""

    node_id: int
    rack: str | None
    start_offset: int
    end_offset: int


def closest(rack: str, offset: int, leader: Candidate, followers: Iterable[Candidate]) -> int:
    """Return the broker from which a consumer in ``rack`` reads ``offset`` on. O(replicas)."""
    if is_within(leader.rack, rack):
        return leader.node_id
    near = [
        each
        for each in followers
        if is_within(each.rack, rack) and each.start_offset <= offset <= each.end_offset
    ]
    best = max(near, key=lambda each: (each.end_offset, -each.node_id), default=leader)
    return best.node_id
