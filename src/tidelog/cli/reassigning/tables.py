"""The tables of moves for people, and the same as JSON for scripts: costs, loads, progress.

Owns the format. Not the numbers: see ``cost``, ``progress`` and ``tidelog.planning``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.cli.findings import counted, readable
from tidelog.cli.output import print_table, say
from tidelog.cli.reassigning.cost import Cost, CostOfPartition
from tidelog.cli.reassigning.progress import TargetProgress
from tidelog.planning.plan import Load

PARTITIONS_SHOWN = 100
"""The most partitions that a table for people shows; --json has all."""


def print_cost(cost: Cost) -> None:
    """Print the partitions of a plan, the room in each log directory, and the total."""
    print_table(
        ["Partition", "Replicas", "NewReplicas", "ToCopy", "Leader"],
        [
            [each.where, _ids(each.before), _ids(each.after), _size(each.size), _leader(each)]
            for each in cost.partitions[:PARTITIONS_SHOWN]
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
                    each.broker,
                    ",".join(each.paths),
                    each.replicas,
                    readable(each.arriving),
                    _size(each.usable if each.usable >= 0 else None),
                    _left(each.left),
                ]
                for each in cost.volumes
            ],
            right=["Broker", "Replicas", "ToCopy", "Free", "FreeAfterwards"],
            folds=["LogDir"],
        )
    say("")
    leaders = sum(each.leader != each.new_leader for each in cost.partitions)
    unsized = sum(each.size is None for each in cost.partitions)
    said = [f"{readable(cost.copied_bytes)} to copy", f"{counted(leaders, 'leader')} to move"]
    if unsized:
        said.append(f"the size of {counted(unsized, 'partition')} is unknown")
    say(", ".join(said))
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
                **each.where._asdict(),
                "replicas": list(each.before),
                "new_replicas": list(each.after),
                "copied_bytes": each.size,
                "leader": None if each.leader < 0 else each.leader,
                "new_leader": each.new_leader,
            }
            for each in cost.partitions
        ],
        "log_dirs": [
            {
                "broker": each.broker,
                "log_dirs": each.paths,
                "replicas": each.replicas,
                "copied_bytes": each.arriving,
                "free_bytes": each.usable if each.usable >= 0 else None,
                "free_bytes_afterwards": each.left,
            }
            for each in cost.volumes
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
            each.where,
            each.broker,
            _size(each.copied),
            _size(each.total),
            None if each.rate is None else f"{readable(int(each.rate))}/s",
            _duration(each.left_s),
            each.waits_for,
        ]
        for each in copies
    ]


def copy_data(each: TargetProgress) -> dict[str, Any]:
    """Return what ``--watch --json`` shows of one copy."""
    return {
        **each.where._asdict(),
        "target": each.broker,
        "copied_bytes": each.copied,
        "total_bytes": each.total,
        "bytes_per_second": None if each.rate is None else round(each.rate),
        "seconds_left": None if each.left_s is None else round(each.left_s, 1),
        "waits_for": each.waits_for or None,
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


def _leader(each: CostOfPartition) -> str:
    now = "none" if each.leader < 0 else str(each.leader)
    return now if each.leader == each.new_leader else f"{now} → {each.new_leader}"


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
