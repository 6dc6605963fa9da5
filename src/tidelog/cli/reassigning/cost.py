"""The cost of a plan: bytes that arrive in each log directory, free space afterwards, leaders.

Owns the forecast, without I/O. A new replica goes to the log directory with the most free bytes,
the smallest first, as brokers do it; a cordoned directory is left out. Log directories with the
same total and free bytes count as one volume. What the removal of replicas frees does not count:
they go when the copies are complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.cli.findings import readable
from tidelog.cli.reassigning.checks import is_same
from tidelog.cli.reassigning.plan_file import LogDirs
from tidelog.cli.reassigning.situation import Situation
from tidelog.client.admin.log_dirs import Replica
from tidelog.client.admin.nodes import LogDir
from tidelog.model.configs.cordoned import cordoned_among
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import named


@dataclass(slots=True)
class Volume:
    """The log directories of a broker on one volume; ``usable`` and ``total`` -1 if unknown."""

    broker: int
    paths: list[str]
    usable: int
    total: int
    arriving: int = 0
    replicas: int = 0
    holds: set[TopicPartition] = field(default_factory=set)
    is_open: bool = False
    """Whether one of the log directories gets new replicas: not all are cordoned (KIP-1066)."""

    @property
    def left(self) -> int | None:
        """The free bytes afterwards, below 0 without room; None if they are unknown."""
        return None if self.usable < 0 else self.usable - self.arriving


@dataclass(frozen=True, slots=True)
class CostOfPartition:
    """One partition of a plan: its replicas before and after, and what is still to be copied."""

    where: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int | None
    """Bytes of all its new replicas that are not there yet; None if no broker says its size."""
    leader: int
    new_leader: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan costs; ``unknown`` are targets whose free space is not known."""

    partitions: list[CostOfPartition]
    volumes: list[Volume]
    unknown: list[int]

    @property
    def copied_bytes(self) -> int:
        """The bytes that are copied, as far as sizes are known."""
        return sum(partition.size or 0 for partition in self.partitions)

    def why_no_room(self) -> str | None:
        """Return which log directories would be full and what they lack, or None."""
        lacking = [
            f"broker {volume.broker} {volume.paths[0]} lacks {readable(-left)}"
            for volume in self.volumes
            if (left := volume.left) is not None and left < 0
        ]
        return f"there is no room for the copies: {named(lacking)}" if lacking else None


def cost_of(
    targets: Mapping[TopicPartition, Sequence[int]],
    now: Situation,
    log_dirs: LogDirs | None = None,
) -> Cost:
    """Return the cost of a plan; the moves that run already need room, too."""
    volumes = _volumes(now)
    sizes, held = now.sizes(), now.held()
    wanted = {tp: tuple(move.targets) for tp, move in now.moves.items()}
    wanted |= {tp: tuple(replicas) for tp, replicas in targets.items()}
    unknown: set[int] = set()
    rows: dict[TopicPartition, CostOfPartition] = {}
    for tp in sorted(wanted, key=lambda tp: (sizes.get(tp, 0), tp)):
        partition = now.partitions[tp]
        size = 0
        for broker in wanted[tp]:
            replica = Replica(tp, broker)
            path, present = (log_dirs or {}).get(replica), now.path_of(replica)
            moves = path is not None and present is not None and not is_same(path, present)
            if broker in partition.replicas and not moves:
                continue
            # In another directory of its broker it is copied as a whole.
            has = 0 if moves else held.get((broker, tp), 0)
            rest = max(0, sizes.get(tp, 0) - has)
            size += rest
            if not _place(volumes.get(broker, []), tp, rest, path):
                unknown.add(broker)
        rows[tp] = CostOfPartition(
            tp,
            now.targets(tp),
            wanted[tp],
            size if tp in sizes else None,
            partition.leader,
            partition.leader if partition.leader in wanted[tp] else wanted[tp][0],
        )
    return Cost(
        [rows[tp] for tp in sorted(targets)],
        [one for some in volumes.values() for one in some if one.arriving or one.replicas],
        sorted(unknown),
    )


def _place(volumes: Sequence[Volume], tp: TopicPartition, size: int, path: str | None) -> bool:
    """Add a replica to the volume that would take it; return whether one is known."""
    measured = [volume for volume in volumes if volume.left is not None]
    able = (
        [volume for volume in volumes if path and any(is_same(path, x) for x in volume.paths)]
        or [volume for volume in volumes if tp in volume.holds]
        or [volume for volume in measured if volume.is_open]
        or measured
    )
    if not able:
        return False
    chosen = max(able, key=lambda volume: volume.left or 0)
    chosen.arriving += size
    chosen.replicas += 1
    return chosen.left is not None


def _volumes(now: Situation) -> dict[int, list[Volume]]:
    by_broker: dict[int, dict[tuple[int, int] | str, Volume]] = {}
    for broker, entry in now.described():
        if entry.error is not None:
            continue
        by_size = by_broker.setdefault(broker, {})
        volume = by_size.setdefault(
            _identity(entry), Volume(broker, [], entry.usable_bytes, entry.total_bytes)
        )
        volume.paths.append(entry.path)
        volume.holds.update(entry.replicas)
        cordoned = cordoned_among(now.placements.cordoned.get(broker, ()), [entry.path])
        volume.is_open = volume.is_open or not cordoned
    return {broker: list(some.values()) for broker, some in by_broker.items()}


def _identity(entry: LogDir) -> tuple[int, int] | str:
    return (entry.total_bytes, entry.usable_bytes) if entry.usable_bytes >= 0 else entry.path
