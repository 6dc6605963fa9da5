"""The ``tidelog groups`` command: lists, describes, deletes groups, as kafka-consumer-groups does.

Owns the options of listing, describing and deleting. Not resetting offsets: see ``groups_reset``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from tidelog.cli import groups_reset
from tidelog.cli.connecting import (
    CommonOptions,
    cluster_options,
    exactly_one,
    exactly_one_of,
    json_option,
    run,
)
from tidelog.cli.failures import explain
from tidelog.cli.many_requests import PATIENCE_S, SharedPatience, ask_each
from tidelog.cli.name_options import group_option, topic_option
from tidelog.cli.output import note, print_json, print_table, say
from tidelog.cli.refusal import WrongUsage
from tidelog.cli.reset_plan import parse_topic
from tidelog.cli.resizing import gates_shown
from tidelog.client.admin import groups as admin
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, RequestTimedOut
from tidelog.client.groups.committed_offsets import committed_offsets
from tidelog.client.groups.lag import lags_of
from tidelog.client.metadata import ClusterMetadata
from tidelog.client.offsets import LATEST, FoundOffset, list_offsets
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

ENDS_TIMEOUT_MS = 10_000
"""Longest wait for the ends of a group's partitions: longer than a change of leaders takes."""

ALL_ENDS_WITHIN_S, LEAST_ENDS_TIMEOUT_MS = 3.0, 500
"""The same where all groups are shown, from the beginning on: a frozen leader that has a successor
is replaced in 2 s, and one that has none must hold up no group. Once a coordinator has been waited
for, the leaders have been replaced too."""

DEAD = "Dead"
STATES = ("Stable", "Empty", DEAD, "PreparingRebalance", "CompletingRebalance")
NEWER_STATES = ("Assigning", "Reconciling", "NotReady")
"""States of the newer kinds of groups, which Apache Kafka's brokers have (KIP-848, KIP-1071)."""


@click.command("groups")
@cluster_options
@click.option("--list", is_flag=True, help="List groups.")
@click.option("--describe", is_flag=True, help="Show groups: offsets and lag.")
@click.option("--delete", is_flag=True, help="Delete groups without members.")
@click.option("--reset-offsets", is_flag=True, help="Move the offsets of groups without members.")
@click.option("--delete-offsets", is_flag=True, help="Delete offsets of topics (--topic).")
@group_option(multiple=True, help="A group; may be repeated.")
@click.option("--all-groups", is_flag=True, help="Every group.")
@topic_option(multiple=True, metavar="T[:0,1]", help="Topic or some partitions of it.")
@click.option("--all-topics", is_flag=True, help="With --reset-offsets: every topic of the group.")
@click.option("--offsets", is_flag=True, help="With --describe: offsets (the default).")
@click.option("--members", is_flag=True, help="With --describe: members.")
@click.option(
    "--state",
    is_flag=False,
    flag_value="",
    metavar="[STATE,...]",
    help="With --describe: states. With --list: states, and groups in these only.",
)
@click.option("--verbose", is_flag=True, help="With --members: their partitions.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(min=1),
    help="The time limit of a call in ms (default.api.timeout.ms).",
)
@groups_reset.options
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """List, describe and delete groups; reset and delete their offsets."""
    action = exactly_one_of(
        flags, "--list", "--describe", "--delete", "--reset-offsets", "--delete-offsets"
    )
    if action != "--list" and not flags["group"] and not flags["all_groups"]:
        raise WrongUsage(f"{action} needs --group or --all-groups")
    if flags["group"] and flags["all_groups"]:
        raise WrongUsage("give --group or --all-groups, not both")
    if action == "--reset-offsets":
        groups_reset.check(flags)
    if flags["state"] and action != "--list":
        raise WrongUsage("--state takes states with --list only")
    flags["states"] = parse_states(flags["state"])
    if action == "--delete-offsets" and not flags["topic"]:
        raise WrongUsage("--delete-offsets needs --topic")
    work = {
        "--list": _list,
        "--describe": _describe,
        "--delete": _delete,
        "--reset-offsets": groups_reset.work,
        "--delete-offsets": _delete_offsets,
    }[action]

    async def whole(cluster: Cluster) -> int:
        if flags["all_groups"]:
            flags["group"] = tuple(g.group_id for g in await _listed(cluster))
        return await work(cluster, flags)

    patience = flags["timeout_ms"]
    properties = {} if patience is None else {"default.api.timeout.ms": str(patience)}
    status = run(
        asked,
        whole,
        properties=properties,
        awaited="the coordinators of the groups",
    )
    if status:
        raise click.exceptions.Exit(status)


def parse_states(text: str | None) -> list[str]:
    """Parse ``Stable,empty`` as Kafka's tool does: case does not matter. Raises WrongUsage."""
    by_lower = {state.lower(): state for state in (*STATES, *NEWER_STATES)}
    names = [piece.strip() for piece in (text or "").split(",") if piece.strip()]
    for piece in names:
        if piece.lower() not in by_lower:
            raise WrongUsage(f"--state {piece!r} is not a group state: use {', '.join(STATES)}")
    return [by_lower[piece.lower()] for piece in names]


async def _listed(cluster: Cluster, states: Iterable[str] = ()) -> list[admin.GroupListing]:
    """Return the groups that have a coordinator; say when there may be others."""
    unlisted: list[str] = []
    groups = await admin.list_groups(cluster, states, unlisted)
    for line in unlisted:
        note(line)
    return groups


async def _list(cluster: Cluster, flags: dict[str, Any]) -> int:
    groups = await _listed(cluster, flags["states"])
    if flags["as_json"]:
        print_json(
            [
                {
                    "group": group.group_id,
                    "protocol_type": group.protocol_type,
                    "state": group.state,
                    "type": group.kind,
                }
                for group in groups
            ]
        )
    elif flags["state"] is not None:
        print_table(["GROUP", "STATE"], [[group.group_id, group.state] for group in groups])
    else:
        for group in groups:
            say(group.group_id)
    return 0


async def _describe(cluster: Cluster, flags: dict[str, Any]) -> int:
    state = flags["state"] is not None
    exactly_one(
        {
            "--offsets": flags["offsets"] or not (flags["members"] or state),
            "--members": flags["members"],
            "--state": state,
        }
    )
    has_ends = not (flags["members"] or state)
    missing: dict[str, ClientError] = {}
    if flags["all_groups"]:
        shown = await describe_all(cluster, flags["group"], missing, has_ends=has_ends)
        _name_missing(cluster, missing)
    else:
        shown = [await describe(cluster, group, has_ends=has_ends) for group in flags["group"]]
    if has_ends:
        await _add_gates(cluster, shown)
    status = 1 if missing else 0
    if flags["as_json"]:
        print_json(shown)
        return status
    for number, group in enumerate(shown):
        if number:
            say("")
        if not group["members"]:
            note(f"Group {group['group']} has no active members.")
        if state:
            _print_state(group)
        elif flags["members"]:
            _print_members(group, verbose=flags["verbose"])
        else:
            _print_offsets(group)
    return status


async def describe_all(
    cluster: Cluster,
    groups: Sequence[str],
    missing: dict[str, ClientError],
    *,
    has_ends: bool = True,
) -> list[dict[str, Any]]:
    """Return what ``--describe --json`` shows of groups, some of each coordinator at a time.

    The groups of a silent coordinator cost ``many_requests.PATIENCE_S``, whatever their number.
    ``missing`` gets the errors of those that are not shown. A group that was deleted after it was
    listed is none.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + ALL_ENDS_WITHIN_S

    def ends_timeout_ms() -> int:
        return max(LEAST_ENDS_TIMEOUT_MS, int(1000 * (end_s - loop.time())))

    answers: dict[str, dict[str, Any] | ClientError] = {}

    async def ask(some: Sequence[str], patience: SharedPatience) -> None:
        described = await ask_each(
            some,
            lambda group: describe(
                cluster, group, has_ends=has_ends, ends_timeout_ms=ends_timeout_ms
            ),
            "group",
            patience,
        )
        answers.update(zip(some, described, strict=True))

    patience = SharedPatience(PATIENCE_S)
    await ask_each(groups, cluster.coordinator, "group", patience)
    # Each coordinator apart: the silence of one must not end the requests to another.
    by_coordinator: dict[int | None, list[str]] = {}
    for group in groups:
        by_coordinator.setdefault(cluster.known_coordinator(group), []).append(group)
    left_s = patience.left_s
    await asyncio.gather(*(ask(some, SharedPatience(left_s)) for some in by_coordinator.values()))
    shown = []
    for group in groups:
        answer = answers[group]
        if not isinstance(answer, ClientError):
            shown.append(answer)
        elif not isinstance(answer, Refused) or answer.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            missing[group] = answer
    return shown


def _name_missing(cluster: Cluster, missing: Mapping[str, ClientError]) -> None:
    for group, error in missing.items():
        coordinator = cluster.known_coordinator(group)
        whose = "" if coordinator is None else f" (its coordinator is broker {coordinator})"
        note(f"group {group} is not shown{whose}: {error}")


async def describe(
    cluster: Cluster,
    group: str,
    *,
    has_ends: bool = True,
    ends_timeout_ms: Callable[[], int] = lambda: ENDS_TIMEOUT_MS,
) -> dict[str, Any]:
    """Return what ``--describe --json`` shows of one group. Raises Refused for none.

    ``has_ends=False`` asks no leader for ends and lag, which are None then, as that of a partition
    whose leader does not say it: that one is named, and holds up nothing else.
    """
    group_shown = await admin.describe_group(cluster, group)
    committed = await committed_offsets(cluster, group)
    if group_shown.state == DEAD and not committed:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group!r}")
    owners = {tp: member for member in group_shown.members for tp in member.assignment}
    partitions = sorted({*committed, *owners})
    view = await cluster.describe(sorted({tp.topic for tp in partitions}))
    alive = [tp for tp in partitions if view.partition(tp) is not None]
    ends = await _ends(cluster, view, alive, ends_timeout_ms()) if has_ends else {}
    positions = {tp: committed[tp].offset for tp in ends if tp in committed}
    lags = await lags_of(cluster, positions, ends)
    rows = []
    for tp in partitions:
        position = committed.get(tp)
        owner = owners.get(tp)
        rows.append(
            {
                **tp._asdict(),
                "current_offset": None if position is None else position.offset,
                "log_end_offset": ends.get(tp),
                "lag": lags.get(tp),
                "consumer_id": owner.member_id if owner else None,
                "host": owner.host if owner else None,
                "client_id": owner.client_id if owner else None,
            }
        )
    return {
        "group": group,
        "state": group_shown.state,
        "protocol_type": group_shown.protocol_type,
        "assignor": group_shown.assignor,
        "coordinator": group_shown.coordinator,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [[w.topic, w.partition] for w in sorted(member.assignment)],
            }
            for member in group_shown.members
        ],
        "offsets": rows,
    }


async def _ends(
    cluster: Cluster, view: ClusterMetadata, partitions: list[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, int]:
    """Return the ends of partitions whose leaders say them; name the others."""
    asked, failed = set[TopicPartition](), dict[TopicPartition, ClientError]()
    for tp in partitions:
        listed = view.partition(tp)
        if listed is not None and listed.leader < 0:
            failed[tp] = Refused(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
        else:
            asked.add(tp)
    patience = min(cluster.settings.default_api_timeout_ms, timeout_ms)
    wanted = dict.fromkeys(sorted(asked), LATEST)
    offsets = dict[TopicPartition, FoundOffset]()
    try:
        # By the clock: the last attempt of a call may begin right before its deadline.
        async with asyncio.timeout(patience / 1000):
            await list_offsets(
                cluster, wanted, timeout_ms=patience, failed=failed, taken=offsets.update
            )
    except TimeoutError:
        late = RequestTimedOut(f"its leader did not respond within {patience / 1000:.1f} s")
        failed |= dict.fromkeys(asked - offsets.keys() - failed.keys(), late)
    for tp, error in sorted(failed.items()):
        note(f"the end and the lag of {tp} are not shown: {error}")
    return {tp: offset.offset for tp, offset in offsets.items()}


async def _add_gates(cluster: Cluster, shown: list[dict[str, Any]]) -> None:
    """Add what the members of each group hold back until others have read something (KIP-253)."""
    names = {row["topic"] for group in shown for row in group["offsets"]}
    topics = [topic for name, topic in cluster.view.topics.items() if name in names]
    gates = await gates_shown.describe_gates(cluster, topics, [group["group"] for group in shown])
    for group in shown:
        group |= gates[group["group"]]


def _print_offsets(group: dict[str, Any]) -> None:
    names = ["topic", "partition", "current_offset", "log_end_offset", "lag"]
    names += ["consumer_id", "host", "client_id"]
    columns = ["GROUP", *(name.replace("_", "-").upper() for name in names)]
    print_table(
        columns,
        [[group["group"], *(row[name] for name in names)] for row in group["offsets"]],
        right=columns[2:6],
        spare=["HOST", "CLIENT-ID", "CONSUMER-ID"],
    )
    gates_shown.print_gates(group)


def _print_members(group: dict[str, Any], *, verbose: bool) -> None:
    columns = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    folds = ["ASSIGNMENT"] if verbose else []
    rows = []
    for member in group["members"]:
        row = [group["group"], member["member_id"], member["host"], member["client_id"]]
        row.append(len(member["partitions"]))
        if verbose:
            row.append(", ".join(f"{topic}-{index}" for topic, index in member["partitions"]))
        rows.append(row)
    print_table(
        columns + folds, rows, right=["#PARTITIONS"], spare=["HOST", "CLIENT-ID"], folds=folds
    )


def _print_state(group: dict[str, Any]) -> None:
    print_table(
        ["GROUP", "COORDINATOR", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"],
        [
            [
                group["group"],
                group["coordinator"],
                group["assignor"],
                group["state"],
                len(group["members"]),
            ]
        ],
        right=["COORDINATOR", "#MEMBERS"],
        spare=["ASSIGNMENT-STRATEGY"],
    )


async def _delete(cluster: Cluster, flags: dict[str, Any]) -> int:
    outcomes: dict[str, Refused | None] = {}
    for group in flags["group"]:
        try:
            await admin.delete_group(cluster, group)
        except Refused as error:
            outcomes[group] = error
        else:
            outcomes[group] = None
    if flags["as_json"]:
        print_json({group: explain(error) if error else None for group, error in outcomes.items()})
    else:
        for group, outcome in outcomes.items():
            if outcome is None:
                say(f"Deleted group {group}.")
    failures = [error for error in outcomes.values() if error is not None]
    if failures:
        raise failures[0]
    return 0


async def _delete_offsets(cluster: Cluster, flags: dict[str, Any]) -> int:
    outcomes: dict[TopicPartition, Refused | None] = {}
    for group in flags["group"]:
        partitions = []
        committed = await committed_offsets(cluster, group)
        for text in flags["topic"]:
            name, indexes = parse_topic(text)
            if indexes is None:
                indexes = [tp.partition for tp in committed if tp.topic == name]
            partitions += [TopicPartition(name, index) for index in indexes]
        if not partitions:
            raise Refused(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"group {group!r}",
                f"it has no offsets of {', '.join(flags['topic'])}",
            )
        outcomes.update(await admin.delete_offsets(cluster, group, partitions))
    failures = [error for error in outcomes.values() if error is not None]
    if flags["as_json"]:
        print_json(
            [{**w._asdict(), "error": str(e) if e else None} for w, e in sorted(outcomes.items())]
        )
    else:
        print_table(
            ["TOPIC", "PARTITION", "STATUS"],
            [
                [w.topic, w.partition, e.code.name if e else "ok"]
                for w, e in sorted(outcomes.items())
            ],
            right=["PARTITION"],
        )
    if failures:
        raise failures[0]
    return 0
