"""The options that name topics and groups, and the names that a shell completes after them.

The cluster is asked for these, for a moment at most. Not what a pattern matches: see `topics`. Not
what a misspelled name may mean: see `suggestions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from tidelog.cli import connecting
from tidelog.cli.refusal import Failed
from tidelog.cli.suggestions import group_names, topic_names
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError

Function = TypeVar("Function", bound=Callable[..., Any])

COMPLETE_WITHIN_S = 1.5
"""How long a shell waits for names; then it completes none."""

MOST_COMPLETED = 1_000
"""The most names that a shell gets."""


def topic_option(**settings: Any) -> Callable[[Function], Function]:
    """Add ``--topic`` to a command."""
    return click.option("-t", "--topic", shell_complete=complete_topics, **settings)


def group_option(**settings: Any) -> Callable[[Function], Function]:
    """Add ``--group`` to a command."""
    return click.option("--group", shell_complete=complete_groups, **settings)


def complete_topics(context: click.Context, _parameter: Any, begun: str) -> list[str]:
    """Return the topics of the cluster whose names continue the last one in ``begun``."""
    earlier, comma, last = begun.rpartition(",")
    names = _names_in_time(context, topic_names)
    return [f"{earlier}{comma}{name}" for name in _beginning(names, last)]


def complete_groups(context: click.Context, _parameter: Any, begun: str) -> list[str]:
    """Return the groups of the cluster whose names continue ``begun``."""
    return _beginning(_names_in_time(context, group_names), begun)


def _beginning(names: list[str], begun: str) -> list[str]:
    return [name for name in names if name.startswith(begun)][:MOST_COMPLETED]


def _names_in_time(
    context: click.Context, ask: Callable[[Cluster], Awaitable[list[str]]]
) -> list[str]:
    """Return names of the cluster that the options before name; none if it cannot be asked now."""
    given = connecting.CommonOptions.of(context)

    async def work(cluster: Cluster) -> list[str]:
        async with asyncio.timeout(COMPLETE_WITHIN_S):
            await cluster.open(int(COMPLETE_WITHIN_S * 1000))
            return await ask(cluster)

    try:
        return connecting.run(given, work, knowing=False)
    except (ClientError, Failed, OSError, TimeoutError, ValueError):
        # A shell that completes a word has no place for an error.
        return []
