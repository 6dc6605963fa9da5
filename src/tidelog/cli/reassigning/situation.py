"""The state of a cluster that commands for moves read: brokers, replicas, running moves, log
directories.

Owns the reading. A broker that does not respond leaves a gap, and never blocks a command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tidelog.cli.many_requests import PATIENCE_S, ask_each
from tidelog.client.admin.log_dirs import Replica
from tidelog.client.admin.nodes import (
    LogDir,
    Placements,
    describe_log_dirs,
    describe_placements,
)
from tidelog.client.admin.reassignments import Reassignment, list_reassignments
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.metadata import Partition
from tidelog.model.topics import TopicPartition
from tidelog.planning.plan import Assigned

NOTHING_KNOWN = Placements.of(None)

Dirs = Mapping[int, list[LogDir] | ClientError]
"""The log directories of each live broker, or why they are unknown."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Live brokers with their racks, partitions, running moves, log directories, cordons."""

    racks: Mapping[int, str | None]
    partitions: Mapping[TopicPartition, Partition]
    moves: Mapping[TopicPartition, Reassignment]
    dirs: Dirs = field(default_factory=dict)
    placements: Placements = NOTHING_KNOWN

    def targets(self, where: TopicPartition) -> tuple[int, ...]:
        """Return the replicas of a partition once its move, if any, is done."""
        move = self.moves.get(where)
        return self.partitions[where].replicas if move is None else move.targets

    def has(self, where: TopicPartition, replicas: Iterable[int]) -> bool:
        """Return whether a partition has just these replicas, in this order."""
        known = self.partitions.get(where)
        return known is not None and known.replicas == tuple(replicas)

    def original(self, where: TopicPartition) -> tuple[int, ...]:
        """Return the replicas before the first change of a move that runs or was cancelled.

        Of a controller that does not say them: those of a running move, as API 46 implies them.
        """
        known = self.placements.originals.get(where)
        if known is not None:
            return known
        move, replicas = self.moves.get(where), self.partitions[where].replicas
        return replicas if move is None else move.original(replicas)

    def changed(self) -> list[TopicPartition]:
        """Return the partitions that move or whose cancelled move has left other replicas."""
        left = self.partitions.keys() & self.placements.originals.keys()
        return sorted(
            where
            for where in {*self.moves, *left}
            if where in self.moves or self.original(where) != self.partitions[where].replicas
        )

    def known_brokers(self) -> set[int]:
        """Return the brokers that are alive or in any assignment. O(replicas)."""
        found = set(self.racks)
        for where, partition in self.partitions.items():
            found.update(partition.replicas, self.targets(where))
        found.update(*self.placements.originals.values())
        return found

    def on_dead_brokers(self) -> list[TopicPartition]:
        """Return the partitions with a replica on a dead broker, for which a move would wait."""
        return sorted(
            where for where in self.partitions if not self.racks.keys() >= set(self.targets(where))
        )

    def held(self) -> dict[tuple[int, TopicPartition], int]:
        """Return the bytes of each replica that a log directory has, by broker and partition."""
        return {
            (broker, where): size
            for broker, entry in self.described()
            for where, size in entry.replicas.items()
        }

    def path_of(self, replica: Replica) -> str | None:
        """Return the log directory of a replica; None if no broker says it."""
        found = self._entries_with(replica)
        return next((entry.path for entry in found if replica.where in entry.replicas), None)

    def future_path_of(self, replica: Replica) -> str | None:
        """Return the log directory to which a replica is being moved on its broker, if it is."""
        found = self._entries_with(replica)
        return next((entry.path for entry in found if replica.where in entry.futures), None)

    def _entries_with(self, replica: Replica) -> list[LogDir]:
        entries = self.dirs.get(replica.broker, ())
        return [] if isinstance(entries, ClientError) else list(entries)

    def sizes(self) -> dict[TopicPartition, int]:
        """Return the bytes of a whole replica, the leader's; without it those of the largest."""
        held = self.held()
        found: dict[TopicPartition, int] = {}
        for (_, where), size in held.items():
            found[where] = max(size, found.get(where, 0))
        for where, partition in self.partitions.items():
            if (partition.leader, where) in held:
                found[where] = held[partition.leader, where]
        return found

    def assigned(self) -> list[Assigned]:
        """Return the partitions as a plan is made for them: as if their moves were done."""
        sizes = self.sizes()
        return [
            Assigned(where, self.targets(where), sizes.get(where, 0))
            for where in sorted(self.partitions)
        ]

    def described(self) -> Iterator[tuple[int, LogDir]]:
        """Yield each log directory that its broker describes, with the broker."""
        for broker, entries in sorted(self.dirs.items()):
            if not isinstance(entries, ClientError):
                yield from ((broker, entry) for entry in entries)

    def diskless(self) -> set[int]:
        """Return the brokers that describe log directories, every one of them failed."""
        return {
            broker
            for broker, entries in self.dirs.items()
            if not isinstance(entries, ClientError)
            and entries
            and all(entry.error is not None for entry in entries)
        }

    def silent(self) -> dict[int, ClientError]:
        """Return the brokers whose log directories are unknown, with the reason."""
        return {
            broker: entries
            for broker, entries in sorted(self.dirs.items())
            if isinstance(entries, ClientError)
        }


async def check(
    cluster: Cluster,
    *,
    dirs: bool = False,
    placements: bool = False,
    timeout_ms: int = int(PATIENCE_S * 1000),
) -> Situation:
    """Read the state of all topics; with ``dirs`` the log directories of all live brokers, too.

    ``timeout_ms``: how long the controller may take; longer where moves are watched, so that a new
    one may take over meanwhile.
    With ``placements`` also what only the controller knows of them: it walks over all partitions.
    """
    known = await describe_placements(cluster) if placements else NOTHING_KNOWN
    # The moves first: one that ends meanwhile has its new replicas in the metadata then.
    moves = await list_reassignments(cluster, timeout_ms=timeout_ms)
    view = await cluster.all_topics()
    racks = {node_id: broker.rack for node_id, broker in sorted(view.brokers.items())}
    partitions = {
        TopicPartition(name, index): partition
        for name, topic in view.topics.items()
        if not topic.error
        for index, partition in topic.partitions.items()
    }
    kept = {where: move for where, move in moves.items() if where in partitions}
    found = await log_dirs(cluster, racks) if dirs else {}
    return Situation(racks, partitions, kept, found, known)


async def log_dirs(
    cluster: Cluster, brokers: Iterable[int]
) -> dict[int, list[LogDir] | ClientError]:
    """Return the log directories of some brokers; one that is silent yields its error."""
    nodes = list(brokers)
    found = await ask_each(nodes, lambda node_id: describe_log_dirs(cluster, node_id), "broker")
    return dict(zip(nodes, found, strict=True))
