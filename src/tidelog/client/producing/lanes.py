"""Lanes: the connections of a producer to one broker, and which partitions share one.

Owns when a broker's partitions are divided, and by what. Not the connections and requests: see
``delivery``; not when a request is late: see ``flights``.

A response to Produce with acks=all has all partitions of its request, and responses arrive in the
order of requests. So one follower that is stopped holds up, until it has left the ISR, every
partition of every leader that it follows in one partition. As long as responses arrive in time
there is one lane, 0. When one is late, and the broker greets on another connection, it waits for
replicas: its partitions are divided by theirs, for a while, each part with a lane of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.metadata import ClusterMetadata
from tidelog.model.topics import TopicPartition

LATE_S = 0.4
"""A response that takes longer divides the partitions of a broker, unless all are on the same
brokers."""

DIVIDED_S = 10.0
"""How long they stay divided after the last response that was late."""

MOST_LANES = 8
"""Lanes of one broker beside lane 0; more parts share them."""

PURPOSE = "produce"


class Lane(NamedTuple):
    """One of the connections to a broker."""

    node_id: int
    number: int = 0

    @property
    def purpose(self) -> str:
        """The purpose of the connection."""
        return f"{PURPOSE} {self.number}" if self.number else PURPOSE


NOWHERE = Lane(-1)


@dataclass(slots=True)
class Lanes:
    """The brokers whose partitions are divided, and their lanes."""

    _divided: dict[int, float] = field(default_factory=dict)
    _parts: dict[int, dict[frozenset[int], int]] = field(default_factory=dict)

    def of(self, node_id: int, partition: TopicPartition, view: ClusterMetadata) -> Lane:
        """Return where batches of a partition go, which this broker leads."""
        if node_id not in self._divided:
            return Lane(node_id)
        parts = self._parts.setdefault(node_id, {})
        lane = parts.setdefault(replicas_of(partition, view), len(parts) % MOST_LANES + 1)
        return Lane(node_id, lane)

    def divide(self, node_id: int, now: float) -> None:
        """Divide the partitions of a broker from now on, or for longer."""
        self._divided[node_id] = now + DIVIDED_S

    def is_divided(self, node_id: int) -> bool:
        """Whether the partitions of a broker are divided."""
        return node_id in self._divided

    def join(self, now: float) -> None:
        """Divide no longer what was in time for so long."""
        for node_id in [node for node, until in self._divided.items() if until <= now]:
            del self._divided[node_id]
            self._parts.pop(node_id, None)


def replicas_of(partition: TopicPartition, view: ClusterMetadata) -> frozenset[int]:
    """Return the brokers that a response about a partition may wait for."""
    state = view.partition(partition)
    return frozenset() if state is None else frozenset(state.replicas)


def is_mixed(partitions: Iterable[TopicPartition], view: ClusterMetadata) -> bool:
    """Whether these partitions are not all on the same brokers."""
    return len({replicas_of(partition, view) for partition in partitions}) > 1
