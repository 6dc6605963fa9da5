"""``tidelog doctor restored``: a metadata store that has gone back in time, and how to go on.

Owns the words; what is judged and done is the controller's.
"""

from __future__ import annotations

from typing import Any

import click

from tidelog.cli.connecting import Asked, run, subcommand_options
from tidelog.cli.failures import Failed
from tidelog.cli.output import print_json, print_table, say
from tidelog.client.admin.restored import restored_store

COLUMNS = ("Topic", "TopicId", "Partition", "Broker", "Epoch", "LogEnd")
NUMBERS = ("Partition", "Broker", "Epoch", "LogEnd")


@click.command("restored", short_help="Go on with a metadata store restored from a backup.")
@subcommand_options
@click.option("--accept", is_flag=True, help="Go on with the store as it is.")
@click.option(
    "--without",
    metavar="ID,...",
    default="",
    help="Brokers that will not come back: they are not waited for.",
)
@click.pass_context
def command(context: click.Context, /, accept: bool, without: str, **_flags: Any) -> None:
    """Show what a restored metadata store does not know; with --accept go on with it.

    While a store has gone back in time no broker is commanded and nothing is deleted. With --accept
    the replica with the newest data leads each partition, flagged as unclean. Replicas of topics
    that the store does not know are set aside and removed after stale.partition.delete.delay.ms:
    copy what you need first. Exit status 1 when the store has gone back and is not accepted.
    """
    asked = Asked.of(context)
    brokers = _numbers(without)
    report = run(
        asked.bootstrap_server,
        lambda cluster: restored_store(cluster, accept=accept, without=brokers),
        command_config=asked.command_config,
    )
    if report is None:
        raise Failed("this cluster's controller knows nothing of restored stores")
    if asked.as_json:
        print_json({**report, "accepted": accept})
    else:
        _print(report, accepted=accept)
    if report["went_back"] is not None and not accept:
        raise click.exceptions.Exit(1)


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"{text!r} is no list of broker ids", param_hint="--without")
    return [int(word) for word in words]


def _print(report: dict[str, Any], *, accepted: bool) -> None:
    if report["went_back"] is None:
        say("The metadata store has not gone back in time.")
        return
    say(report["went_back"])
    if report["brokers_missing"]:
        say(f"Not registered since: brokers {', '.join(map(str, report['brokers_missing']))}.")
    elsewhere = [x for x in report["partitions"] if x["replicas"]]
    nowhere = [x for x in report["partitions"] if not x["replicas"]]
    if elsewhere:
        named = ", ".join(f"{x['topic']}-{x['partition']}" for x in elsewhere)
        say(f"Replicas on brokers that the store does not assign, which will join: {named}.")
    if nowhere:
        named = ", ".join(f"{x['topic']}-{x['partition']}" for x in nowhere)
        say(f"Nobody holds a replica of: {named}.")
    if report["unknown"]:
        say("Of topics that the store does not know, replicas hold:")
        print_table(COLUMNS, list(_rows(report["unknown"])), right=NUMBERS)
    if accepted:
        say("Accepted: brokers register again; see `tidelog doctor` and `tidelog doctor unclean`.")
    else:
        say("To go on with it: tidelog doctor restored --accept")


def _rows(unknown: list[dict[str, Any]]) -> list[list[Any]]:
    return [
        [
            topic["topic"],
            topic["topic_id"],
            each["partition"],
            each["broker"],
            each["leader_epoch"],
            each["end_offset"],
        ]
        for topic in unknown
        for each in topic["replicas"]
    ]
