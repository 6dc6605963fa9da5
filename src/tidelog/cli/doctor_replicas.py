"""The ``tidelog doctor replicas`` command: compares all replicas up to the high watermark.

Owns the choice of partitions, the progress bar and the text. Not the comparison: see
``client.replicas``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from tidelog.cli.connecting import CommonOptions, run, subcommand_options
from tidelog.cli.findings import readable
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import note, print_json, print_table, say
from tidelog.cli.topics import no_topic, topic_pattern
from tidelog.client.admin.configs import describe_topics_configs, values_of
from tidelog.client.admin.nodes import describe_log_dirs
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.metadata import Topic
from tidelog.client.replicas.comparing import Comparison, compare_replicas
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import counted, named

CLEANUP = "cleanup.policy"

AT_ONCE = 4
"""Partitions that are compared at the same time."""

Advance = Callable[[int], None]


@click.command("replicas", short_help="Compare the bytes of all replicas.")
@subcommand_options
@topic_option(help="A name, a list with commas, or a pattern; without it all topics.")
def command(asked: CommonOptions, /, topic: str | None, **_flags: Any) -> None:
    """Compare the bytes of all replicas up to the high watermark; print where they first differ.

    Exit status 1 when replicas differ or one could not be read. Compacted topics are compared
    record by record: each replica is cleaned at its own time.
    """
    progress = ReadingProgress()
    compared = run(
        asked,
        lambda cluster: compare(cluster, topic, progress),
        progress=lambda: progress.text,
        says_once=lambda: True,
    )
    if asked.as_json:
        print_json([as_data(one) for one in compared])
    else:
        _print(compared)
    if any(one.difference is not None or one.unread for one in compared):
        raise click.exceptions.Exit(1)


@dataclass(slots=True)
class ReadingProgress:
    """What the command does now, for a line on stderr; "" while there is a bar."""

    text: str = "waiting for the brokers to list their replicas"


async def compare(
    cluster: Cluster, topic: str | None, progress: ReadingProgress
) -> list[Comparison]:
    """Compare the topics that ``topic`` matches. Raises Refused when it matches none."""
    view = await cluster.all_topics()
    wanted = topic_pattern(topic)
    chosen = [listed for name, listed in sorted(view.topics.items()) if wanted.fullmatch(name)]
    if topic is not None and not chosen:
        raise no_topic(topic, view.topics)
    compacted = await _compacted(cluster, chosen)
    sizes = await _sizes(cluster)
    work = [
        (TopicPartition(described.name, index), described.name in compacted)
        for described in chosen
        for index in sorted(described.partitions)
    ]
    places = asyncio.Semaphore(AT_ONCE)
    total = sum(sizes.get(tp, 0) for tp, _ in work)
    many = f"{counted(len(work), 'partition')}, {readable(total)} in all"
    progress.text = "" if sys.stderr.isatty() else f"comparing the replicas of {many}"
    with _bar(total) as advance:

        async def one(tp: TopicPartition, is_compacted: bool) -> Comparison:
            async with places:
                return await compare_replicas(cluster, tp, compacted=is_compacted, progress=advance)

        return list(await asyncio.gather(*(one(tp, compact) for tp, compact in work)))


async def _compacted(cluster: Cluster, topics: list[Topic]) -> set[str]:
    configs = await describe_topics_configs(cluster, [topic.name for topic in topics], [CLEANUP])
    return {name for name, value in values_of(configs, CLEANUP).items() if "compact" in value}


async def _sizes(cluster: Cluster) -> dict[TopicPartition, int]:
    """Return the approximate size of each partition in bytes, only for the progress bar."""
    sizes: dict[TopicPartition, int] = {}
    for node_id in cluster.view.brokers:
        try:
            dirs = await describe_log_dirs(cluster, node_id)
        except ClientError as error:
            note(f"broker {node_id} did not describe its log directories: {error}")
            continue
        for entry in dirs:
            for tp, size in entry.replicas.items():
                sizes[tp] = max(size, sizes.get(tp, 0))
    return sizes


@contextmanager
def _bar(total: int) -> Iterator[Advance]:
    """A progress bar when stderr is a terminal; otherwise nothing."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda size: progress.advance(task, size)


def verdict(comparison: Comparison) -> str:
    """Return the result of one partition in one word."""
    if comparison.difference is not None:
        return "DIFFERENT"
    if comparison.unread:
        return "unread"
    return "behind" if comparison.lagging else "same"


def as_data(comparison: Comparison) -> dict[str, Any]:
    """Return what ``--json`` shows of one partition."""
    return {
        **comparison.partition._asdict(),
        "verdict": verdict(comparison).lower(),
        "replicas": list(comparison.replicas),
        "from_offset": comparison.start,
        "high_watermark": comparison.end,
        "compared_to": comparison.reached,
        "bytes": comparison.size,
        "difference": None
        if comparison.difference is None
        else {
            "offset": comparison.difference.offset,
            "held": {str(broker): what for broker, what in comparison.difference.held.items()},
        },
        "unread": {str(broker): why for broker, why in comparison.unread.items()},
        "behind": {str(broker): mark for broker, mark in comparison.lagging.items()},
    }


def _print(compared: list[Comparison]) -> None:
    print_table(
        ["Partition", "Replicas", "From", "HighWatermark", "ComparedTo", "Size", "Verdict"],
        [
            [
                str(one.partition),
                ",".join(map(str, one.replicas)),
                one.start,
                one.end,
                one.reached,
                readable(one.size),
                verdict(one),
            ]
            for one in compared
        ],
        right=["From", "HighWatermark", "ComparedTo", "Size"],
        spare=["From", "HighWatermark"],
        folds=["Verdict"],
    )
    for one in compared:
        if one.difference is not None:
            say(f"{one.partition}: the replicas differ from offset {one.difference.offset} on")
            for broker, what in sorted(one.difference.held.items()):
                say(f"      broker {broker}: {what}")
            say(
                "      -> keep the disks; the replica that differs from the others is probably the "
                "wrong one: stop its broker, move that partition's directory away, restart it"
            )
        for broker, mark in sorted(one.lagging.items()):
            say(f"{one.partition}: broker {broker} lags, its high watermark is {mark}")
    for (broker, why), places in sorted(_unread(compared).items()):
        many = "a replica" if len(places) == 1 else f"{len(places)} replicas"
        say(f"broker {broker}: {many} could not be read ({named(places)}): {why}")
    wrong = sum(one.difference is not None for one in compared)
    unread = sum(one.difference is None and bool(one.unread) for one in compared)
    total = readable(sum(one.size for one in compared))
    unread_text = f", {unread} could not be compared completely" if unread else ""
    say(f"{len(compared)} partitions, {total} of each replica: {wrong} differ{unread_text}")


def _unread(compared: list[Comparison]) -> dict[tuple[int, str], list[str]]:
    """Return the partitions whose replica on a broker could not be read, by broker and reason."""
    by_reason: dict[tuple[int, str], list[str]] = {}
    for one in compared:
        for broker, why in one.unread.items():
            # The same reason for several partitions differs only in the partition's name.
            reason = why.replace(f"{one.partition} on broker {broker}: ", "")
            by_reason.setdefault((broker, reason), []).append(str(one.partition))
    return by_reason
