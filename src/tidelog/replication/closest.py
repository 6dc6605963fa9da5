"""From which replica a consumer reads: the one of its rack (KIP-392). Pure rules.

The leader chooses, with each Fetch of a consumer that names its rack; a consumer that is answered
another broker goes on there until that one refuses it. What ``RackAwareReplicaSelector`` of Apache
Kafka does: the leader if it is in the rack; else of the replicas there the one that holds most.

A replica can be chosen only if it is in the ISR, alive, and holds what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live replica in the ISR, as its leader last saw it."""

    node_id: int
    rack: str | None
    start_offset: int
    end_offset: int


def closest(rack: str, offset: int, leader: Candidate, followers: Iterable[Candidate]) -> int:
    """Return the broker from which a consumer in ``rack`` reads ``offset`` on. O(replicas)."""
    if leader.rack == rack:
        return leader.node_id
    near = [
        each
        for each in followers
        if each.rack == rack and each.start_offset <= offset <= each.end_offset
    ]
    best = max(near, key=lambda each: (each.end_offset, -each.node_id), default=leader)
    return best.node_id
