"""The ``tidelog elect-leaders`` command: elections on request, as kafka-leader-election does.

Owns the options, the JSON file and the output. Not the request: see ``client.admin.elections``.
"""

from __future__ import annotations

import json
from typing import Any

import click

from tidelog.cli.connecting import (
    CONTROLLER,
    EXISTING_FILE,
    CommonOptions,
    cluster_options,
    exactly_one_of,
    json_option,
    run,
    text_of,
)
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import print_json, say
from tidelog.cli.refusal import WrongUsage
from tidelog.client.admin.elections import elect_leaders
from tidelog.client.errors import Refused
from tidelog.model.admin_requests import ElectionType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition


@click.command("elect-leaders")
@cluster_options
@click.option(
    "--election-type",
    type=click.Choice(["preferred", "unclean"], case_sensitive=False),
    required=True,
    help="preferred: the first of each assignment, if in sync. unclean: may lose records.",
)
@topic_option(help="The topic, with --partition.")
@click.option("--partition", type=click.IntRange(min=0), help="The partition of --topic.")
@click.option("--all-topic-partitions", is_flag=True, help="Every partition that needs it.")
@click.option(
    "--path-to-json-file",
    type=EXISTING_FILE,
    help='{"partitions": [{"topic": "t", "partition": 0}, …]}',
)
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """Elect leaders: preferred replicas, or any live replica if none is in sync (unclean)."""
    source = exactly_one_of(flags, "--topic", "--all-topic-partitions", "--path-to-json-file")
    if (flags["partition"] is not None) != (source == "--topic"):
        raise WrongUsage("--topic and --partition go together, and with nothing else")
    wanted: list[TopicPartition] | None = None
    if source == "--topic":
        wanted = [TopicPartition(flags["topic"], flags["partition"])]
    elif source == "--path-to-json-file":
        wanted = read_partitions(text_of(flags["path_to_json_file"]))
    kind = ElectionType[flags["election_type"].upper()]
    outcomes = run(
        asked,
        lambda cluster: elect_leaders(cluster, kind, wanted),
        awaited=CONTROLLER,
    )
    _show(outcomes, kind, flags["as_json"])


def _show(errors: dict[TopicPartition, Refused | None], kind: ElectionType, as_json: bool) -> None:
    needless = ErrorCode.ELECTION_NOT_NEEDED
    elected = sorted(tp for tp, refusal in errors.items() if refusal is None)
    valid = sorted(w for w, refusal in errors.items() if refusal and refusal.code is needless)
    refused = {w: r for w, r in sorted(errors.items()) if r and r.code is not needless}
    if as_json:
        print_json(
            {
                "election_type": kind.name.lower(),
                "elected": [tp._asdict() for tp in elected],
                "not_needed": [tp._asdict() for tp in valid],
                "refused": [
                    {**tp._asdict(), "error": refusal.code.name, "reason": refusal.reason}
                    for tp, refusal in refused.items()
                ],
            }
        )
    else:
        for tp in elected:
            say(f"{tp}: a {kind.name.lower()} leader was elected.")
        for tp in valid:
            say(f"{tp}: no election needed.")
        if not errors:
            say("No partition needs an election.")
    for refusal in refused.values():
        raise refusal


def read_partitions(text: str) -> list[TopicPartition]:
    """Parse Kafka's JSON list of partitions. Raises WrongUsage for another form or a repetition."""
    form = '{"partitions": [{"topic": "t", "partition": 0}]}'
    try:
        rows = json.loads(text)["partitions"]
        partitions = [TopicPartition(row["topic"], row["partition"]) for row in rows]
    except (ValueError, KeyError, TypeError):
        raise WrongUsage(f"--path-to-json-file takes JSON of the form {form}") from None
    sound = all(isinstance(w.topic, str) and isinstance(w.partition, int) for w in partitions)
    if not partitions or not sound:
        raise WrongUsage(f"--path-to-json-file takes JSON of the form {form}")
    if len(set(partitions)) != len(partitions):
        raise WrongUsage("--path-to-json-file names a partition more than once")
    return partitions
