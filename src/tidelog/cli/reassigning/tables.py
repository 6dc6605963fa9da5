"""The tables of moves for people, and the same as JSON for scripts: costs, loads, progress.

Owns the format. Not the numbers: see ``cost``, ``progress`` and ``tidelog.planning``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.cli.findings import readable
from tidelog.cli.output import print_table, say
from tidelog.cli.reassigning.cost import Cost, CostOfPartition
from tidelog.cli.reassigning.progress import TargetProgress
from tidelog.model.wording import counted
from tidelog.planning.plan import Load

PARTITIONS_SHOWN = 100
"""The most partitions that a table for people shows; --json has all."""


def print_cost(cost: Cost) -> None:
    """Print the partitions of a plan, the room in each log directory, and the total."""
    print_table(
        ["Partition", "Replicas", "NewReplicas", "ToCopy", "Leader"],
        [
            [one.where, _ids(one.before), _ids(one.after), _size(one.size), _leader(one)]
            for one in cost.partitions[:PARTITIONS_SHOWN]
        ],
        right=["ToCopy"],
        spare=["Leader"],
        folds=["Replicas", "NewReplicas"],
    )
    hidden = len(cost.partitions) - PARTITIONS_SHOWN
    if hidden > 0:
        say(f"… and {hidden} more (--json has all)")
    if cost.volumes:
        say("")
        print_table(
            ["Broker", "LogDir", "Replicas", "ToCopy", "Free", "FreeAfterwards"],
            [
                [
                    volume.broker,
                    ",".join(volume.paths),
                    volume.replicas,
                    readable(volume.arriving),
                    _size(volume.usable if volume.usable >= 0 else None),
                    _left(volume.left),
                ]
                for volume in cost.volumes
            ],
            right=["Broker", "Replicas", "ToCopy", "Free", "FreeAfterwards"],
            folds=["LogDir"],
        )
    say("")
    leaders = sum(partition.leader != partition.new_leader for partition in cost.partitions)
    unsized = sum(partition.size is None for partition in cost.partitions)
    parts = [f"{readable(cost.copied_bytes)} to copy", f"{counted(leaders, 'leader')} to move"]
    if unsized:
        parts.append(f"the size of {counted(unsized, 'partition')} is unknown")
    say(", ".join(parts))
    for broker in cost.unknown:
        say(f"broker {broker}: its free space is unknown")


def cost_data(cost: Cost) -> dict[str, Any]:
    """Return what ``--dry-run --json`` shows; sizes in bytes, null if unknown."""
    return {
        "copied_bytes": cost.copied_bytes,
        "has_room": cost.why_no_room() is None,
        "unknown_brokers": cost.unknown,
        "partitions": [
            {
                **partition.where._asdict(),
                "replicas": list(partition.before),
                "new_replicas": list(partition.after),
                "copied_bytes": partition.size,
                "leader": None if partition.leader < 0 else partition.leader,
                "new_leader": partition.new_leader,
            }
            for partition in cost.partitions
        ],
        "log_dirs": [
            {
                "broker": volume.broker,
                "log_dirs": volume.paths,
                "replicas": volume.replicas,
                "copied_bytes": volume.arriving,
                "free_bytes": volume.usable if volume.usable >= 0 else None,
                "free_bytes_afterwards": volume.left,
            }
            for volume in cost.volumes
        ],
    }


def print_copies(copies: Sequence[TargetProgress]) -> None:
    """Print one row for each copy under way."""
    print_table(COPIES, copy_rows(copies), right=COPIES_RIGHT, spare=["Rate"], folds=["WaitsFor"])


COPIES = ["Partition", "Target", "Copied", "Of", "Rate", "Left", "WaitsFor"]
COPIES_RIGHT = ["Target", "Copied", "Of", "Rate", "Left"]


def copy_rows(copies: Sequence[TargetProgress]) -> list[list[Any]]:
    """Return the cells of the copies."""
    return [
        [
            copy.where,
            copy.broker,
            _size(copy.copied),
            _size(copy.total),
            None if copy.rate is None else f"{readable(int(copy.rate))}/s",
            _duration(copy.left_s),
            copy.waits_for,
        ]
        for copy in copies
    ]


def copy_data(copy: TargetProgress) -> dict[str, Any]:
    """Return what ``--watch --json`` shows of one copy."""
    return {
        **copy.where._asdict(),
        "target": copy.broker,
        "copied_bytes": copy.copied,
        "total_bytes": copy.total,
        "bytes_per_second": None if copy.rate is None else round(copy.rate),
        "seconds_left": None if copy.left_s is None else round(copy.left_s, 1),
        "waits_for": copy.waits_for or None,
    }


def print_loads(
    before: Mapping[int, Load], after: Mapping[int, Load], racks: Mapping[int, str | None]
) -> None:
    """Print what each broker has before and after a plan."""
    print_table(
        ["Broker", "Rack", "Leaders", "Replicas", "Bytes"],
        [
            [
                broker,
                racks.get(broker),
                _step(before[broker].leaders, after[broker].leaders),
                _step(before[broker].replicas, after[broker].replicas),
                _step(readable(before[broker].size), readable(after[broker].size)),
            ]
            for broker in before
        ],
        right=["Broker", "Leaders", "Replicas", "Bytes"],
    )


def _step(before: object, after: object) -> str:
    return f"{before}" if before == after else f"{before} → {after}"


def _size(size: int | None) -> str | None:
    return None if size is None else readable(size)


def _left(left: int | None) -> str | None:
    if left is None:
        return None
    return readable(left) if left >= 0 else f"lacks {readable(-left)}"


def _leader(cost: CostOfPartition) -> str:
    now = "none" if cost.leader < 0 else str(cost.leader)
    return now if cost.leader == cost.new_leader else f"{now} → {cost.new_leader}"


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))
