"""The ``tidelog topics`` command: creates, lists, describes, alters and deletes topics.

Owns the options and the output, as in kafka-topics. Not the requests: see ``client.admin.topics``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import click

from tidelog.cli import resized, unclean_shown
from tidelog.cli.asking import ask_whether_to_delete
from tidelog.cli.connecting import (
    BROKERS,
    CONTROLLER,
    CommonOptions,
    check_goes_with,
    cluster_options,
    exactly_one_of,
    json_option,
    key_values,
    parameter_of,
    run,
)
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import note, print_json, print_table, say
from tidelog.cli.reassigning import balancing, closing, described
from tidelog.cli.reassigning.plan_file import parse_brokers
from tidelog.cli.reassigning.steps import Done
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.cli.resizing import gates_shown
from tidelog.cli.resizing.altering import alter_counts, check_alter
from tidelog.cli.suggestions import why_no_match
from tidelog.client.admin import topics as admin
from tidelog.client.admin.configs import Source, describe_topics_configs
from tidelog.client.admin.nodes import (
    REASSIGNMENTS,
    RESIZES,
    UNCLEAN,
    Placements,
    describe_condition,
)
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, RequestTimedOut, error_code
from tidelog.client.metadata import NO_LEADER, Topic
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import MAX_NAME_LENGTH, why_invalid

BALANCES = ("--rebalance", "--decommission")
"""The actions that plan over all topics."""

MINIMUM = "min.insync.replicas"


def _minimum_of(item: dict[str, Any], minimum: int) -> int:
    """Return the configured minimum, capped at the number of replicas, as the server does."""
    return min(minimum, len(item["replicas"]))


ONLY: dict[str, Callable[[dict[str, Any], int], bool]] = {
    "--under-replicated-partitions": lambda item, _: (
        len(item["isr"]) < described.wanted_count(item)
    ),
    "--unavailable-partitions": lambda item, _: item["leader"] is None,
    "--under-min-isr-partitions": lambda item, least: len(item["isr"]) < _minimum_of(item, least),
    "--at-min-isr-partitions": lambda item, least: len(item["isr"]) == _minimum_of(item, least),
}
"""The partitions that --describe shows with each of these options; several options add up."""
GOES_WITH = {
    "--undo": ("--decommission",),
    "--execute": BALANCES,
    "--exclude-brokers": BALANCES,
    **dict.fromkeys(ONLY, ("--describe",)),
    "--dry-run": ("--alter",),
    "--wait": ("--alter",),
    "--yes": ("--delete",),
}
"""The actions with which an option goes."""


@click.command("topics")
@cluster_options
@click.option("--create", is_flag=True, help="Create a topic.")
@click.option("--list", is_flag=True, help="List topics.")
@click.option("--describe", is_flag=True, help="Show topics with their partitions.")
@click.option("--alter", is_flag=True, help="Change a topic's partition count.")
@click.option("--delete", is_flag=True, help="Delete topics.")
@click.option("--rebalance", is_flag=True, help="Propose how to even out all brokers.")
@click.option("--decommission", type=click.IntRange(min=0), help="Propose how to empty a broker.")
@topic_option(help="A name; except with --create also a pattern or a list.")
@click.option("--topic-id", metavar="ID", help="With --describe: the topic of this id.")
@click.option("--partitions", type=int, help="The partition count.")
@click.option("--replication-factor", type=int, help="Replicas per partition.")
@click.option("--replica-assignment", metavar="1:2,2:3", help="Brokers of each partition.")
@click.option("--config", multiple=True, metavar="NAME=VALUE", help="A configuration (--create).")
@click.option("--if-not-exists", is_flag=True, help="With --create: accept an existing topic.")
@click.option("--if-exists", is_flag=True, help="Accept a missing topic.")
@click.option(
    "--force",
    is_flag=True,
    help="Shrink in spite of the policy (--alter), delete an internal topic.",
)
@click.option("--dry-run", is_flag=True, help="With --alter: show what it would do.")
@click.option("--wait", is_flag=True, help="With --alter: wait until it is done, show progress.")
@click.option("--yes", is_flag=True, help="With --delete: do not ask when a pattern matches.")
@click.option("--execute", is_flag=True, help="Carry out --rebalance or --decommission.")
@click.option("--undo", is_flag=True, help="With --decommission: end it.")
@click.option("--exclude-brokers", metavar="1,2", help="Brokers that get no replicas.")
@click.option("--exclude-internal", is_flag=True, help="Leave internal topics out.")
@click.option("--under-replicated-partitions", is_flag=True, help="With --describe: only those.")
@click.option("--unavailable-partitions", is_flag=True, help="Only those without a leader.")
@click.option("--under-min-isr-partitions", is_flag=True, help="Only those below their minimum.")
@click.option("--at-min-isr-partitions", is_flag=True, help="Only those with just their minimum.")
@click.option("--topics-with-overrides", is_flag=True, help="Only topics with configurations.")
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """Create, list, describe, change and delete topics."""
    action = exactly_one_of(
        flags, "--create", "--list", "--describe", "--alter", "--delete", *BALANCES
    )
    if action in BALANCES:
        _balance(asked, action, flags)
        return
    check_goes_with(flags, action, GOES_WITH)
    if action in ("--create", "--alter", "--delete") and not flags["topic"]:
        raise WrongUsage(f"{action} needs --topic")
    if action != "--create" and (flags["config"] or flags["replication_factor"] is not None):
        raise WrongUsage(
            f"--config and --replication-factor go with --create, not with {action}; "
            "`tidelog configs --alter` changes the configurations of a topic"
        )
    if flags["topic_id"] and (action != "--describe" or flags["topic"]):
        raise WrongUsage("--topic-id goes with --describe, and instead of --topic")
    if flags["force"] and action not in ("--alter", "--delete"):
        raise WrongUsage(f"--force goes with --alter and --delete, not with {action}")
    if action == "--alter":
        check_alter(flags)
    # Checked before any request: wrong usage needs no cluster.
    flags["configs"] = key_values(flags["config"], "--config")
    flags["assignment"] = parse_assignment(flags["replica_assignment"])
    topic_pattern(flags["topic"])
    if action == "--create" and (invalid := why_invalid(flags["topic"])) is not None:
        raise WrongUsage(f"topic {flags['topic']!r} cannot be created: {invalid}")
    counted = flags["partitions"] is not None or flags["replication_factor"] is not None
    if flags["assignment"] and action == "--create" and counted:
        raise WrongUsage(
            "--replica-assignment sets both counts: omit --partitions and --replication-factor"
        )
    work = {
        "--create": _create,
        "--list": _list,
        "--describe": _describe,
        "--alter": _alter,
        "--delete": _delete,
    }[action]
    run(
        asked,
        lambda cluster: work(cluster, flags),
        awaited=CONTROLLER if action in ("--create", "--alter", "--delete") else BROKERS,
        # --wait prints lines of its own.
        progress=(lambda: "") if flags["wait"] else None,
    )


def _balance(options: CommonOptions, action: str, flags: dict[str, Any]) -> None:
    if flags["topic"] or flags["topic_id"]:
        raise WrongUsage(f"{action} is about all topics: leave --topic out")
    excluded, leaving = flags["exclude_brokers"], flags["decommission"]
    if flags["undo"]:
        if leaving is None:
            raise WrongUsage("--undo goes with --decommission, not with --rebalance")
        if excluded or flags["execute"]:
            raise WrongUsage("--undo stands alone with --decommission: it takes effect at once")
        run(
            options,
            lambda cluster: closing.open_again(cluster, leaving, flags["as_json"]),
            awaited=CONTROLLER,
        )
        return
    brokers = parse_brokers(excluded, "--exclude-brokers") if excluded else []
    asked = balancing.BalanceOptions(brokers, flags["execute"], flags["as_json"])
    done = Done()
    run(
        options,
        lambda cluster: (
            balancing.propose_balance(cluster, asked, done)
            if leaving is None
            else balancing.decommission(cluster, leaving, asked, done)
        ),
        progress=lambda: str(done) if done.of else "reading the cluster",
        says_once=lambda: True,
    )


async def _create(cluster: Cluster, flags: dict[str, Any]) -> None:
    name = flags["topic"]
    default = admin.BROKER_DEFAULT
    topic = admin.TopicSpec(
        name,
        default if flags["partitions"] is None else flags["partitions"],
        default if flags["replication_factor"] is None else flags["replication_factor"],
        flags["configs"],
        dict(enumerate(flags["assignment"])),
    )
    outcome = (await admin.create_topics(cluster, [topic]))[name]
    existed = outcome is not None and outcome.code == ErrorCode.TOPIC_ALREADY_EXISTS
    if outcome is not None and not (existed and flags["if_not_exists"]):
        raise outcome
    if flags["as_json"]:
        print_json({"topic": name, "created": not existed})
    else:
        say(f"Topic {name} already exists." if existed else f"Created topic {name}.")


async def _list(cluster: Cluster, flags: dict[str, Any]) -> None:
    names = [topic.name for topic in await _matching(cluster, flags)]
    if flags["as_json"]:
        print_json(names)
    else:
        for name in names:
            say(name)


async def _describe(cluster: Cluster, flags: dict[str, Any]) -> None:
    matching = await _matching(cluster, flags)
    if (flags["topic"] or flags["topic_id"]) and not matching:
        await _missing(cluster, flags)
    shown = []
    settings: dict[str, dict[str, str | None]] = {}
    entries_of = await describe_topics_configs(cluster, [topic.name for topic in matching])
    for topic in matching:
        if topic.error:
            raise Refused(error_code(topic.error), f"topic {topic.name!r}")
        entries = entries_of[topic.name]
        if isinstance(entries, Refused):
            raise entries
        configs = {
            entry.name: entry.value or ""
            for entry in entries
            if entry.source is Source.DYNAMIC_TOPIC_CONFIG
        }
        values = {entry.name: entry.value for entry in entries}
        settings[topic.name] = values
        if configs or not flags["topics_with_overrides"]:
            shown.append(describe_topic(topic, configs))
    condition, responds = await _condition(cluster)
    await described.add_moves(cluster, shown, Placements.of(condition), responds=responds)
    await resized.add_resizes(cluster, matching, shown, settings)
    resized.add_reported(condition, shown)
    await gates_shown.add_waiting_groups(cluster, matching, shown)
    chosen = [chooser for option, chooser in ONLY.items() if flags[parameter_of(option)]]
    if chosen:
        for topic_shown in shown:
            minimum = int(settings[topic_shown["topic"]].get(MINIMUM) or 1)
            topic_shown["partitions"] = [
                item
                for item in topic_shown["partitions"]
                if any(chooser(item, minimum) for chooser in chosen)
            ]
        shown = [topic_shown for topic_shown in shown if topic_shown["partitions"]]
    unclean_shown.add_unclean(condition, shown)
    if flags["as_json"]:
        print_json(shown)
        return
    for number, topic_shown in enumerate(shown):
        if number:
            say("")
        _print_topic(topic_shown)


def describe_topic(topic: Topic, configs: dict[str, str]) -> dict[str, Any]:
    """Return what ``--describe --json`` shows of one topic."""
    partitions = list(topic.partitions.values())
    return {
        "topic": topic.name,
        "topic_id": topic_id_text(topic.topic_id),
        "internal": topic.internal,
        "partition_count": len(partitions),
        "replication_factor": max((len(item.replicas) for item in partitions), default=0),
        "configs": dict(sorted(configs.items())),
        "partitions": [
            {
                "partition": item.index,
                "leader": None if item.leader == NO_LEADER else item.leader,
                "leader_epoch": item.leader_epoch,
                "replicas": list(item.replicas),
                "isr": list(item.isr),
                "offline": list(item.offline),
            }
            for item in partitions
        ],
    }


async def _condition(cluster: Cluster) -> tuple[dict[str, Any] | None, bool]:
    """Return the controller's report with what it alone knows of partitions, and whether it
    responds."""
    try:
        return await describe_condition(cluster, subjects=[UNCLEAN, REASSIGNMENTS, RESIZES]), True
    except RequestTimedOut as error:
        note(f"unclean elections and moves are not shown: {error}")
        return None, False
    except ClientError as error:
        note(f"unclean elections are not shown: {error}")
        return None, True


def topic_id_text(topic_id: UUID) -> str:
    """Return a topic id as Kafka's tools print it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _print_topic(shown: dict[str, Any]) -> None:
    configs = ",".join(f"{name}={value}" for name, value in shown["configs"].items())
    say(
        f"Topic: {shown['topic']}  TopicId: {shown['topic_id']}  "
        f"PartitionCount: {shown['partition_count']}  "
        f"ReplicationFactor: {shown['replication_factor']}  {resized.headline(shown)}"
        f"Configs: {configs}"
    )
    resizes = bool(shown["resize_epoch"])
    moves = any(item["original_replicas"] is not None for item in shown["partitions"])
    print_partitions(shown["partitions"], moves=moves, resizes=resizes)
    unclean_shown.print_unclean(shown["partitions"])
    resized.print_plan(shown)
    resized.print_misplaced(shown)
    resized.print_retired(shown)
    gates_shown.print_waiting_groups(shown)


def print_partitions(items: Sequence[dict[str, Any]], *, moves: bool, resizes: bool) -> None:
    """Print a row for each partition; with the columns of moves and of resizes if there are any."""
    columns = ["Partition", "Leader", "Replicas", "Isr", "Offline", "LeaderEpoch"]
    of_moves, of_resizes = list(described.COLUMNS) * moves, list(resized.COLUMNS) * resizes
    print_table(
        columns + of_moves + of_resizes,
        [
            [
                item["partition"],
                "none" if item["leader"] is None else item["leader"],
                ",".join(map(str, item["replicas"])),
                ",".join(map(str, item["isr"])),
                ",".join(map(str, item["offline"])),
                item["leader_epoch"],
                *(described.cells(item) if moves else ()),
                *(resized.cells(item) if resizes else ()),
            ]
            for item in items
        ],
        right=["Partition", "Leader", "LeaderEpoch"],
        spare=["LeaderEpoch", *of_moves[1:2], *of_resizes[1:2]],
        folds=["Replicas", "Isr", "Offline", *of_moves[:1], *of_resizes[2:]],
    )


async def _alter(cluster: Cluster, flags: dict[str, Any]) -> None:
    matching = await _matching(cluster, flags)
    if not matching:
        await _missing(cluster, flags)
        return
    await alter_counts(cluster, matching, flags)


async def _delete(cluster: Cluster, flags: dict[str, Any]) -> None:
    matching = await _matching(cluster, flags)
    names, left_out, by_pattern = topics_to_delete(matching, flags["topic"])
    internal = [topic.name for topic in matching if topic.internal and topic.name in names]
    if left_out:
        note(f"internal topics are skipped unless they are named: {', '.join(left_out)}")
    if not names:
        if not left_out:
            await _missing(cluster, flags)
        return
    if internal and not flags["force"]:
        what = f"{internal[0]} is internal (__consumer_offsets has the offsets of all groups)"
        raise Failed(f"{what}: add --force to delete it")
    if by_pattern and not flags["yes"]:
        ask_whether_to_delete(by_pattern, flags["topic"])
    outcomes = await admin.delete_topics(cluster, names)
    refused = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    deleted = [name for name in names if name not in refused]
    if flags["as_json"]:
        print_json({"deleted": deleted, "refused": {n: str(e) for n, e in refused.items()}})
    else:
        for name in deleted:
            say(f"Deleted topic {name}.")
    for outcome in refused.values():
        raise outcome


def topics_to_delete(
    matching: Sequence[Topic], text: str
) -> tuple[list[str], list[str], list[str]]:
    """Return the topics to delete, those skipped, and those to delete that only a pattern matches.

    A pattern never selects an internal topic: it must be named to be deleted.
    """
    named = set(_plain_names(text))
    left_out = [topic.name for topic in matching if topic.internal and topic.name not in named]
    names = [topic.name for topic in matching if topic.name not in left_out]
    return names, left_out, [name for name in names if name not in named]


async def _missing(cluster: Cluster, flags: dict[str, Any]) -> None:
    if not flags["if_exists"]:
        if flags["topic_id"]:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"topic id {flags['topic_id']!r}")
        raise no_topic(flags["topic"], (await cluster.all_topics()).topics)
    note(f"no topic matches {flags['topic'] or flags['topic_id']!r}: nothing to do")


def no_topic(text: str, names: Iterable[str]) -> Refused | Failed:
    """Return the error for a name, list or pattern that matches none of the topics ``names``."""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # A name that is longer than a topic's may be is still not a regular expression.
    if all(why_invalid(piece[:MAX_NAME_LENGTH]) is None for piece in _pieces(text)):
        return Refused(code, f"topic {text!r}")
    return Failed(f"no topic matches {text!r} ({code.name}); {why_no_match(text, names)}")


async def _matching(cluster: Cluster, flags: dict[str, Any]) -> list[Topic]:
    """Return the topics that --topic matches, sorted; without it all of them."""
    view = await cluster.all_topics()
    wanted = topic_pattern(flags["topic"])
    return [
        topic
        for name, topic in sorted(view.topics.items())
        if wanted.fullmatch(name)
        and not (flags["exclude_internal"] and topic.internal)
        and flags["topic_id"] in (None, topic_id_text(topic.topic_id))
    ]


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in text.strip("\"'").split(",") if piece.strip()]


def _plain_names(text: str) -> list[str]:
    """Return the parts of --topic that are names."""
    return [piece for piece in _pieces(text) if why_invalid(piece) is None]


def topic_pattern(text: str | None) -> re.Pattern[str]:
    """Return the pattern of a name, a comma-separated list or a regular expression.

    A part that is a valid topic name matches only itself: its dots are dots. Raises WrongUsage.
    """
    if text is None:
        return re.compile(".*")
    pieces = _pieces(text)
    plain = [re.escape(piece) if why_invalid(piece) is None else piece for piece in pieces]
    try:
        return re.compile("|".join(f"(?:{piece})" for piece in plain))
    except re.error as error:
        raise WrongUsage(f"--topic {text!r} is not a name, list or pattern: {error}") from None


def parse_assignment(text: str | None) -> list[list[int]]:
    """Parse ``1:2,2:3`` (brokers of partition 0, of partition 1 …). Raises WrongUsage."""
    if not text:
        return []
    assignment = []
    for piece in text.split(","):
        ids = piece.split(":")
        if not all(one.strip().isdecimal() for one in ids) or len(set(ids)) != len(ids):
            raise WrongUsage(
                f"--replica-assignment {text!r}: {piece!r} is not a list of different brokers"
            )
        assignment.append([int(one) for one in ids])
    return assignment
