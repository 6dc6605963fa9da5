"""The command line of the jobs: `python -m tidelog.pipeline JOB ...`.

Owns the arguments and the exit status. 0: done, and right; 1: the audit found faults; 2: the job
failed, and the last line on standard error says why (the lines above are Spark's log); 3: the audit
found no fault, but records were skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from tidelog.pipeline.errors import PipelineError

_FAILED = 2
_INTERRUPTED = 130  # a shell's status for what Ctrl-C ended

# The packages of the extra `spark`; the base install has the server, the commands, the client.
_EXTRA = frozenset({"numpy", "pandas", "pyarrow", "py4j", "pyspark"})

# No index has the package: whoever takes its name on one must not be installed.
_INSTALL = (
    "install the extra `spark` of a checkout or its wheel by its path, as in "
    "pip install '/path/to/tidelog[spark]' (docs/operating/pipeline.md)"
)

# Options of the source that a job decides itself (in lower case), and what to use instead.
_OF_BOTH = {
    "kafka.bootstrap.servers": "use --bootstrap-server",
    **dict.fromkeys(("columns", "includeheaders", "includeepoch"), "a lake has all columns"),
}
_OF_ARCHIVE = {
    **_OF_BOTH,
    **dict.fromkeys(("subscribe", "assign"), "use --topic"),
    "subscribepattern": "use --topic-pattern",
    "startingoffsets": "use --starting-offsets",
    "onbadrecord": "use --on-bad-record",
}
_OF_AUDIT = {
    **_OF_BOTH,
    **dict.fromkeys(
        (
            *("subscribe", "subscribepattern", "assign"),
            *("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets"),
            *("endingtimestamp", "endingoffsetsbytimestamp", "endingoffsets"),
        ),
        "the lake says what is compared",
    ),
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Jobs over topics of tidelog or Apache Kafka, on Spark."""


def _source_options(function: Any) -> Any:
    """The arguments that every job has."""
    for option in (
        click.option(
            "-b",
            "--bootstrap-server",
            required=True,
            envvar="TIDELOG_BOOTSTRAP_SERVER",
            help="host:port,…",
        ),
        click.option("--lake", required=True, help="Folder of the Parquet lake."),
        click.option("--master", help="Spark master; default local[*], or spark-submit's."),
        click.option(
            "--json", "as_json", is_flag=True, help="JSON, and nothing else, on standard output."
        ),
        click.option("--json-file", metavar="FILE", help="JSON into this file."),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="NAME=VALUE",
            help="An option of the Spark source, such as kafka.isolation.level=read_committed.",
        ),
        click.option(
            "--conf", "conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting."
        ),
    ):
        function = option(function)
    return function


@main.command(short_help="Archive topics to Parquet files.")
@_source_options
@click.option("-t", "--topic", "topics", multiple=True, help="May be repeated.")
@click.option("--topic-pattern", default="", metavar="REGEX", help="Instead: topics by whole name.")
@click.option("--drop", "drop", multiple=True, help="A topic of the lake to archive no longer.")
@click.option("--checkpoint", help="Spark's checkpoint; default LAKE/_checkpoint.")
@click.option("--once", is_flag=True, help="Archive the records that exist now, then exit.")
@click.option(
    "--adopt",
    is_flag=True,
    help="Continue at the end of the lake if its checkpoint is lost, older or incomplete.",
)
@click.option("--trigger", "trigger_ms", default="5s", show_default=True, help="Time per batch.")
@click.option("--max-offsets-per-trigger", type=click.IntRange(min=1))
@click.option(
    "--roll-bytes",
    default=256 << 20,
    show_default=True,
    type=click.IntRange(min=1),
    help="Start a new data file after this many bytes of records.",
)
@click.option(
    "--starting-offsets",
    default="earliest",
    show_default=True,
    help="For a new lake: earliest, latest, group, or JSON by topic and partition.",
)
@click.option(
    "--on-bad-record",
    default="fail",
    show_default=True,
    type=click.Choice(["fail", "quarantine"]),
    help="What cannot be read: stop, or keep its bytes and the reason in a table of its own.",
)
@click.option("--group", help="Commit the progress to this consumer group.")
@click.option(
    "--compression",
    default="zstd",
    show_default=True,
    type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]),
)
def archive(**given: Any) -> None:
    """Archive topics to Parquet files, each record exactly once; resumes where it stopped."""
    from tidelog.pipeline.jobs import archive as job
    from tidelog.pipeline.json_output import json_output
    from tidelog.pipeline.options import parse_duration_ms
    from tidelog.pipeline.progress import reporter
    from tidelog.pipeline.session import session

    if bool(given["topics"]) == bool(given["topic_pattern"]):
        raise PipelineError("name the topics: either with --topic or with --topic-pattern")
    options = _source(given["options"], _OF_ARCHIVE)
    options["startingOffsets"] = given["starting_offsets"]
    if given["max_offsets_per_trigger"]:
        options["maxOffsetsPerTrigger"] = str(given["max_offsets_per_trigger"])
    if given["group"]:
        options["kafka.group.id"] = given["group"]
    settings = job.ArchiveSettings(
        bootstrap_servers=given["bootstrap_server"],
        topics=given["topics"],
        lake=given["lake"],
        checkpoint=given["checkpoint"],
        once=given["once"],
        adopt=given["adopt"],
        roll_bytes=given["roll_bytes"],
        on_bad_record=given["on_bad_record"],
        pattern=given["topic_pattern"],
        drop=tuple(",".join(given["drop"]).split(",")),
        trigger_ms=parse_duration_ms("--trigger", given["trigger_ms"]),
        compression=given["compression"],
        options=options,
    )
    _check(settings.bootstrap_servers, options, "stream", settings.subscription)
    with json_output(given["as_json"], given["json_file"]) as out:
        bar = reporter("archive", "archived", out)
        with session("tidelog archive", given["master"], _pairs("--conf", given["conf"])) as spark:
            done = job.run(spark, settings, bar)
        bar.say(
            f"{done['rows']:,} records in {done['files']} files,"
            f" {done['new_rows']:,} of them new, up to batch {done['batch']}"
        )
        if done["bad"]:
            bar.say(f"{done['bad']:,} bad records are in {given['lake']}/_bad, with the reasons")


@main.command(short_help="Compare a lake with its live topics.")
@_source_options
@click.option(
    "--keys",
    default="any",
    show_default=True,
    type=click.Choice(["any", "murmur2"]),
    help="The partitioner of the producers: any, or Kafka's own.",
)
@click.option("--sequence", metavar="FIELD", help="JSON field that never decreases for a key.")
@click.option("--full", is_flag=True, help="Also compare what earlier audits have compared.")
@click.option("--complete", is_flag=True, help="Require that the lake has every record of the log.")
@click.option("--report", metavar="FOLDER", help="Write report.txt, report.json, report.html.")
def audit(**given: Any) -> int:
    """Compare a lake with its live topics, record by record: records since the last audit.

    Exit status 0: right; 1: faults were found; 2: the audit failed; 3: no fault, but records were
    skipped, or may have been.
    """
    from tidelog.pipeline.audit.gather import whole_lake
    from tidelog.pipeline.jobs import audit as job
    from tidelog.pipeline.json_output import json_output
    from tidelog.pipeline.session import session

    options = _source(given["options"], _OF_AUDIT)
    settings = job.AuditSettings(
        bootstrap_servers=given["bootstrap_server"],
        lake=given["lake"],
        sequence=given["sequence"],
        complete=given["complete"],
        report=given["report"],
        options=options,
        keys=given["keys"],
        full=given["full"],
    )
    _check(settings.bootstrap_servers, options, "batch", {"subscribe": "any"})
    whole_lake(settings.lake)  # not after the seconds that Spark takes to start
    with json_output(given["as_json"], given["json_file"]) as out:
        with session("tidelog audit", given["master"], _pairs("--conf", given["conf"])) as spark:
            done = job.run(spark, settings)
        if out is None or given["json_file"]:
            click.echo(done.text)
        if out is not None:
            print(done.json, file=out)
    return done.status


@main.command()
def file() -> None:
    """Print the file to give to spark-submit."""
    from importlib.resources import files

    click.echo(str(files("tidelog.pipeline.submit") / "tidelog_job.py"))


def _check(
    servers: str, options: dict[str, str], mode: str, subscription: Mapping[str, str]
) -> None:
    """Refuse wrong options before Spark starts, because that takes seconds."""
    from tidelog.pipeline.options import Mode, parse

    named = {"kafka.bootstrap.servers": servers, **subscription, **options}
    parse(named, Mode(mode))


def _source(texts: tuple[str, ...], owned: Mapping[str, str]) -> dict[str, str]:
    """The options for the source. Raises PipelineError for one that is the job's own."""
    options = _pairs("--option", texts)
    for name in options:
        if name.lower() in owned:
            raise PipelineError(f"--option {name} cannot be given: {owned[name.lower()]}")
    return options


def _pairs(name: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise PipelineError(f"{name} {text!r} is not NAME=VALUE")
        pairs[key] = value
    return pairs


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit status."""
    from tidelog.client.errors import ClientError

    try:
        status = main.main(arguments, prog_name="python -m tidelog.pipeline", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return _FAILED
    except (PipelineError, ClientError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        print(f"error: {error.name} is not installed: {_INSTALL}", file=sys.stderr)
        return _FAILED
    except click.Abort:
        print("error: stopped before the job started", file=sys.stderr)
        return _INTERRUPTED
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(run())
