"""Directories of replicas that were moved away, deleted or stale: none may be left over at rest.

Owns what is judged: each directory of a partition on each broker's disk, and which ones stay by
design. A quarantined directory (``-stray``) is removed after a delay by the life that quarantined
it; one whose broker was started again meanwhile stays for an operator, and so does a damaged
replica that left its broker before it was rebuilt, and one whose power loss took the file with its
topic's id, or a bit of it (decision 0085, docs/operating/recover.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.cluster.disks import DiskWatch
from tests.simulation.cluster.journal import StateWatch
from tests.simulation.cluster.nodes import LOGS, BrokerNode, Cluster
from tests.simulation.kernel.inodes import DirectoryNode
from tidelog.model.topics import TopicPartition
from tidelog.storage.names import DELETE_DIRECTORY, STRAY_DIRECTORY, parse_directory


class Stray(NamedTuple):
    """What is known of a quarantine: the life that made it, whether for damage, and whether the
    replica had its topic's id."""

    life: int
    is_damaged: bool
    has_id: bool


class Leftovers:
    """Follows quarantines while a run goes on; ``left`` is what stands and should not."""

    def __init__(self, cluster: Cluster, states: StateWatch, disks: DiskWatch) -> None:
        self._cluster = cluster
        self._states = states
        self._strays: dict[tuple[str, str], Stray] = {}
        disks.when_stray = self._quarantined

    def _quarantined(self, node: BrokerNode, name: str, is_damaged: bool, has_id: bool) -> None:
        self._strays[node.host, name] = Stray(node.starts, is_damaged, has_id)

    def left(self) -> list[str]:
        """Return a sentence for each directory that is left over now."""
        return [
            f"{node.host} has {name}"
            for node, name, where, ending in self._directories()
            if self._is_left(node, name, where, ending)
        ]

    def kept(self) -> int:
        """Return how many quarantined directories stay by design."""
        return sum(
            ending == STRAY_DIRECTORY and not self._is_left(node, name, where, ending)
            for node, name, where, ending in self._directories()
        )

    def _directories(self) -> Iterator[tuple[BrokerNode, str, TopicPartition, str]]:
        for node in self._cluster.brokers:
            folder = node.machine.disk.lookup(LOGS)
            for name in sorted(folder.entries) if isinstance(folder, DirectoryNode) else ():
                found = parse_directory(name)
                if found is not None:
                    yield node, name, found.partition, found.ending

    def _is_left(self, node: BrokerNode, name: str, where: TopicPartition, ending: str) -> bool:
        hosts = self._hosts(where)
        if ending == STRAY_DIRECTORY:
            stray = self._strays.get((node.host, name))
            if stray is None or stray.life != node.starts or not stray.has_id:
                return False
            return not stray.is_damaged or node.node_id in hosts
        return ending == DELETE_DIRECTORY or node.node_id not in hosts

    def _hosts(self, where: TopicPartition) -> set[int]:
        """Return the replicas and the targets of a partition, by the store."""
        place = self._states.place(where.topic, where.partition)
        if place is None:
            return set()
        replicas = self._states.topics[where.topic].partitions[where.partition]
        known = self._states.places.get(place)
        return {*replicas, *((known.state.target_replicas if known else None) or ())}
