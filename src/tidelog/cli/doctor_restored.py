"""The ``tidelog doctor restored`` command: a metadata store that was restored from a backup.

Owns the text. Not the decisions: the controller finds out what the store lacks, and acts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from tidelog.cli.connecting import SECRET_FILE, CommonOptions, run, subcommand_options
from tidelog.cli.output import print_json, print_table, say
from tidelog.cli.refusal import Failed
from tidelog.client.admin.restored import restored_store

COLUMNS = ("Topic", "TopicId", "Partition", "Broker", "Epoch", "LogEnd")
NUMBERS = ("Partition", "Broker", "Epoch", "LogEnd")


@click.command("restored", short_help="Continue with a metadata store restored from a backup.")
@subcommand_options
@click.option("--accept", is_flag=True, help="Continue with the store as it is.")
@click.option(
    "--without",
    metavar="ID,...",
    default="",
    help="Brokers that will not return: do not wait for them.",
)
@click.option(
    "--drop-unknown",
    "dropped",
    metavar="NAME",
    multiple=True,
    help="With --accept: discard this TOPIC, topic id or TOPIC-PARTITION, which the store does not "
    "know. May be repeated.",
)
@click.option(
    "--cluster-secret-file",
    "secret_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The servers' cluster.secret.file, which the controller requires for this command.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    accept: bool,
    without: str,
    dropped: tuple[str, ...],
    secret_file: str | None,
    **_flags: Any,
) -> None:
    """Show what a restored metadata store does not know; with --accept continue with it.

    Until a store that has gone back in time is accepted, the controller sends brokers no commands
    and deletes nothing. With --accept the replica with the newest data leads each partition, and
    the election is recorded as unclean. Topics and partitions that the store does not know are
    restored from their replicas, except those named with --drop-unknown: these are quarantined, and
    removed after stale.partition.delete.delay.ms. Start every broker first, also those that joined
    after the backup. Exit status 1 when the store has gone back and is not accepted.
    """
    asked = CommonOptions.of(context)
    brokers = _numbers(without)
    if dropped and not accept:
        raise click.UsageError("--drop-unknown goes with --accept")

    def ask(*, accept: bool) -> dict[str, Any]:
        report = run(
            asked.bootstrap_server,
            lambda cluster: restored_store(
                cluster, accept=accept, without=brokers, drop_unknown=dropped if accept else ()
            ),
            command_config=asked.command_config,
            properties={SECRET_FILE: secret_file} if secret_file else {},
            knowing=False,
        )
        if report is None:
            raise Failed("this cluster's controller does not support restored stores")
        return report

    report = ask(accept=False)
    if accept and report["went_back"] is not None:
        if not report.get("unknown_comes_back"):
            raise Failed(
                "the controller is older than this command, and would discard what its store does "
                "not know: upgrade the controller first"
            )
        report = ask(accept=True)
    elif accept:
        # The controller refuses, with the reason.
        ask(accept=True)
    if asked.as_json:
        print_json({**report, "accepted": accept})
    else:
        _print(report, accepted=accept)
    if report["went_back"] is not None and not accept:
        raise click.exceptions.Exit(1)


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"{text!r} is not a list of broker ids", param_hint="--without")
    return [int(word) for word in words]


def _print(report: dict[str, Any], *, accepted: bool) -> None:
    if report["went_back"] is None:
        say("The metadata store has not gone back in time.")
        return
    say(report["went_back"])
    if report["brokers_missing"]:
        say(f"Not registered yet: brokers {', '.join(map(str, report['brokers_missing']))}.")
    # The store may not know a broker that has yet to start: the operator sees which ones are there.
    if present := report.get("brokers_heard"):
        named = ", ".join(map(str, present))
        say(
            f"Registered: brokers {named}. Start every other broker that has its disk before "
            "--accept: what only they hold is quarantined and removed after it."
        )
    elsewhere = [x for x in report["partitions"] if x["replicas"]]
    nowhere = [x for x in report["partitions"] if not x["replicas"]]
    if elsewhere:
        named = ", ".join(f"{x['topic']}-{x['partition']}" for x in elsewhere)
        say(f"Replicas on brokers that the store does not assign; they will be added: {named}.")
    if nowhere:
        named = ", ".join(f"{x['topic']}-{x['partition']}" for x in nowhere)
        say(f"No broker holds a replica of: {named}.")
    unknown = [x for x in report["unknown"] if not x["is_being_deleted"]]
    if unknown:
        say("The store does not know these replicas:")
        print_table(COLUMNS, list(_rows(unknown)), right=NUMBERS, spare=["Epoch"])
        _print_configs([x for x in unknown if not x.get("is_known")])
    if deleted := [x for x in report["unknown"] if x["is_being_deleted"]]:
        say(f"Being deleted: {', '.join(x['topic'] for x in deleted)}.")
    # Controllers of older versions say nothing of resizes.
    _print_resized(report.get("resized", ()))
    if accepted:
        if given_up := report.get("given_up"):
            say(f"Discarded: {', '.join(given_up)}.")
        say("Accepted: brokers register again; see `tidelog doctor` and `tidelog doctor unclean`.")
    else:
        if unknown:
            say("They will be restored; to discard one: --drop-unknown TOPIC or TOPIC-PARTITION.")
        say("To continue with this store: tidelog doctor restored --accept")


def _print_resized(topics: Iterable[dict[str, Any]]) -> None:
    for topic in topics:
        name = topic["topic"]
        say(
            f"{name} will have {topic['count']} partitions, as after its resize "
            f"{topic['resize_epoch']}; the newest one that was begun is "
            f"{topic['newest_resize_epoch']}."
        )
        if topic["retired"]:
            say(f"Retired partitions of {name}: {', '.join(map(str, topic['retired']))}.")
        if topic["lost"]:
            say(
                f"LOST partitions of {name}, no broker reports a replica: "
                f"{', '.join(map(str, topic['lost']))}. They begin again, empty."
            )


def _print_configs(topics: list[dict[str, Any]]) -> None:
    for topic in topics:
        configs = ", ".join(f"{name}={value}" for name, value in sorted(topic["configs"].items()))
        if configs:
            say(f"{topic['topic']} will be restored with {configs}.")
        else:
            say(
                f"{topic['topic']} will be restored with default configurations: no broker has "
                "others. Set them with `tidelog configs` afterwards."
            )


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
