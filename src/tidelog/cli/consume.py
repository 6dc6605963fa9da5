"""The ``tidelog consume`` command: prints records of topics, as kafka-console-consumer does.

Owns the options, where reading begins and when it ends. Not the format of a record: see
``record_lines``.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import click

from tidelog.cli.client_names import check_unused
from tidelog.cli.connecting import (
    CLIENT_PROPERTIES,
    CommonOptions,
    client_options,
    client_properties,
    json_option,
    key_values,
    run,
)
from tidelog.cli.name_options import group_option, topic_option
from tidelog.cli.output import note
from tidelog.cli.record_lines import (
    RecordFormat,
    fill_template,
    format_record,
    format_values,
    parse_template,
    record_as_json,
)
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.cli.reset_plan import parse_datetime_ms
from tidelog.cli.suggestions import why_no_match
from tidelog.cli.topics import topic_pattern
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.fetching.batches import Fetched
from tidelog.client.fetching.fetcher import Fetcher, OffsetReset
from tidelog.client.groups.group_reader import GroupReader
from tidelog.client.offsets import EARLIEST, LATEST, IsolationLevel, list_offsets
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader
from tidelog.records.reader import FastReader
from tidelog.records.record import CorruptRecords, Record

POLL_MS = 500
POLL_BYTES = 4 * 1024 * 1024
_COMMIT = "enable.auto.commit"
_OWN = ("group.id", "group.instance.id", "auto.offset.reset", "isolation.level", _COMMIT)
"""Consumer properties that have an effect here."""

_BACK = re.compile(r"-\d+")
"""An ``--offset`` that counts from the end."""

NEW_PARTITIONS_EVERY_S = 10.0
"""How often topics are checked for new partitions."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The partitions to read, the start offsets, and when to end."""

    topic: str | None
    include: str | None
    group: str | None
    instance_id: str | None
    commits: bool
    partitions: tuple[int, ...]
    """Only these; none for all."""
    offset: int
    """An offset, or EARLIEST or LATEST."""
    last: int | None
    """Start this many records before the end of each partition, instead of at ``offset``."""
    from_time_ms: int | None
    """Start at the first record that is not older, instead of at ``offset``."""
    reset: OffsetReset
    isolation: IsolationLevel
    max_messages: int | None
    timeout_ms: int | None
    form: RecordFormat
    as_json: bool


@click.command("consume")
@client_options("consumer")
@topic_option(help="The topic to read, or several with commas.")
@click.option("--include", help="A regular expression of the topics to read.")
@click.option("--from-beginning", is_flag=True, help="Start at the first record.")
@click.option("--partition", multiple=True, metavar="N,...", help="Read these partitions only.")
@click.option(
    "--offset",
    help="Start here: earliest, latest, -N (N before the end), or a number (with --partition).",
)
@click.option(
    "--from-datetime",
    metavar="TIME",
    help="Start at this time: YYYY-MM-DDTHH:MM:SS, UTC unless it names a zone, or ms since 1970.",
)
@group_option(help="Read as a member of this group and commit its offsets.")
@click.option("--max-messages", type=click.IntRange(min=1), help="Exit after this many records.")
@click.option("--timeout-ms", type=int, help="Exit when no record has arrived for this long.")
@click.option(
    "--property",
    "--formatter-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="print.key, print.value, print.timestamp, print.partition, print.offset, print.epoch, "
    "print.headers, key.separator, line.separator, headers.separator, null.literal",
)
@click.option(
    "--format",
    metavar="TEXT",
    help=r"The format of a record, as in kcat: %t topic, %p partition, %o offset, "
    r"%T time in ms, %k key, %s value, %h headers, %K and %S sizes; \n \t \xNN.",
)
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default=None
)
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """Print the records of topics."""
    common, flags["client_properties"] = client_properties(
        asked.command_config, flags["client_property"]
    )
    plan = plan_of(flags)
    printer = _Printer(plan)
    try:
        run(
            replace(asked, command_config=None),
            lambda cluster: _consume(cluster, plan, printer),
            properties=common,
            progress=printer.progress,
            says_once=lambda: bool(printer.waits_for()),
        )
    except CorruptRecords as error:
        printer.sum_up()
        raise Failed(f"{error}; the records after it cannot be read") from None
    except (ClientError, Failed):
        printer.sum_up()
        raise
    finally:
        sys.stdout.flush()
    note(f"Processed a total of {printer.count} messages")


def plan_of(flags: dict[str, Any]) -> _Plan:
    """Return what the flags mean. Raises WrongUsage."""
    properties: dict[str, str] = flags["client_properties"]
    for name, value in properties.items():
        if name not in _OWN:
            check_unused(name, value, "consumer", (*_OWN, *CLIENT_PROPERTIES))
    commits = properties.get(_COMMIT, "true")
    if commits not in ("true", "false"):
        raise WrongUsage(f"{_COMMIT} must be true or false, not {commits!r}")
    if bool(flags["topic"]) == bool(flags["include"]):
        raise WrongUsage("give either --topic or --include")
    group = flags["group"] or properties.get("group.id")
    partitions = _partitions(flags["partition"])
    offset, from_datetime = flags["offset"], flags["from_datetime"]
    if partitions and (group or flags["include"]):
        raise WrongUsage("--partition goes with --topic alone: not with --group or --include")
    if (offset or "").isdecimal() and not partitions:
        raise WrongUsage("--offset with a number needs --partition")
    starts = {"--offset": offset, "--from-datetime": from_datetime}
    starts["--from-beginning"] = flags["from_beginning"] or None
    given = [name for name, value in starts.items() if value is not None]
    if len(given) > 1:
        raise WrongUsage(f"give {' or '.join(given)}, not both")
    if group and (offset is not None or from_datetime is not None):
        raise WrongUsage(
            f"{given[0]} goes without --group: a group continues at its committed offsets; "
            "`tidelog groups --reset-offsets` changes them"
        )
    reset = properties.get("auto.offset.reset")
    if reset is not None and reset not in ("earliest", "latest", "none"):
        raise WrongUsage(f"auto.offset.reset must be earliest, latest or none, not {reset!r}")
    if flags["from_beginning"] and reset == "latest":
        raise WrongUsage("--from-beginning and auto.offset.reset=latest contradict each other")
    level = flags["isolation_level"] or properties.get("isolation.level", "read_uncommitted")
    if level not in ("read_uncommitted", "read_committed"):
        raise WrongUsage(f"isolation.level must be read_uncommitted or read_committed: {level!r}")
    begin = "earliest" if flags["from_beginning"] else reset or "latest"
    last = int(offset[1:]) if offset is not None and _BACK.fullmatch(offset) else None
    form = RecordFormat.from_properties(key_values(flags["properties"], "--property"))
    if flags["format"] is not None:
        if flags["as_json"] or flags["properties"]:
            raise WrongUsage("--format goes without --json and --property")
        form = replace(form, template=parse_template(flags["format"]))
    if last is not None or from_datetime is not None:
        # Records that retention removed in the meantime were not requested.
        reading_reset = OffsetReset.EARLIEST
    else:
        # An explicit offset is meant: a reset would hide that its records are gone.
        named = (offset or "").isdecimal()
        reading_reset = OffsetReset.NONE if named else OffsetReset(begin)
    return _Plan(
        topic=flags["topic"],
        include=flags["include"],
        group=group,
        instance_id=properties.get("group.instance.id"),
        commits=commits == "true",
        partitions=partitions,
        offset=_offset(offset if last is None else None, begin),
        last=last,
        from_time_ms=None if from_datetime is None else _time_ms(from_datetime),
        reset=reading_reset,
        isolation=IsolationLevel[level.upper()],
        max_messages=flags["max_messages"],
        timeout_ms=None if (flags["timeout_ms"] or 0) < 0 else flags["timeout_ms"],
        form=form,
        as_json=flags["as_json"],
    )


def _offset(text: str | None, begin: str) -> int:
    """Return an offset, or EARLIEST or LATEST. Raises WrongUsage."""
    words = {"earliest": EARLIEST, "latest": LATEST, "none": LATEST}
    if text is None:
        return words[begin]
    if text in words:
        return words[text]
    if not text.isdecimal():
        raise WrongUsage(f"--offset must be earliest, latest, a number or -N, not {text!r}")
    return int(text)


def _partitions(texts: tuple[str, ...]) -> tuple[int, ...]:
    pieces = [piece.strip() for text in texts for piece in text.split(",")]
    if not all(piece.isdecimal() for piece in pieces):
        raise WrongUsage(f"--partition takes numbers with commas, not {','.join(texts)!r}")
    return tuple(sorted({int(piece) for piece in pieces}))


def _time_ms(text: str) -> int:
    return int(text) if text.isdecimal() else parse_datetime_ms(text, "--from-datetime")


async def _consume(cluster: Cluster, plan: _Plan, printer: _Printer) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        topics = await _topics(cluster, plan)
        if plan.group is not None:
            async with GroupReader(
                cluster,
                plan.group,
                topics,
                reset=plan.reset,
                isolation=plan.isolation,
                instance_id=plan.instance_id,
            ) as reader:
                printer.waits_for = lambda: (
                    "" if reader.assignment else f"group {plan.group} to assign partitions to it"
                )
                await _loop(reader.poll, plan, printer, stop)
                if not reader.assignment and not stop.is_set():
                    note(
                        f"no partition was assigned within --timeout-ms {plan.timeout_ms}: group "
                        f"{plan.group} was still joining, or other members have all partitions"
                    )
                # Commit the printed records, not those beyond --max-messages.
                if not plan.commits:
                    return
                if not printer.left_over:
                    await reader.controls.commit()
                else:
                    await reader.controls.commit_up_to(printer.next_offsets)
            return
        fetcher = Fetcher(cluster, isolation=plan.isolation, reset=plan.reset)
        try:
            fetcher.assign(await _positions(cluster, plan, topics))
            printer.waits_for = lambda: ""
            watcher = loop.create_task(_watch_partitions(cluster, plan, fetcher))
            try:
                await _loop(fetcher.poll, plan, printer, stop)
            finally:
                watcher.cancel()
        finally:
            await fetcher.close()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _topics(cluster: Cluster, plan: _Plan) -> list[str]:
    if plan.topic is not None:
        names = [name.strip() for name in plan.topic.split(",") if name.strip()]
        return list(await cluster.topics(names))
    pattern = topic_pattern(plan.include)
    view = await cluster.all_topics()
    matching = [name for name, topic in view.topics.items() if pattern.fullmatch(name)]
    if not matching:
        why = why_no_match(str(plan.include), view.topics)
        raise Failed(f"no topic matches --include {plan.include!r}; {why}")
    return sorted(matching)


async def _positions(
    cluster: Cluster, plan: _Plan, topics: Iterable[str]
) -> dict[TopicPartition, int]:
    partitions = []
    for name, topic in (await cluster.topics(topics)).items():
        missing = [index for index in plan.partitions if index not in topic.partitions]
        if missing:
            raise Failed(f"topic {name!r} has no partition {missing[0]}")
        chosen = plan.partitions or topic.partitions
        partitions += [TopicPartition(name, index) for index in chosen]
    if plan.last is None and plan.from_time_ms is None and plan.offset >= 0:
        return dict.fromkeys(partitions, plan.offset)

    async def look_up(time: int) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, time)
        listed = await list_offsets(cluster, wanted, isolation=plan.isolation)
        return {partition: item.offset for partition, item in listed.items()}

    if plan.last is not None:
        begins, ends = await look_up(EARLIEST), await look_up(LATEST)
        return {tp: max(begins[tp], ends[tp] - plan.last) for tp in partitions}
    if plan.from_time_ms is not None:
        starts, ends = await look_up(plan.from_time_ms), await look_up(LATEST)
        # No record is that late: start at the end.
        return {tp: ends[tp] if starts[tp] < 0 else starts[tp] for tp in partitions}
    return await look_up(plan.offset)


async def _watch_partitions(cluster: Cluster, plan: _Plan, fetcher: Fetcher) -> None:
    """Read partitions that are added later, from their start."""
    if plan.partitions:
        return
    while True:
        await asyncio.sleep(NEW_PARTITIONS_EVERY_S)
        positions = fetcher.positions()
        view = await cluster.describe(sorted({partition.topic for partition in positions}))
        fresh = [
            TopicPartition(name, index)
            for name, topic in view.topics.items()
            for index in topic.partitions
            if TopicPartition(name, index) not in positions
        ]
        if fresh:
            listed = await list_offsets(cluster, dict.fromkeys(fresh, EARLIEST))
            fetcher.add({partition: item.offset for partition, item in listed.items()})


async def _loop(poll: Any, plan: _Plan, printer: _Printer, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time()
    while not stop.is_set() and not printer.enough:
        wait_ms = POLL_MS
        if plan.timeout_ms is not None:
            left_ms = plan.timeout_ms - (loop.time() - last) * 1000
            if left_ms <= 0:
                return
            wait_ms = min(wait_ms, int(left_ms) + 1)
        polled = loop.create_task(poll(wait_ms, POLL_BYTES))
        stopped = loop.create_task(stop.wait())
        await asyncio.wait([polled, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not polled.done():
            polled.cancel()
            await asyncio.wait([polled])
            return
        for fetched in polled.result():
            if printer.print(fetched):
                last = loop.time()
        sys.stdout.buffer.flush()


class _Printer:
    """Writes records to the standard output and counts them."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._reader = FastReader()
        self.count = 0
        self.left_over = False
        self.next_offsets: dict[TopicPartition, int] = {}
        self.waits_for: Callable[[], str] = lambda: "the brokers to say where to begin"
        """What the command waits for before it reads; "" when it reads."""

    def progress(self) -> str:
        """Return the progress line, or "" for none."""
        if waits_for := self.waits_for():
            return f"waiting for {waits_for}"
        return "" if sys.stdout.isatty() else f"{self.count} records read"

    @property
    def enough(self) -> bool:
        """Whether ``--max-messages`` have been printed."""
        return self._plan.max_messages is not None and self.count >= self._plan.max_messages

    def sum_up(self) -> None:
        """Print the count of records before the error line."""
        if self.count:
            note(f"Processed a total of {self.count} messages")

    def print(self, fetched: Fetched) -> bool:
        """Print fetched records up to ``--max-messages``; return whether any was printed."""
        before, limit = self.count, self._plan.max_messages
        out = sys.stdout.buffer
        for header, batch in fetched.batches(check_crc=True):
            if self._takes_whole(header, fetched):
                values = [item.value for item in self._reader.records(batch)]
                out.write(format_values(values, self._plan.form))
                self.count += len(values)
                self.next_offsets[fetched.partition] = header.next_offset
                continue
            lines: list[bytes] = []
            for item in self._reader.records(batch):
                if item.offset < fetched.offset:
                    continue
                if limit is not None and self.count + len(lines) >= limit:
                    self.left_over = True
                    break
                lines.append(self._line(item, fetched.partition, header))
                printed = item.offset
            if lines:
                out.write(b"".join(lines))
                self.next_offsets[fetched.partition] = printed + 1
            self.count += len(lines)
            if self.left_over:
                return self.count > before
        self.next_offsets[fetched.partition] = fetched.next_offset
        return self.count > before

    def _takes_whole(self, header: BatchHeader, fetched: Fetched) -> bool:
        """Whether all records of a batch are printed, and only their values."""
        limit = self._plan.max_messages
        return (
            not self._plan.as_json
            and self._plan.form.only_values
            and header.base_offset >= fetched.offset
            and (limit is None or self.count + header.record_count <= limit)
        )

    def _line(self, item: Any, tp: TopicPartition, header: BatchHeader) -> bytes:
        late = header.log_append_time
        if late:
            item = Record(item.offset, header.max_timestamp, item.key, item.value, item.headers)
        if self._plan.as_json:
            shown = record_as_json(item, tp.topic, tp.partition)
            return json.dumps(shown, ensure_ascii=False).encode() + b"\n"
        form, epoch = self._plan.form, header.leader_epoch
        if form.template is not None:
            return fill_template(form, item, tp)
        return format_record(item, tp.partition, epoch, form, append_time=late)
