"""``tidelog doctor``: what is wrong with a cluster, on one page; and backing its store up.

Owns asking and printing; what is judged how stands in ``findings``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from tidelog.cli.connecting import json_option, run
from tidelog.cli.failures import Failed
from tidelog.cli.findings import Facts, Finding, Level, judge
from tidelog.cli.output import print_json, say
from tidelog.client.admin.configs import describe_topics_configs
from tidelog.client.admin.groups import list_groups
from tidelog.client.admin.nodes import describe_cluster, describe_condition, describe_log_dirs
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.group_offsets import committed_offsets
from tidelog.metadata.sqlite import backup as backup_store
from tidelog.metadata.store import StoreRefused

GROUPS_LOOKED_AT = 1_000
"""Groups whose lag is asked for: each costs a request."""

MINIMUM = "min.insync.replicas"

AT_ONCE = 16
"""Requests of one kind that are under way at the same time."""

_MARKS = {Level.GOOD: "ok  ", Level.NOTICE: "note", Level.BAD: "BAD "}


@click.group("doctor", invoke_without_command=True)
@click.option("--bootstrap-server", metavar="HOST:PORT,...", help="Any brokers of the cluster.")
@click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Properties file for the client.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    bootstrap_server: str | None,
    command_config: Path | None,
    as_json: bool,
) -> None:
    """Say what is wrong with a cluster and what to do. Exit status 1 when something is."""
    if context.invoked_subcommand is not None:
        return
    if bootstrap_server is None:
        raise click.MissingParameter(
            ctx=context, param_type="option", param_hint="--bootstrap-server"
        )
    facts = run(bootstrap_server, look, command_config=command_config)
    findings = judge(facts)
    is_bad = any(finding.level is Level.BAD for finding in findings)
    if as_json:
        print_json(
            {
                "cluster_id": facts.cluster_id,
                "healthy": not is_bad,
                "findings": [
                    {"level": f.level.value, "what": f.what, "advice": f.advice} for f in findings
                ],
                "condition": facts.condition,
            }
        )
    else:
        _print(facts, findings)
    if is_bad:
        raise click.exceptions.Exit(1)


def _print(facts: Facts, findings: list[Finding]) -> None:
    say(f"Cluster {facts.cluster_id}, seen through {len(facts.brokers)} broker(s)")
    for finding in findings:
        say(f"{_MARKS[finding.level]}  {finding.what}")
        if finding.advice:
            say(f"      -> {finding.advice}")


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--store",
    required=True,
    metavar="sqlite:PATH",
    help="The store, as metadata.store of the controller's file names it.",
)
def backup(file: Path, store: str) -> None:
    """Copy a SQLite metadata store to FILE, also while its controller runs."""
    try:
        backup_store(store.removeprefix("sqlite:"), str(file))
    except StoreRefused as error:
        raise Failed(str(error)) from None
    say(f"Copied {store} to {file}.")


async def look(cluster: Cluster) -> Facts:
    """Ask the cluster everything that ``judge`` wants to know."""
    described = await describe_cluster(cluster)
    view = await cluster.all_topics()
    configs = await describe_topics_configs(cluster, sorted(view.topics), [MINIMUM])
    minimums = {
        name: int(entry.value)
        for name, entries in configs.items()
        if not isinstance(entries, Refused)
        for entry in entries
        if entry.name == MINIMUM and entry.value
    }
    nodes = [broker.node_id for broker in described.brokers]
    dirs = await _each(nodes, lambda node_id: describe_log_dirs(cluster, node_id))
    groups = (await list_groups(cluster))[:GROUPS_LOOKED_AT]
    ids = [group.group_id for group in groups]
    committed = await _each(ids, lambda group: committed_offsets(cluster, group))
    return Facts(
        cluster_id=described.cluster_id,
        controller_id=described.controller_id,
        brokers=described.brokers,
        topics=view.topics,
        minimum_isr=minimums,
        log_dirs=dict(zip(nodes, dirs, strict=True)),
        groups=groups,
        committed=dict(zip(ids, committed, strict=True)),
        condition=await describe_condition(cluster),
    )


async def _each(items: list[Any], ask: Any) -> list[Any]:
    """Ask for each item, some at once; an item that fails has its error as its answer."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(item: Any) -> Any:
        async with places:
            try:
                return await ask(item)
            except ClientError as error:
                return error

    return list(await asyncio.gather(*(one(item) for item in items)))
