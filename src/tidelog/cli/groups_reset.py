"""The reset of group offsets (``tidelog groups --reset-offsets``): a dry run, or ``--execute``.

Owns its options and the requests. Not the new offsets: see ``reset_plan``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tidelog.cli.connecting import EXISTING_FILE, exactly_one_of, text_of
from tidelog.cli.output import note, print_json, print_table, say
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.cli.reset_plan import (
    Goal,
    OffsetFacts,
    new_offset,
    parse_datetime_ms,
    parse_duration_ms,
    parse_file,
    parse_topic,
    write_file,
)
from tidelog.client.admin import groups as admin
from tidelog.client.cluster import Cluster
from tidelog.client.groups.committed_offsets import Position, commit_offsets, committed_offsets
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets
from tidelog.model.topics import TopicPartition

Function = TypeVar("Function", bound=Callable[..., Any])

_INACTIVE = frozenset({"Empty", "Dead"})


def options(function: Function) -> Function:
    """Add the flags of ``--reset-offsets`` to the command."""
    for option in reversed(
        [
            click.option("--to-earliest", is_flag=True, help="Reset to the start of the logs."),
            click.option("--to-latest", is_flag=True, help="Reset to the end of the logs."),
            click.option(
                "--to-current", is_flag=True, help="Reset to the group's committed offsets."
            ),
            click.option("--to-offset", type=int, help="Reset to this offset."),
            click.option(
                "--shift-by", type=int, help="Move by this many records; may be negative."
            ),
            click.option("--by-duration", metavar="PnDTnHnMnS", help="Reset to this long ago."),
            click.option(
                "--to-datetime", metavar="YYYY-MM-DDTHH:MM:SS.sss", help="Reset to this time."
            ),
            click.option(
                "--from-file",
                type=EXISTING_FILE,
                help="Reset to the offsets in a file: topic,partition,offset.",
            ),
            click.option(
                "--dry-run", is_flag=True, help="Only print the new offsets (the default)."
            ),
            click.option("--execute", is_flag=True, help="Commit the new offsets."),
            click.option(
                "--export", is_flag=True, help="Print the new offsets in the format of --from-file."
            ),
        ]
    ):
        function = option(function)
    return function


def check(flags: dict[str, Any]) -> None:
    """Check the options before any request, and read the file. Raises WrongUsage."""
    goal_of(flags)
    if flags["execute"] and flags["dry_run"]:
        raise WrongUsage("give --execute or --dry-run, not both")
    if flags["export"] and flags["as_json"]:
        raise WrongUsage("--export prints a file for --from-file: leave --json out")
    if not flags["from_file"] and not flags["topic"] and not flags["all_topics"]:
        raise WrongUsage("--reset-offsets needs --topic, --all-topics or --from-file")
    if flags["topic"] and flags["all_topics"]:
        raise WrongUsage("give --topic or --all-topics, not both")
    if flags["from_file"]:
        # Read once: it may be a pipe.
        flags["from_file_text"] = text_of(flags["from_file"])
        if not flags["all_groups"]:
            parse_file(flags["from_file_text"], list(flags["group"]))


def goal_of(flags: dict[str, Any]) -> tuple[Goal, int]:
    """Return the goal and its number (an offset, a distance, a time in ms). Raises WrongUsage."""
    chosen = exactly_one_of(
        flags,
        *("--to-earliest", "--to-latest", "--to-current", "--to-offset", "--shift-by"),
        *("--by-duration", "--to-datetime", "--from-file"),
    )
    if chosen == "--by-duration":
        # On the wire negative times have a meaning: -1 is the end, -2 the start.
        return Goal.TIME, max(0, int(time.time() * 1000) - parse_duration_ms(flags["by_duration"]))
    if chosen == "--to-datetime":
        return Goal.TIME, max(0, parse_datetime_ms(flags["to_datetime"]))
    if chosen == "--to-offset":
        return Goal.OFFSET, flags["to_offset"]
    if chosen == "--shift-by":
        return Goal.SHIFT, flags["shift_by"]
    return Goal(chosen), 0


async def work(cluster: Cluster, flags: dict[str, Any]) -> int:
    """Plan the reset of each group, show it, and commit it with ``--execute``."""
    goal, number = goal_of(flags)
    groups = list(flags["group"])
    wanted: dict[str, dict[TopicPartition, int]] = {}
    if goal is Goal.FILE:
        wanted = parse_file(flags["from_file_text"], groups)
    plan: dict[str, dict[TopicPartition, int]] = {}
    for group in groups:
        state = (await admin.describe_group(cluster, group)).state
        if state not in _INACTIVE:
            # A member would go on where it is, and commit over the new offsets.
            raise Failed(
                f"group {group!r} has members (its state is {state}): stop its consumers first"
            )
        committed = await committed_offsets(cluster, group)
        positions = {tp: position.offset for tp, position in committed.items()}
        if goal is Goal.FILE:
            partitions = sorted(wanted.get(group, {}))
        else:
            partitions = await _partitions(cluster, flags, positions)
        plan[group] = await _plan(
            cluster, goal, number, partitions, positions, wanted.get(group, {})
        )
    if flags["execute"]:
        for group, positions in plan.items():
            if positions:
                await commit_offsets(
                    cluster, group, {tp: Position(offset) for tp, offset in positions.items()}
                )
    _print(plan, flags)
    return 0


async def _partitions(
    cluster: Cluster, flags: dict[str, Any], committed: dict[TopicPartition, int]
) -> list[TopicPartition]:
    if flags["all_topics"]:
        return sorted(committed)
    partitions = []
    for text in flags["topic"]:
        name, indexes = parse_topic(text)
        topic = (await cluster.topics([name]))[name]
        chosen = list(topic.partitions) if indexes is None else indexes
        missing = [index for index in chosen if index not in topic.partitions]
        if missing:
            raise Failed(f"topic {name!r} has no partition {missing[0]}")
        partitions += [TopicPartition(name, index) for index in chosen]
    return partitions


async def _plan(
    cluster: Cluster,
    goal: Goal,
    number: int,
    partitions: list[TopicPartition],
    committed: dict[TopicPartition, int],
    wanted: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    earliest = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    latest = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    at_time = {}
    if goal is Goal.TIME:
        at_time = await list_offsets(cluster, dict.fromkeys(partitions, number))
    plan = {}
    for tp in partitions:
        then = at_time[tp].offset if tp in at_time else -1
        facts = OffsetFacts(
            earliest[tp].offset,
            latest[tp].offset,
            committed.get(tp),
            None if then < 0 else then,
        )
        asked = wanted.get(tp, number)
        offset = new_offset(goal, facts, asked)
        if offset is None:
            note(f"{tp}: skipped, the group has no committed offset to shift")
            continue
        if goal in (Goal.OFFSET, Goal.FILE) and offset != asked:
            note(f"{tp}: offset {asked} is outside the log: using {offset}")
        plan[tp] = offset
    return plan


def _print(plan: dict[str, dict[TopicPartition, int]], flags: dict[str, Any]) -> None:
    rows = [
        (group, tp.topic, tp.partition, offset)
        for group, positions in plan.items()
        for tp, offset in sorted(positions.items())
    ]
    if flags["export"]:
        say(write_file(plan).rstrip("\n"))
    elif flags["as_json"]:
        print_json(
            {
                "executed": flags["execute"],
                "offsets": [
                    {"group": g, "topic": t, "partition": p, "new_offset": o} for g, t, p, o in rows
                ],
            }
        )
    else:
        print_table(
            ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], rows, right=["PARTITION", "NEW-OFFSET"]
        )
    if not flags["execute"] and not flags["as_json"]:
        note("Nothing was changed: add --execute to commit these offsets.")
