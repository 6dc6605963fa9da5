"""What ``tidelog topics --describe`` shows of moves: targets, the replicas before, the progress.

Owns the three facts of each partition. A server without ListPartitionReassignments shows none.
"""

from __future__ import annotations

from typing import Any

from tidelog.cli.many_requests import in_time
from tidelog.cli.output import note
from tidelog.cli.reassigning.progress import Samples
from tidelog.cli.reassigning.situation import NOTHING_KNOWN, Situation, log_dirs
from tidelog.client.admin.nodes import Placements
from tidelog.client.admin.reassignments import list_reassignments
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, VersionUnsupported
from tidelog.client.metadata import Partition
from tidelog.model.topics import TopicPartition

COLUMNS = {
    "TargetReplicas": "target_replicas",
    "OriginalReplicas": "original_replicas",
    "Copied": "copied_share",
}
"""The columns, which are there only while a partition of the topic moves, or until a cancelled
move is moved back."""


async def add_moves(
    cluster: Cluster,
    shown: list[dict[str, Any]],
    placements: Placements = NOTHING_KNOWN,
    *,
    responds: bool = True,
) -> None:
    """Add the move of each described partition to it, null where it does not move, and count the
    replicas of each topic without the targets of moves.

    After a cancellation the replicas before the move stay, without targets, while they differ from
    the replicas. ``copied_share`` is the part of the bytes, from 0 to 1, that all targets together
    have; null if no broker says it. Without a controller that ``responds`` no move is asked for.
    """
    _add_originals(shown, placements)
    if responds:
        await _add_moves(cluster, shown, placements)
    for topic in shown:
        counts = (wanted_count(item) for item in topic["partitions"])
        topic["replication_factor"] = max(counts, default=0)


def _add_originals(shown: list[dict[str, Any]], placements: Placements) -> None:
    for topic in shown:
        for item in topic["partitions"]:
            item |= dict.fromkeys(COLUMNS.values())
            before = placements.originals.get(TopicPartition(topic["topic"], item["partition"]))
            if before is not None and list(before) != item["replicas"]:
                item["original_replicas"] = list(before)


async def _add_moves(cluster: Cluster, shown: list[dict[str, Any]], placements: Placements) -> None:
    # Not as long as for an answer that is needed: the rest of the description needs none.
    moves = await in_time(list_reassignments(cluster), "the controller")
    if isinstance(moves, VersionUnsupported):
        return
    if isinstance(moves, ClientError):
        note(f"moves are not shown, the controller does not respond: {moves}")
        return
    items = {
        tp: item
        for topic in shown
        for item in topic["partitions"]
        if (tp := TopicPartition(topic["topic"], item["partition"])) in moves
    }
    if not items:
        return
    moving = {tp: moves[tp] for tp in items}
    partitions = {tp: _partition(item) for tp, item in items.items()}
    brokers = {broker for move in moving.values() for broker in move.replicas}
    racks = {node: cluster.view.brokers[node].rack for node in cluster.view.brokers}
    dirs = await log_dirs(cluster, sorted(brokers & racks.keys()))
    now = Situation(racks, partitions, moving, dirs, placements)
    for tp, item in items.items():
        item["target_replicas"] = list(now.targets(tp))
        item["original_replicas"] = list(now.original(tp))
    for tp, share in shares(now).items():
        items[tp]["copied_share"] = share


def shares(now: Situation) -> dict[TopicPartition, float]:
    """Return which part of its bytes the targets of each move have, all of it if none is copied."""
    copied, total = dict.fromkeys(now.moves, 0), dict.fromkeys(now.moves, 0)
    unknown: set[TopicPartition] = set()
    for copy in Samples().copies(now, 0.0):
        if copy.total is None:
            unknown.add(copy.where)
            continue
        total[copy.where] += copy.total
        copied[copy.where] += min(copy.total, copy.copied or 0)
    return {
        tp: round(copied[tp] / total[tp], 3) if total[tp] else 1.0
        for tp in now.moves
        if tp not in unknown
    }


def cells(item: dict[str, Any]) -> list[str | None]:
    """Return the three cells of a partition."""
    share = item["copied_share"]
    return [
        _ids(item["target_replicas"]),
        _ids(item["original_replicas"]),
        None if share is None else f"{share:.0%}",
    ]


def wanted_count(item: dict[str, Any]) -> int:
    """Return how many replicas a described partition has without the targets of its move.

    Under-replication is counted by it, never by a set that grows (KIP-455).
    """
    return len(item["original_replicas"] or item["replicas"])


def _ids(replicas: list[int] | None) -> str | None:
    return None if replicas is None else ",".join(map(str, replicas))


def _partition(item: dict[str, Any]) -> Partition:
    leader = -1 if item["leader"] is None else item["leader"]
    return Partition(
        item["partition"],
        leader,
        item["leader_epoch"],
        tuple(item["replicas"]),
        tuple(item["isr"]),
        tuple(item["offline"]),
    )
