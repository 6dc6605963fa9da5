"""``topics --alter --partitions``: another partition count, with a dry run and a wait for its end.

Owns the options, the requests and the output. Not what a dry run says: see ``dry_run``; not the
wait: see ``waiting``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.cli.output import note, print_json, say
from tidelog.cli.refusal import WrongUsage
from tidelog.cli.resizing.dry_run import as_json, print_dry_run, try_out
from tidelog.cli.resizing.waiting import resize_and_wait
from tidelog.client.admin.topics import create_partitions
from tidelog.client.cluster import Cluster
from tidelog.client.metadata import Topic
from tidelog.model.errors import ErrorCode

Assignments = Mapping[str, Sequence[Sequence[int]]]


def check_alter(flags: Mapping[str, Any]) -> None:
    """Refuse options that do not go together, before any request. Raises WrongUsage."""
    if flags["partitions"] is None:
        raise WrongUsage(
            "--alter needs --partitions; use `tidelog configs` to change configurations"
        )
    if flags["dry_run"] and flags["wait"]:
        raise WrongUsage("--wait waits for a resize, and --dry-run begins none: leave one out")


async def alter_counts(cluster: Cluster, topics: Sequence[Topic], flags: Mapping[str, Any]) -> None:
    """Give topics another partition count, or say what that would do. Raises ClientError."""
    count = flags["partitions"]
    chosen = {}
    if flags["assignment"]:
        # As in Kafka: all partitions are listed, the existing ones are ignored.
        chosen = {topic.name: flags["assignment"][len(topic.partitions) :] for topic in topics}
    if flags["force"]:
        await _say_needless_force(cluster, topics, count, chosen)
    if flags["dry_run"]:
        await _dry_run(cluster, topics, count, chosen, flags)
        return
    if flags["wait"]:
        outcomes = await resize_and_wait(cluster, topics, count, chosen, force=flags["force"])
    else:
        counts = dict.fromkeys([topic.name for topic in topics], count)
        outcomes = await create_partitions(
            cluster, counts, assignments=chosen, force=flags["force"]
        )
    for outcome in outcomes.values():
        if outcome is not None:
            raise outcome
    if flags["as_json"]:
        print_json([{"topic": topic.name, "partition_count": count} for topic in topics])
    else:
        for topic in topics:
            say(f"Topic {topic.name} now has {count} partitions.")


async def _dry_run(
    cluster: Cluster,
    topics: Sequence[Topic],
    count: int,
    chosen: Assignments,
    flags: Mapping[str, Any],
) -> None:
    tried = [await try_out(cluster, topic, count, chosen, force=flags["force"]) for topic in topics]
    if flags["as_json"]:
        print_json([as_json(run) for run in tried])
    else:
        for number, run in enumerate(tried):
            if number:
                say("")
            print_dry_run(run)
        say("Nothing was changed.")
    for run in tried:
        if run.refusal is not None:
            raise run.refusal


async def _say_needless_force(
    cluster: Cluster, topics: Sequence[Topic], count: int, chosen: Assignments
) -> None:
    """Say of which topics --force has no effect: it passes the refusals of a policy alone."""
    asked = await create_partitions(
        cluster,
        dict.fromkeys([topic.name for topic in topics], count),
        assignments=chosen,
        validate_only=True,
    )
    needless = [
        name
        for name, refused in asked.items()
        if refused is None or refused.code != ErrorCode.POLICY_VIOLATION
    ]
    if needless:
        note(
            f"--force has no effect on {', '.join(needless)}: it only passes the refusal of a "
            "shrink while producers without a partition count write, or of a compacted topic"
        )
