"""What ``tidelog topics --describe`` shows of unclean elections (KIP-704).

Owns these facts of a partition. Not the command that accepts losses: see ``doctor_unclean``.
"""

from __future__ import annotations

from typing import Any

from tidelog.cli.output import say
from tidelog.client.admin.nodes import UNCLEAN


def add_unclean(condition: dict[str, Any] | None, shown: list[dict[str, Any]]) -> None:
    """Add the effect of unclean elections to each partition; None when unknown.

    ``unclean``: its leader was elected uncleanly, or the loss is not handled yet. ``lost_offsets``:
    how many committed offsets were lost.
    """
    elections = None if condition is None else condition.get(UNCLEAN)
    by_partition: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for election in elections or ():
        by_partition.setdefault((election["topic"], election["partition"]), []).append(election)
    for topic_shown in shown:
        for item in topic_shown["partitions"]:
            its_own = by_partition.get((topic_shown["topic"], item["partition"]), [])
            is_known = elections is not None
            item["unclean"] = any(not x["handled"] for x in its_own) if is_known else None
            item["lost_offsets"] = sum(x["lost_offsets"] for x in its_own) if is_known else None


def print_unclean(partitions: list[dict[str, Any]]) -> None:
    """Print a line for each partition that lost offsets, or whose election was unclean."""
    for item in partitions:
        notes = ["its leader was elected uncleanly, or its loss is not handled yet"] * bool(
            item["unclean"]
        )
        if item["lost_offsets"]:
            notes.append(f"{item['lost_offsets']} committed offsets were lost")
        if notes:
            index = item["partition"]
            say(f"Unclean: partition {index}: {'; '.join(notes)} (see tidelog doctor unclean)")
