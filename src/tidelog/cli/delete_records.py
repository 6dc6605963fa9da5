"""The ``tidelog delete-records`` command: removes the records of partitions below an offset.

Owns its flags, Kafka's JSON of offsets and the output. Not the request: see
``client.admin.topics``.
"""

from __future__ import annotations

import json
from typing import Any

import click

from tidelog.cli.connecting import (
    EXISTING_FILE,
    CommonOptions,
    cluster_options,
    exactly_one_of,
    json_option,
    run,
    text_of,
)
from tidelog.cli.failures import explain
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import print_json, print_table
from tidelog.cli.refusal import Failed, WrongUsage, print_error
from tidelog.client.admin.topics import HIGH_WATERMARK, delete_records
from tidelog.client.errors import ClientError, Refused
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

FILE = "--offset-json-file"

FORM = '{"partitions": [{"topic": "t", "partition": 0, "offset": 5}], "version": 1}'

_ADVICE = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "name an offset up to it, or -1 for all records below it",
    ErrorCode.POLICY_VIOLATION: "its cleanup.policy is compact alone: send tombstones "
    "for its keys, or add delete to its cleanup.policy with `tidelog configs`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "an internal topic keeps its records: name another topic",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`tidelog topics --describe` lists the partitions",
}

_SAID = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is above the high watermark",
    ErrorCode.POLICY_VIOLATION: "its records are not deleted by offset",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic is internal",
}


@click.command("delete-records")
@cluster_options
@click.option(FILE, type=EXISTING_FILE, help=FORM)
@topic_option(help="The topic, with --partition and --offset.")
@click.option("--partition", type=click.IntRange(min=0), help="The partition of --topic.")
@click.option(
    "--offset",
    type=click.IntRange(min=HIGH_WATERMARK),
    help="Delete the records below this offset; -1: all up to the high watermark.",
)
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """Delete the records of partitions that lie below an offset, on all replicas."""
    source = exactly_one_of(flags, "--topic", FILE)
    given = [flags[name] is not None for name in ("partition", "offset")]
    if given != [source == "--topic"] * 2:
        raise WrongUsage("--topic, --partition and --offset go together, and with nothing else")
    if source == "--topic":
        wanted = {TopicPartition(flags["topic"], flags["partition"]): flags["offset"]}
    else:
        wanted = read_offsets(text_of(flags["offset_json_file"]))
    failed: dict[TopicPartition, ClientError] = {}
    deleted = run(
        asked,
        lambda cluster: delete_records(cluster, wanted, failed),
        awaited="the leaders of the partitions",
    )
    _show(deleted, failed, flags["as_json"])
    if failed:
        for tp in sorted(failed)[:-1]:
            print_error(explained(tp, failed[tp]))
        last = max(failed)
        raise Failed(explained(last, failed[last]))


def _show(
    deleted: dict[TopicPartition, int], failed: dict[TopicPartition, ClientError], as_json: bool
) -> None:
    if as_json:
        refused = [
            {
                **tp._asdict(),
                "error": error.code.name if isinstance(error, Refused) else type(error).__name__,
                "reason": explained(tp, error),
            }
            for tp, error in sorted(failed.items())
        ]
        rows = [{**w._asdict(), "low_watermark": low} for w, low in sorted(deleted.items())]
        print_json({"deleted": rows, "refused": refused})
    elif deleted:
        print_table(
            ["Topic", "Partition", "LowWatermark"],
            [[*tp, low] for tp, low in sorted(deleted.items())],
            right=["Partition", "LowWatermark"],
        )


def explained(tp: TopicPartition, error: ClientError) -> str:
    """Return one line: why the records of a partition were not deleted, and what to do."""
    if not isinstance(error, Refused):
        return f"{tp}: {error}"
    reason = error.reason or _SAID.get(error.code, "")
    return explain(Refused(error.code, str(tp), reason), _ADVICE.get(error.code, ""))


def read_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse Kafka's JSON of offsets. Raises WrongUsage for another form or a repetition."""
    try:
        given = json.loads(text)
        rows, version = given["partitions"], given.get("version", 1)
        offsets = [(TopicPartition(x["topic"], x["partition"]), x["offset"]) for x in rows]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WrongUsage(f"{FILE} takes JSON of the form {FORM}") from None
    if version != 1:
        raise WrongUsage(f"{FILE} has version {version!r}: only version 1 is known")
    for tp, offset in offsets:
        if type(tp.topic) is not str or {type(tp.partition), type(offset)} != {int}:
            raise WrongUsage(f"{FILE} takes JSON of the form {FORM}")
        if tp.partition < 0 or offset < HIGH_WATERMARK:
            raise WrongUsage(f"{FILE}: {tp} has offset {offset}: use 0 or more, or -1 for all")
    if not offsets:
        raise WrongUsage(f"{FILE} takes JSON of the form {FORM}")
    if len(dict(offsets)) != len(offsets):
        raise WrongUsage(f"{FILE} names a partition more than once")
    return dict(offsets)
