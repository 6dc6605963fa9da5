"""The ``tidelog audit`` command: placement and per-key order of a live topic, from its log alone.

Owns the options, the exit status and the output. Not the rules: see ``auditing.judging``. It reads
every listed partition once, retired ones too, up to the ends that they have at its start. Of a lake
the audit is another one: see ``pipeline.jobs.audit``.
"""

from __future__ import annotations

from typing import Any

import click

from tidelog.cli.auditing.facts import AuditedTopic
from tidelog.cli.auditing.judging import TopicJudge
from tidelog.cli.auditing.reading import AuditProgress, ChangesMeanwhile, read
from tidelog.cli.auditing.snapshot import look_up
from tidelog.cli.auditing.words import COLUMNS, as_json, as_text, rows, why_unproven
from tidelog.cli.connecting import CommonOptions, cluster_options, json_option, run
from tidelog.cli.failures import explain
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import print_json, print_table, say
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.cli.topics import topic_id_text
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.records.record import CorruptRecords

MOST_KEYS = 1_000_000
"""The keys that are remembered, without ``--most-keys``: some 250 MB."""

FOUND_FAULTS = 1


class NoAudit(Failed):
    """The audit could not be made: exit status 2 and this text."""

    exit_code = 2


@click.command("audit")
@cluster_options
@topic_option(required=True, metavar="NAME", help="The topic to read.")
@click.option(
    "--sequence",
    metavar="FIELD",
    help="A field of JSON values that must not decrease for a key, whoever writes it.",
)
@click.option(
    "--ignore-timestamps",
    is_flag=True,
    help="Do not compare the timestamps of a key and producer: the application sets them itself.",
)
@click.option(
    "--placement-only", is_flag=True, help="Do not judge the order of keys; remembers no key."
)
@click.option(
    "--most-keys",
    type=click.IntRange(min=1),
    default=MOST_KEYS,
    show_default=True,
    help="Remember at most this many keys, at about 250 bytes each; more end the audit.",
)
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """Check where the keys of a topic lie, and their order, from its log alone.

    Exit status 0: nothing is wrong; 1: something is; 2: the audit could not be made.
    """
    field = flags["sequence"]
    if field is not None and flags["placement_only"]:
        raise WrongUsage("--sequence judges the order of keys: leave --placement-only out")
    progress = AuditProgress(flags["topic"])
    try:
        audited, judge, changes = run(
            asked,
            lambda cluster: _audit(cluster, flags, progress),
            progress=progress.text,
            says_once=lambda: True,
        )
    except ClientError as error:
        raise NoAudit(explain(error)) from None
    except CorruptRecords as error:
        raise NoAudit(f"{error}; the records after it cannot be read") from None
    except Failed as error:
        raise NoAudit(str(error)) from None
    unproven = why_unproven(judge, field)
    if unproven is not None and not judge.findings.counts:
        raise NoAudit(unproven)
    if flags["as_json"]:
        shown_id = topic_id_text(audited.topic.topic_id)
        print_json(as_json(audited, judge, changes, field, shown_id))
    else:
        print_table(COLUMNS, rows(audited, judge), right=COLUMNS[:-1], folds=COLUMNS[-1:])
        for line in as_text(audited, judge, changes, field):
            say(line)
    if judge.findings.counts:
        raise click.exceptions.Exit(FOUND_FAULTS)


async def _audit(
    cluster: Cluster, flags: dict[str, Any], progress: AuditProgress
) -> tuple[AuditedTopic, TopicJudge, ChangesMeanwhile]:
    audited = await look_up(cluster, flags["topic"])
    judge = TopicJudge(
        audited,
        flags["most_keys"],
        by_time=not flags["ignore_timestamps"],
        by_order=not flags["placement_only"],
        field=flags["sequence"],
    )
    return audited, judge, await read(cluster, audited, judge, progress)
