"""``tidelog consume``: prints the records of topics (Kafka's kafka-console-consumer).

Owns the flags, where reading begins and when it ends; records become lines in ``record_lines``.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tidelog.cli.connecting import (
    CLIENT_PROPERTIES,
    client_options,
    client_properties,
    json_option,
    key_values,
    run,
)
from tidelog.cli.failures import Failed, WrongUsage
from tidelog.cli.output import note
from tidelog.cli.record_lines import RecordFormat, format_record, record_as_json
from tidelog.cli.topics import topic_pattern
from tidelog.client.batches import Fetched
from tidelog.client.cluster import Cluster
from tidelog.client.fetcher import Fetcher, OffsetReset
from tidelog.client.group_reader import GroupReader
from tidelog.client.offsets import EARLIEST, LATEST, IsolationLevel, list_offsets
from tidelog.model.topics import TopicPartition
from tidelog.records.reader import FastReader
from tidelog.records.record import CorruptRecords, Record

POLL_MS = 500
POLL_BYTES = 4 * 1024 * 1024
NEW_PARTITIONS_EVERY_S = 10.0
"""How often topics are looked at for partitions that came later."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is read, from where, and when it ends."""

    topic: str | None
    include: str | None
    group: str | None
    instance_id: str | None
    partition: int | None
    offset: int
    reset: OffsetReset
    isolation: IsolationLevel
    max_messages: int | None
    timeout_ms: int | None
    form: RecordFormat
    as_json: bool


@click.command("consume")
@client_options("consumer")
@click.option("--topic", help="What to read; several with commas.")
@click.option("--include", help="A regular expression of topics to read.")
@click.option("--from-beginning", is_flag=True, help="Start at the first record there is.")
@click.option("--partition", type=int, help="Read this partition only.")
@click.option("--offset", help="Start here: a number, earliest or latest (with --partition).")
@click.option("--group", help="Read as a member of this group and commit its offsets.")
@click.option("--max-messages", type=click.IntRange(min=1), help="End after so many records.")
@click.option("--timeout-ms", type=int, help="End when nothing has come for so long.")
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
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default=None
)
@json_option
def command(bootstrap_server: str, command_config: Path | None, **flags: Any) -> None:
    """Print the records of topics."""
    common, flags["client_properties"] = client_properties(command_config, flags["client_property"])
    plan = plan_of(flags)
    printer = _Printer(plan)
    try:
        run(
            bootstrap_server,
            lambda cluster: _consume(cluster, plan, printer),
            properties=common,
            progress=lambda: "" if sys.stdout.isatty() else f"{printer.count} records read",
        )
    except CorruptRecords as error:
        raise Failed(f"{error}; what follows cannot be read past it") from None
    finally:
        sys.stdout.flush()
    if not plan.as_json:
        note(f"Processed a total of {printer.count} messages")


def plan_of(flags: dict[str, Any]) -> _Plan:
    """Return what the flags mean. Raises WrongUsage."""
    properties: dict[str, str] = flags["client_properties"]
    known = ("group.id", "group.instance.id", "auto.offset.reset", "isolation.level")
    for name in properties:
        if name not in known:
            names = ", ".join((*known, *CLIENT_PROPERTIES))
            raise WrongUsage(f"the consumer property {name!r} is unknown; known are {names}")
    if bool(flags["topic"]) == bool(flags["include"]):
        raise WrongUsage("give either --topic or --include")
    group = flags["group"] or properties.get("group.id")
    if flags["partition"] is not None and (group or flags["include"]):
        raise WrongUsage("--partition goes with --topic alone: not with --group or --include")
    if flags["offset"] is not None and flags["partition"] is None:
        raise WrongUsage("--offset needs --partition")
    if flags["offset"] is not None and flags["from_beginning"]:
        raise WrongUsage("give --offset or --from-beginning, not both")
    reset = properties.get("auto.offset.reset")
    if reset is not None and reset not in ("earliest", "latest", "none"):
        raise WrongUsage(f"auto.offset.reset must be earliest, latest or none, not {reset!r}")
    if flags["from_beginning"] and reset == "latest":
        raise WrongUsage("--from-beginning and auto.offset.reset=latest contradict each other")
    level = flags["isolation_level"] or properties.get("isolation.level", "read_uncommitted")
    if level not in ("read_uncommitted", "read_committed"):
        raise WrongUsage(f"isolation.level must be read_uncommitted or read_committed: {level!r}")
    begin = "earliest" if flags["from_beginning"] else reset or "latest"
    return _Plan(
        topic=flags["topic"],
        include=flags["include"],
        group=group,
        instance_id=properties.get("group.instance.id"),
        partition=flags["partition"],
        offset=_offset(flags["offset"], begin),
        # An offset that was named is meant: going elsewhere would hide that it is gone.
        reset=OffsetReset.NONE if (flags["offset"] or "").isdecimal() else OffsetReset(begin),
        isolation=IsolationLevel[level.upper()],
        max_messages=flags["max_messages"],
        timeout_ms=None if (flags["timeout_ms"] or 0) < 0 else flags["timeout_ms"],
        form=RecordFormat.from_properties(key_values(flags["properties"], "--property")),
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
        raise WrongUsage(f"--offset must be earliest, latest or a number from 0 on, not {text!r}")
    return int(text)


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
                await _loop(reader.poll, plan, printer, stop)
                # What was printed is finished; what --max-messages left over is not.
                if not printer.left_over:
                    await reader.commit()
                else:
                    await reader.commit_up_to(printer.next_offsets)
            return
        fetcher = Fetcher(cluster, isolation=plan.isolation, reset=plan.reset)
        try:
            fetcher.assign(await _positions(cluster, plan, topics))
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
    found = [name for name, topic in view.topics.items() if pattern.fullmatch(name)]
    if not found:
        raise Failed(f"no topic matches --include {plan.include!r}")
    return sorted(found)


async def _positions(
    cluster: Cluster, plan: _Plan, topics: Iterable[str]
) -> dict[TopicPartition, int]:
    partitions = []
    for name, topic in (await cluster.topics(topics)).items():
        if plan.partition is not None and plan.partition not in topic.partitions:
            raise Failed(f"topic {name!r} has no partition {plan.partition}")
        partitions += [
            TopicPartition(name, index)
            for index in topic.partitions
            if plan.partition in (None, index)
        ]
    if plan.offset >= 0:
        return dict.fromkeys(partitions, plan.offset)
    found = await list_offsets(
        cluster, dict.fromkeys(partitions, plan.offset), isolation=plan.isolation
    )
    return {partition: item.offset for partition, item in found.items()}


async def _watch_partitions(cluster: Cluster, plan: _Plan, fetcher: Fetcher) -> None:
    """Read partitions that are added later, from their start."""
    if plan.partition is not None:
        return
    while True:
        await asyncio.sleep(NEW_PARTITIONS_EVERY_S)
        known = fetcher.positions()
        view = await cluster.describe(sorted({partition.topic for partition in known}))
        fresh = [
            TopicPartition(name, index)
            for name, topic in view.topics.items()
            for index in topic.partitions
            if TopicPartition(name, index) not in known
        ]
        if fresh:
            found = await list_offsets(cluster, dict.fromkeys(fresh, EARLIEST))
            fetcher.add({partition: item.offset for partition, item in found.items()})


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

    @property
    def enough(self) -> bool:
        """Whether ``--max-messages`` have been printed."""
        return self._plan.max_messages is not None and self.count >= self._plan.max_messages

    def print(self, fetched: Fetched) -> bool:
        """Print a piece, as far as ``--max-messages`` allows; whether anything was printed."""
        before = self.count
        out = sys.stdout.buffer
        for header, batch in fetched.batches(check_crc=True):
            for item in self._reader.records(batch):
                if item.offset < fetched.offset:
                    continue
                if self.enough:
                    self.left_over = True
                    return self.count > before
                late = header.log_append_time
                timestamp = header.max_timestamp if late else item.timestamp
                record = Record(item.offset, timestamp, item.key, item.value, item.headers)
                out.write(self._line(record, fetched.partition, header.leader_epoch, late))
                self.count += 1
                self.next_offsets[fetched.partition] = item.offset + 1
        self.next_offsets[fetched.partition] = fetched.next_offset
        return self.count > before

    def _line(self, record: Record, where: TopicPartition, epoch: int, late: bool) -> bytes:
        if self._plan.as_json:
            shown = record_as_json(record, where.topic, where.partition)
            return json.dumps(shown, ensure_ascii=False).encode() + b"\n"
        return format_record(record, where.partition, epoch, self._plan.form, append_time=late)
