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

    def targets(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return the replicas of a partition once its move, if any, is done."""
        move = self.moves.get(tp)
        return self.partitions[tp].replicas if move is None else move.targets

    def has(self, tp: TopicPartition, replicas: Iterable[int]) -> bool:
        """Return whether a partition has just these replicas, in this order."""
        listed = self.partitions.get(tp)
        return listed is not None and listed.replicas == tuple(replicas)

    def original(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return the replicas before the first change of a move that runs or was cancelled.

        Of a controller that does not say them: those of a running move, as API 46 implies them.
        """
        original = self.placements.originals.get(tp)
        if original is not None:
            return original
        move, replicas = self.moves.get(tp), self.partitions[tp].replicas
        return replicas if move is None else move.original(replicas)

    def changed(self) -> list[TopicPartition]:
        """Return the partitions that move or whose cancelled move has left other replicas."""
        left = self.partitions.keys() & self.placements.originals.keys()
        return sorted(
            tp
            for tp in {*self.moves, *left}
            if tp in self.moves or self.original(tp) != self.partitions[tp].replicas
        )

    def known_brokers(self) -> set[int]:
        """Return the brokers that are alive or in any assignment. O(replicas)."""
        brokers = set(self.racks)
        for tp, partition in self.partitions.items():
            brokers.update(partition.replicas, self.targets(tp))
        brokers.update(*self.placements.originals.values())
        return brokers

    def on_dead_brokers(self) -> list[TopicPartition]:
        """Return the partitions with a replica on a dead broker, for which a move would wait."""
        return sorted(
            tp for tp in self.partitions if not self.racks.keys() >= set(self.targets(tp))
        )

    def held(self) -> dict[tuple[int, TopicPartition], int]:
        """Return the bytes of each replica that a log directory has, by broker and partition."""
        return {
            (broker, tp): size
            for broker, entry in self.described()
            for tp, size in entry.replicas.items()
        }

    def path_of(self, replica: Replica) -> str | None:
        """Return the log directory of a replica; None if no broker says it."""
        entries = self._entries_with(replica)
        return next((entry.path for entry in entries if replica.where in entry.replicas), None)

    def future_path_of(self, replica: Replica) -> str | None:
        """Return the log directory to which a replica is being moved on its broker, if it is."""
        entries = self._entries_with(replica)
        return next((entry.path for entry in entries if replica.where in entry.futures), None)

    def _entries_with(self, replica: Replica) -> list[LogDir]:
        entries = self.dirs.get(replica.broker, ())
        return [] if isinstance(entries, ClientError) else list(entries)

    def sizes(self) -> dict[TopicPartition, int]:
        """Return the bytes of a whole replica, the leader's; without it those of the largest."""
        held = self.held()
        sizes: dict[TopicPartition, int] = {}
        for (_, tp), size in held.items():
            sizes[tp] = max(size, sizes.get(tp, 0))
        for tp, partition in self.partitions.items():
            if (partition.leader, tp) in held:
                sizes[tp] = held[partition.leader, tp]
        return sizes

    def assigned(self) -> list[Assigned]:
        """Return the partitions as a plan is made for them: as if their moves were done."""
        sizes = self.sizes()
        return [Assigned(tp, self.targets(tp), sizes.get(tp, 0)) for tp in sorted(self.partitions)]

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
    placed = await describe_placements(cluster) if placements else NOTHING_KNOWN
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
    kept = {tp: move for tp, move in moves.items() if tp in partitions}
    by_broker = await log_dirs(cluster, racks) if dirs else {}
    return Situation(racks, partitions, kept, by_broker, placed)


async def log_dirs(
    cluster: Cluster, brokers: Iterable[int]
) -> dict[int, list[LogDir] | ClientError]:
    """Return the log directories of some brokers; one that is silent yields its error."""
    nodes = list(brokers)
    answers = await ask_each(nodes, lambda node_id: describe_log_dirs(cluster, node_id), "broker")
    return dict(zip(nodes, answers, strict=True))
