"""The ``tidelog doctor restored`` command: a metadata store that was restored from a backup.

Owns the text. Not the decisions: the controller finds out what the store lacks, and acts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import click

from tidelog.cli.connecting import (
    CONTROLLER,
    SECRET_FILE,
    CommonOptions,
    run,
    subcommand_options,
)
from tidelog.cli.output import print_json, print_table, say
from tidelog.cli.refusal import Failed
from tidelog.client.admin.restored import restored_store
from tidelog.model.topics import INTERNAL_TOPICS

COLUMNS = ("Topic", "TopicId", "Partition", "Broker", "Epoch", "LogEnd")
LATE_COLUMNS = (*COLUMNS, "Accepted")
LATE = {
    "rejoins": "rejoins",
    "comes_back": "comes back",
    "ahead": "stays: more records",
    "in_conflict": "stays: conflict",
}
"""What --accept does with a late replica."""
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
def command(
    asked: CommonOptions,
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
    after the backup. What a broker holds that registers after that is kept and not served: it is
    shown here, and a second --accept takes it back. Exit status 1 when something waits for
    --accept.
    """
    brokers = _numbers(without)
    if dropped and not accept:
        raise click.UsageError("--drop-unknown goes with --accept")

    def ask(*, accept: bool) -> dict[str, Any]:
        report = run(
            asked,
            lambda cluster: restored_store(
                cluster, accept=accept, without=brokers, drop_unknown=dropped if accept else ()
            ),
            properties={SECRET_FILE: secret_file} if secret_file else {},
            knowing=False,
            awaited=CONTROLLER,
        )
        if report is None:
            raise Failed("this cluster's controller does not support restored stores")
        return report

    # Reported first: an older controller would discard what its store does not know.
    report = ask(accept=False)
    is_due = report["went_back"] is not None or bool(report.get("late"))
    if accept and is_due:
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
        _print(report, accepted=accept, again=_again(asked, without, secret_file))
    if is_due and not accept:
        raise click.exceptions.Exit(1)


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"{text!r} is not a list of broker ids", param_hint="--without")
    return [int(word) for word in words]


def _again(asked: CommonOptions, without: str, secret_file: str | None) -> str:
    """Return the command that accepts the store: with the options of this call."""
    given = {
        "--bootstrap-server": asked.bootstrap_server,
        "--command-config": asked.command_config,
        "--cluster-secret-file": secret_file,
        "--without": without,
    }
    words = [part for name, value in given.items() if value for part in (name, str(value))]
    return shlex.join(["tidelog", "doctor", "restored", "--accept", *words])


def _print(report: dict[str, Any], *, accepted: bool, again: str) -> None:
    if report["went_back"] is None and report.get("late"):
        _print_late(report, accepted=accepted, again=again)
        return
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
            "--accept: what only they hold needs a second one."
        )
    elsewhere = [x for x in report["partitions"] if x["replicas"]]
    nowhere = [x for x in report["partitions"] if not x["replicas"]]
    if elsewhere:
        named = ", ".join(f"{x['topic']}-{x['partition']}" for x in elsewhere)
        say(f"Replicas on brokers that the store does not assign; they will be added: {named}.")
    if nowhere:
        named = ", ".join(f"{x['topic']}-{x['partition']}" for x in nowhere)
        say(
            f"No broker here holds a replica of: {named}. They will have no leader until a broker "
            "comes that has one, or tidelog elect-leaders --election-type unclean begins them, "
            "empty."
        )
    unknown = [x for x in report["unknown"] if not x["is_being_deleted"]]
    if unknown:
        say("The store does not know these replicas:")
        _print_unknown(unknown)
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
        say(f"To continue with this store: {again}")


def _print_late(report: dict[str, Any], *, accepted: bool, again: str) -> None:
    """The replicas of brokers that registered after the acceptance."""
    # People's topics first.
    late = sorted(report["late"], key=lambda one: one["topic"] in INTERNAL_TOPICS)
    say(
        f"The store was accepted before it knew these replicas ({len(late)}). They are kept, and "
        "not served:"
    )
    print_table(LATE_COLUMNS, [_late_row(one) for one in late], right=NUMBERS, spare=["Epoch"])
    held = [one for one in late if one["fate"] in ("ahead", "in_conflict")]
    for one in held:
        named = f"{one['topic']}-{one['partition']}"
        if one["fate"] == "ahead":
            way = f"--drop-unknown {named} discards that, and the replica rejoins"
        else:
            way = f"--drop-unknown {named if one['is_known'] else one['topic_id']} discards it"
        say(f"{named} on broker {one['broker']} stays as it is: {one['why']}; {way}.")
    unknown = [one for one in late if one["fate"] == "comes_back" and not one["is_known"]]
    topics = {one["topic_id"]: one for one in unknown}
    _print_configs(list(topics.values()))
    if accepted:
        if given_up := report.get("given_up"):
            say(f"Discarded: {', '.join(given_up)}.")
        say("Accepted: brokers register again; see `tidelog doctor`.")
    elif len(held) < len(late):
        say(f"To take back the others: {again}")


def _late_row(one: dict[str, Any]) -> list[Any]:
    return [
        *(one["topic"], one["topic_id"], one["partition"], one["broker"]),
        *(_epoch(one), one["end_offset"], LATE[one["fate"]]),
    ]


def _epoch(replica: dict[str, Any]) -> int | None:
    """Return the newest leader epoch of a replica's log; None: it is empty."""
    epoch: int = replica["leader_epoch"]
    return epoch if epoch >= 0 else None


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
                f"{', '.join(map(str, topic['lost']))}. They have no leader until tidelog "
                "elect-leaders --election-type unclean begins them, empty."
            )


def _print_unknown(unknown: list[dict[str, Any]]) -> None:
    """Print the replicas of people's topics; of each internal topic, at the end, one line."""
    internal = [x for x in unknown if x["topic"] in INTERNAL_TOPICS]
    others = [x for x in unknown if x["topic"] not in INTERNAL_TOPICS]
    if others:
        print_table(COLUMNS, _rows(others), right=NUMBERS, spare=["Epoch"])
        _print_configs([x for x in others if not x.get("is_known")])
    for topic in internal:
        partitions = {replica["partition"] for replica in topic["replicas"]}
        full = {replica["partition"] for replica in topic["replicas"] if replica["end_offset"] > 0}
        brokers = ", ".join(map(str, sorted({replica["broker"] for replica in topic["replicas"]})))
        say(
            f"{topic['topic']} (internal): {len(partitions)} partitions, {len(full) or 'none'} "
            f"with records, on brokers {brokers}; --json lists them."
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
            replica["partition"],
            replica["broker"],
            _epoch(replica),
            replica["end_offset"],
        ]
        for topic in unknown
        for replica in topic["replicas"]
    ]
