"""The ``tidelog doctor unclean`` command: the records that unclean elections lost (KIP-704).

Owns the table and its text. Not the data: the controller collects it from replicas that truncated
their logs. A replica that has not returned yet has not reported what it held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from tidelog.cli.connecting import CONTROLLER, CommonOptions, run, subcommand_options
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import note, print_json, print_table, say
from tidelog.cli.refusal import Failed
from tidelog.cli.topics import topic_pattern
from tidelog.client.admin.nodes import CONDITION_TIMEOUT_MS, describe_unclean

COLUMNS = ("Partition", "Leader", "Epoch", "LogEnd", "Handling", "Lost", "Offsets", "Epochs", "Had")
NUMBERS = ("Leader", "Epoch", "Lost")


@click.command("unclean", short_help="List unclean elections and what they lost.")
@subcommand_options
@topic_option(help="A name, a list with commas, or a pattern; without it all topics.")
def command(asked: CommonOptions, /, topic: str | None, **_flags: Any) -> None:
    """List unclean elections: where the new leader's log ended, and which records were lost.

    Offsets and leader epochs come from the replicas that had to truncate them.
    """
    wanted = topic_pattern(topic)
    answers = run(
        asked,
        describe_unclean,
        awaited=CONTROLLER,
        at_most_s=CONDITION_TIMEOUT_MS / 1000,
    )
    if answers is None:
        raise Failed("this cluster keeps no record of unclean elections: it does not run tidelog")
    elections = [election for election in answers if wanted.fullmatch(election["topic"])]
    if asked.as_json:
        print_json(elections)
        return
    if not elections:
        say("No unclean election is on record.")
        return
    shown = [election for election in elections if not lost_nothing(election)]
    if len(shown) < len(elections):
        say(f"Without a loss: {len(elections) - len(shown)} unclean elections (--json lists them).")
    if shown:
        print_elections(shown)
    for line in missing(shown):
        note(line)


def print_elections(elections: Sequence[dict[str, Any]]) -> None:
    """Print the rows of elections."""
    rows = [row for election in elections for row in rows_of(election)]
    print_table(COLUMNS, rows, right=NUMBERS, spare=["Had", "Epochs"], folds=["Had"])


def lost_nothing(election: dict[str, Any]) -> bool:
    """Whether the election is handled, all replicas have returned, and none had to cut a record."""
    is_settled = election["handled"] and not election["missing_replicas"]
    return is_settled and not election["lost_offsets"]


def rows_of(election: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the rows of an election: one for each lost range, or a single row without one."""
    end = election["log_end_offset"]
    epoch = election["log_end_epoch"]
    first = [
        f"{election['topic']}-{election['partition']}",
        election["leader"],
        election["leader_epoch"],
        None if end is None else f"{end} (epoch {epoch})" if epoch >= 0 else f"{end}",
        "finished" if election["handled"] else "open",
        election["lost_offsets"],
    ]
    if not election["lost"]:
        yield [*first, None, None, None]
    for number, lost in enumerate(election["lost"]):
        yield [
            *(first if number == 0 else [""] * len(first)),
            f"{lost['from_offset']}-{lost['to_offset'] - 1}",
            ",".join(map(str, lost["epochs"])),
            ",".join(map(str, lost["replicas"])),
        ]


def missing(elections: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each set of brokers that have not returned to report what they held."""
    by_brokers: dict[tuple[int, ...], dict[str, None]] = {}
    for election in elections:
        name = f"{election['topic']}-{election['partition']}"
        by_brokers.setdefault(tuple(election["missing_replicas"]), {})[name] = None
    return [
        f"not reported yet: records of {', '.join(names)} that only broker "
        f"{', '.join(map(str, brokers))} held"
        for brokers, names in sorted(by_brokers.items())
        if brokers
    ]
