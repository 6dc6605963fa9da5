"""The ``tidelog doctor`` command: the problems of a cluster on one page; backup of its store.

Owns the requests and the output. Not the rules: see ``findings``. Subcommands are found by their
files: ``doctor_NAME.py`` in this folder has the subcommand NAME as ``command``.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import tidelog.cli
from tidelog.cli.cluster_facts import ClusterFacts, Finding, Severity
from tidelog.cli.connecting import CommonOptions, json_option, run, subcommand_options
from tidelog.cli.findings import OFFSETS_REPLICAS, TRANSACTIONS_REPLICAS, judge, readable
from tidelog.cli.many_requests import SharedPatience, ask_each
from tidelog.cli.output import print_json, print_table, say
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.cli.topics import topic_id_text
from tidelog.client.admin.configs import describe_configs, describe_topics_configs, values_of
from tidelog.client.admin.groups import GroupListing, groups_of
from tidelog.client.admin.nodes import (
    REASSIGNMENTS,
    RESIZES,
    describe_cluster,
    describe_condition,
    describe_controllers,
    describe_itself,
    describe_log_dirs,
)
from tidelog.client.admin.transactions import TransactionDescription, open_for_long
from tidelog.client.cluster import Cluster
from tidelog.client.connections import bootstrap_of
from tidelog.client.errors import ClientError, ClusterUnreachable, RequestTimedOut
from tidelog.client.groups.committed_offsets import committed_offsets
from tidelog.metadata.sqlite import backup as backup_store
from tidelog.metadata.store import StoreRefused
from tidelog.model.admin_requests import ResourceType
from tidelog.runtime.disk import keep_from_others

Result = TypeVar("Result")

GROUPS_CHECKED = 1_000
"""The most groups whose offsets are read: each costs a request."""

LONGEST_S = 3.5
"""The time that silent processes may cost the whole command, by the clock."""

OPEN_S = 2.5
"""The part of it that brokers have until one sends metadata."""

CONTROLLER_FIRST_S = 1.0
"""How long the brokers' requests wait for the controller's report, which names missing brokers."""

LONG_OPEN_MS, TRANSACTIONS_DESCRIBED = 60_000, 100
"""A transaction that is open for longer holds readers up: Kafka's time-out, as it comes. And the
most that one coordinator describes."""

MINIMUM = "min.insync.replicas"

_COLOURS = {Severity.NOTICE: "yellow", Severity.BAD: "red"}

_MARKS = {Severity.GOOD: "ok  ", Severity.NOTICE: "note", Severity.BAD: "BAD "}


@click.group("doctor", invoke_without_command=True)
@subcommand_options
@click.pass_context
def command(context: click.Context, asked: CommonOptions, /, **_flags: Any) -> None:
    """Report the problems of a cluster and what to do. Exit status 1 when there is one."""
    if context.invoked_subcommand is not None:
        return
    facts = run(
        asked,
        check,
        knowing=False,
        awaited="the controller and all brokers",
        at_most_s=LONGEST_S,
    )
    findings = judge(facts)
    is_bad = any(finding.level is Severity.BAD for finding in findings)
    if asked.as_json:
        print_json(
            {
                "cluster_id": facts.cluster_id,
                "healthy": not is_bad,
                "findings": [
                    {
                        "level": f.level.value,
                        "kind": f.kind,
                        "what": f.what,
                        "advice": f.advice,
                        "partitions": list(f.partitions),
                        "brokers": list(f.brokers),
                        "groups": list(f.groups),
                    }
                    for f in findings
                ],
                "topics": {
                    name: topic_id_text(topic.topic_id) for name, topic in facts.topics.items()
                },
                "brokers": brokers_shown(facts),
                "controllers": list(facts.controllers),
                "condition": facts.reported,
            }
        )
    else:
        _print(facts, findings)
    if is_bad:
        raise click.exceptions.Exit(1)


def brokers_shown(facts: ClusterFacts) -> list[dict[str, Any]]:
    """Return one row per broker: the live ones, and those that the controller misses."""
    reported = {} if facts.reported is None else facts.reported.get("brokers", {})
    living = {broker.node_id: broker for broker in facts.brokers}
    rows = []
    for node_id in sorted({*living, *map(int, reported)}):
        broker = living.get(node_id)
        answer = facts.own.get(node_id)
        own = {} if answer is None or isinstance(answer, ClientError) else answer
        dirs = facts.log_dirs.get(node_id, [])
        entries = [] if isinstance(dirs, ClientError) else dirs
        free = [entry.usable_bytes for entry in entries if entry.usable_bytes >= 0]
        rows.append(
            {
                "broker": node_id,
                "address": None if broker is None else f"{broker.host}:{broker.port}",
                "rack": None if broker is None else broker.rack,
                "condition": reported.get(str(node_id), {}).get("condition")
                or _condition_of_itself(facts, node_id),
                "epoch": reported.get(str(node_id), {}).get("epoch"),
                "version": own.get("version"),
                "level": own.get("level"),
                "replicas": sum(len(entry.replicas) for entry in entries) if entries else None,
                "bytes": sum(sum(x.replicas.values()) for x in entries) if entries else None,
                "free_bytes": min(free, default=None),
            }
        )
    return rows


def _condition_of_itself(facts: ClusterFacts, node_id: int) -> str:
    """Return the condition of a broker that no controller reported: by its own responses.

    A controller that responded and does not name it, as Kafka's, knows that it is alive.
    """
    if not isinstance(facts.condition, ClientError):
        return "alive"
    dirs = facts.log_dirs.get(node_id)
    return "silent" if dirs is None or isinstance(dirs, ClientError) else "responds"


def _print(facts: ClusterFacts, findings: list[Finding]) -> None:
    say(f"Cluster {facts.cluster_id}, controller {facts.controller}")
    print_table(
        [
            "Broker",
            "Address",
            "Rack",
            "Condition",
            "Version",
            "Level",
            "Replicas",
            "Size",
            "Free",
        ],
        [
            [
                *(row[name] for name in ("broker", "address", "rack", "condition")),
                *(row[name] for name in ("version", "level", "replicas")),
                *(None if row[n] is None else readable(row[n]) for n in ("bytes", "free_bytes")),
            ]
            for row in brokers_shown(facts)
        ],
        right=["Broker", "Replicas", "Size", "Free"],
        spare=["Level", "Version", "Rack"],
        folds=["Condition"],
    )
    say("")
    for finding in findings:
        say(f"{mark_of(finding.level, in_colour=sys.stdout.isatty())}  {finding.what}")
        if finding.advice:
            say(f"      -> {finding.advice}")


def mark_of(level: Severity, *, in_colour: bool) -> str:
    """Return the word at the start of a finding's line; terminals show what is bad in red."""
    colour = _COLOURS.get(level)
    return click.style(_MARKS[level], fg=colour) if in_colour and colour else _MARKS[level]


@command.command("backup", short_help="Copy a SQLite metadata store to a file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--store",
    required=True,
    metavar="sqlite:PATH",
    help="The store, as in metadata.store of the controller's properties file.",
)
@json_option
def backup(file: Path, store: str, *, as_json: bool) -> None:
    """Copy a SQLite metadata store to FILE. Its controller may be running."""
    if store.startswith("zookeeper:"):
        raise WrongUsage(
            f"--store {store}: only a SQLite store can be copied; for ZooKeeper, copy the "
            "snapshots and transaction logs in its dataDir"
        )
    keep_from_others()
    try:
        backup_store(store.removeprefix("sqlite:"), str(file))
    except StoreRefused as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"store": store, "copy": str(file)})
    else:
        say(f"Copied {store} to {file}.")


async def check(cluster: Cluster, longest_s: float = LONGEST_S) -> ClusterFacts:
    """Request everything that ``judge`` needs from the cluster; what is silent costs ``longest_s``.

    Raises Failed with the controller's report when no broker has received metadata.
    """
    patience = SharedPatience(longest_s)
    await _open(cluster, patience)
    # The controller first: it names brokers that are missing, of which nothing is requested then.
    asked = asyncio.ensure_future(
        patience.in_time(
            lambda: describe_condition(
                cluster, int(longest_s * 1000), subjects=[REASSIGNMENTS, RESIZES]
            ),
            "the controller",
        )
    )
    try:
        await asyncio.wait([asked], timeout=min(CONTROLLER_FIRST_S, longest_s / 2))
        described, view = await asyncio.gather(
            _needed(patience, lambda: describe_cluster(cluster)),
            _needed(patience, cluster.all_topics),
        )
        early = asked.result() if asked.done() else None
        nodes = [b.node_id for b in described.brokers if not _is_suspected(early, b.node_id)]
        controllers, dirs, own, minimums, replicas, both = await asyncio.gather(
            patience.in_time(lambda: describe_controllers(cluster), "a broker"),
            ask_each(nodes, lambda node: describe_log_dirs(cluster, node), "broker", patience),
            ask_each(nodes, lambda node: describe_itself(cluster, node), "broker", patience),
            _minimums(cluster, sorted(view.topics), patience),
            _internal_replicas(cluster, nodes, patience),
            asyncio.gather(
                _groups(cluster, nodes, patience), _transactions(cluster, nodes, patience)
            ),
        )
        (listed, unknown, committed), transactions = both
        # Again: a topic that was created or deleted meanwhile must not make its replicas strays.
        later = await patience.in_time(cluster.all_topics, "the brokers")
        return ClusterFacts(
            cluster_id=described.cluster_id,
            controller_id=described.controller_id,
            brokers=described.brokers,
            topics=view.topics,
            minimum_isr=minimums,
            log_dirs=dict(zip(nodes, dirs, strict=True)),
            own=dict(zip(nodes, own, strict=True)),
            condition=await asked,
            controllers=() if isinstance(controllers, ClientError) else controllers or (),
            topics_later=None if isinstance(later, ClientError) else later.topics,
            groups=listed,
            groups_unknown=unknown,
            committed=committed,
            transactions=transactions,
            offsets_replicas=replicas[OFFSETS_REPLICAS],
            transactions_replicas=replicas[TRANSACTIONS_REPLICAS],
        )
    finally:
        asked.cancel()


async def _open(cluster: Cluster, patience: SharedPatience) -> None:
    """Reach the cluster. Raises ClientError, or Failed with what the controller says of it."""
    within_s = patience.left_s * OPEN_S / LONGEST_S
    opened = await patience.in_time(
        lambda: cluster.open(int(within_s * 1000)), bootstrap_of(cluster), within_s
    )
    if isinstance(opened, ClientError):
        why = await _why_no_metadata(cluster, patience)
        if why is None and isinstance(opened, RequestTimedOut):
            raise ClusterUnreachable(f"no broker can be reached: {opened}")
        raise why or opened


async def _needed(patience: SharedPatience, ask: Callable[[], Awaitable[Result]]) -> Result:
    answer = await patience.in_time(ask, "the brokers")
    if isinstance(answer, ClientError):
        raise answer
    return answer


async def _groups(
    cluster: Cluster, nodes: list[int], patience: SharedPatience
) -> tuple[list[GroupListing], dict[int, ClientError], dict[str, Any]]:
    """Return the groups, the brokers that did not list theirs, and the offsets of each group."""
    listed = await ask_each(nodes, lambda node: groups_of(cluster, node), "broker", patience)
    answers = dict(zip(nodes, listed, strict=True))
    groups = [group for some in listed if not isinstance(some, ClientError) for group in some]
    ids = sorted({group.group_id for group in groups})[:GROUPS_CHECKED]
    committed = await ask_each(
        ids, lambda group: committed_offsets(cluster, group), "group", patience
    )
    unknown = {node: some for node, some in answers.items() if isinstance(some, ClientError)}
    return groups, unknown, dict(zip(ids, committed, strict=True))


async def _transactions(
    cluster: Cluster, nodes: list[int], patience: SharedPatience
) -> list[tuple[TransactionDescription, int]]:
    """Return what is open for long, and how long. What does not answer, or has no transactions,
    names none: a silent broker is a finding of its own."""
    answers = await ask_each(
        nodes,
        lambda node: open_for_long(cluster, node, LONG_OPEN_MS, TRANSACTIONS_DESCRIBED),
        "broker",
        patience,
    )
    now_ms = int(time.time() * 1000)
    return [
        (one, max(0, now_ms - one.started_ms))
        for answer in answers
        if not isinstance(answer, ClientError)
        for one in answer
    ]


async def _why_no_metadata(cluster: Cluster, patience: SharedPatience) -> Failed | None:
    """Return why the controller sends starting brokers no metadata; None when it does not say."""
    condition = await patience.in_time(lambda: describe_condition(cluster), "the controller")
    if not isinstance(condition, dict):
        return None
    bad = [x for x in condition["problems"] if x["kind"] in ("store_went_back", "node_damaged")]
    why = " ".join(f"{x['what']} {x['advice']}" for x in bad)
    return Failed(f"the brokers wait for metadata from the controller. {why}") if bad else None


def _is_suspected(condition: dict[str, Any] | ClientError | None, node_id: int) -> bool:
    """Whether the controller misses a broker: a request to it would only time out."""
    if not isinstance(condition, dict):
        return False
    reported = condition.get("brokers", {}).get(str(node_id), {})
    return reported.get("condition") in ("suspected", "shutting_down")


async def _minimums(
    cluster: Cluster, topics: list[str], patience: SharedPatience
) -> dict[str, int]:
    configs = await patience.in_time(
        lambda: describe_topics_configs(cluster, topics, [MINIMUM]), "the topics"
    )
    if isinstance(configs, ClientError):
        return {}
    return {name: int(value) for name, value in values_of(configs, MINIMUM).items() if value}


async def _internal_replicas(
    cluster: Cluster, nodes: list[int], patience: SharedPatience
) -> dict[str, dict[int, int]]:
    """Return how many replicas internal topics get from each broker that says so, by setting."""
    settings = [OFFSETS_REPLICAS, TRANSACTIONS_REPLICAS]
    described = await ask_each(
        nodes,
        lambda node: describe_configs(cluster, ResourceType.BROKER, str(node), keys=settings),
        "broker",
        patience,
    )
    replicas: dict[str, dict[int, int]] = {name: {} for name in settings}
    for node, entries in zip(nodes, described, strict=True):
        for entry in () if isinstance(entries, ClientError) else entries:
            if entry.name in replicas and entry.value is not None:
                replicas[entry.name][node] = int(entry.value)
    return replicas


def _add_subcommands() -> None:
    for module in pkgutil.iter_modules(tidelog.cli.__path__, "tidelog.cli."):
        parent, _, name = module.name.rpartition(".")[2].partition("_")
        if parent == "doctor" and name:
            command.add_command(importlib.import_module(module.name).command, name)


_add_subcommands()
