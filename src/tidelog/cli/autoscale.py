"""The ``tidelog autoscale`` command: what autoscaling would do now, or would have done.

Owns the options and the output. Not the rule: see ``controller.decisions.autoscaling``; the
controller alone resizes topics, and only those with ``partitions.auto=true``. Unlike those of other
commands, ``--json`` prints one object per line, so that the lines can be added to a recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tidelog.cli.connecting import (
    CONTROLLER,
    EXISTING_FILE,
    CommonOptions,
    cluster_options,
    json_option,
    key_values,
    run,
    text_of,
)
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import note, print_table, say
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.client.admin.nodes import AUTOSCALING, CONDITION_TIMEOUT_MS, describe_condition
from tidelog.client.cluster import Cluster
from tidelog.controller.decisions.autoscaling import MOST_TIME_MS, Settings
from tidelog.controller.decisions.autoscaling_replay import (
    BadLine,
    Recorded,
    Step,
    read_line,
    replayed,
    settings_in,
)
from tidelog.controller.decisions.autoscaling_settings import settings_from
from tidelog.model.configs.resolve import BrokerLayers, check_topic_configs, resolve_topic

COLUMNS = ("Topic", "Partitions", "Bytes/s each", "Decision", "Why")
REPLAYED = ("Time", "Partitions", "Bytes/s each", "Decision", "Why")


@click.command("autoscale")
@cluster_options
@click.option("--dry-run", is_flag=True, help="Print decisions; nothing is changed.")
@topic_option(metavar="NAME", help="Only this topic. Default: all with partitions.auto.")
@click.option(
    "--replay",
    type=EXISTING_FILE,
    help="With --dry-run: decide over recorded rates, one JSON object per line, without a cluster.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="With --replay: the initial count; recorded configurations do not count then.",
)
@click.option(
    "--config",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --replay: a topic configuration; all others have their defaults then.",
)
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """Show what topics with partitions.auto=true would be resized to now, and why."""
    if not flags["dry_run"]:
        raise WrongUsage(
            "the controller resizes topics with partitions.auto=true by itself (tidelog configs); "
            "--dry-run prints what it would do now"
        )
    if flags["replay"] is not None:
        _replay(flags)
        return
    if flags["partitions"] is not None or flags["config"]:
        raise WrongUsage("--partitions and --config go with --replay")
    run(
        asked,
        lambda cluster: _show(cluster, flags["topic"], flags["as_json"]),
        awaited=CONTROLLER,
        at_most_s=CONDITION_TIMEOUT_MS / 1000,
    )


async def _show(cluster: Cluster, topic: str | None, as_json: bool) -> None:
    condition = await describe_condition(cluster, subjects=[AUTOSCALING])
    rows = None if condition is None else condition.get(AUTOSCALING)
    if rows is None:
        raise Failed("the controller does not know autoscaling: it is of an older version")
    if topic is not None:
        rows = [row for row in rows if row["topic"] == topic]
        if not rows:
            raise Failed(
                f"topic {topic} is not resized by its load: set partitions.auto=true and "
                "retired.purge (tidelog configs --alter); or it does not exist, or is being "
                "resized right now"
            )
    if as_json:
        _print_lines(rows)
        return
    if not rows:
        note("no topic has partitions.auto=true")
        return
    print_table(
        COLUMNS,
        [
            (x["topic"], x["count"], _mean(x["rates"]), _decision(x["count"], x["decided"]),
             x["reason"])
            for x in rows
        ],
        right=COLUMNS[1:3],
        folds=COLUMNS[-1:],
    )  # fmt: skip


def _replay(flags: dict[str, Any]) -> None:
    lines = list(_lines(flags["replay"], flags["topic"]))
    if not lines:
        raise WrongUsage(f"{flags['replay']} has no recorded rates")
    settings, count = _settings(lines[0], flags)
    steps = list(replayed(settings, lines, count))
    if flags["as_json"]:
        _print_lines([_as_row(step) for step in steps])
        return
    print_table(
        REPLAYED, [_row(step) for step in _changes(steps)], right=REPLAYED[1:3], folds=REPLAYED[-1:]
    )


def _lines(file: Path, topic: str | None) -> Iterator[Recorded]:
    """Yield the recorded rates of one topic. Raises WrongUsage with the place of a bad line."""
    for number, line in enumerate(text_of(file).splitlines(), 1):
        try:
            parsed = read_line(line)
        except BadLine as error:
            raise WrongUsage(f"{file}, line {number}: {error}") from None
        if parsed is None or (topic is not None and parsed.topic not in ("", topic)):
            continue
        if topic is None and parsed.topic:
            topic = parsed.topic
        yield parsed


def _settings(first: Recorded, flags: dict[str, Any]) -> tuple[Settings, int]:
    """Return the settings of a replay and the count that it begins with. Raises WrongUsage."""
    count = flags["partitions"] or len(first.rates)
    configs = key_values(flags["config"], "--config")
    try:
        recorded = settings_in(first)
    except BadLine as error:
        raise WrongUsage(f"{flags['replay']}: {error}") from None
    if recorded is not None and not configs and flags["partitions"] is None:
        return recorded, count
    if (refused := check_topic_configs(configs)) is not None:
        raise WrongUsage(f"--config: {refused.sentence}")
    return settings_from(resolve_topic(configs, BrokerLayers()).configs, count), count


def _print_lines(rows: list[dict[str, Any]]) -> None:
    """Print each row as one line of JSON: these lines are a recording."""
    for row in rows:
        say(json.dumps(row))


def _changes(steps: list[Step]) -> Iterator[Step]:
    """Yield each step whose cause is another one than that of the step before."""
    last = None
    for step in steps:
        cause = step.verdict.cause, step.seen.count
        if cause != last:
            yield step
        last = cause


def _row(step: Step) -> tuple[Any, ...]:
    seen, verdict = step
    time = datetime.fromtimestamp(max(0, min(seen.at_ms, MOST_TIME_MS)) / 1000, UTC)
    decision = _decision(seen.count, verdict.count)
    mean = _mean(list(seen.rates))
    return f"{time:%Y-%m-%d %H:%M:%S}", seen.count, mean, decision, verdict.reason


def _as_row(step: Step) -> dict[str, Any]:
    seen, verdict = step
    row = {"decided": verdict.count, "cause": verdict.cause.value, "reason": verdict.reason}
    return {**asdict(seen), "rates": list(seen.rates), **row}


def _decision(count: int, decided: int) -> str:
    return "stays" if count == decided else f"{count} -> {decided}"


def _mean(rates: list[int | None]) -> str | None:
    numbers = [rate for rate in rates if rate is not None]
    return f"{sum(numbers) // len(numbers):,}" if numbers else None
