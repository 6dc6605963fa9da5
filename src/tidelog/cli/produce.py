"""The ``tidelog produce`` command: sends lines of standard input, as kafka-console-producer does.

Owns the options, the reading of lines and the summary. Not the format of a line: see
``record_lines``. Not the sending: see ``client.producing``.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import replace
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
from tidelog.cli.failures import explain
from tidelog.cli.line_input import LineInput
from tidelog.cli.name_options import topic_option
from tidelog.cli.output import note, print_json
from tidelog.cli.record_lines import LineFormat, one_by_one, parse_lines
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.cli.suggestions import did_you_mean
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.producing.bulk_sender import BulkSender
from tidelog.client.producing.send_queue import SendTally
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import Columns
from tidelog.records.compression import CODEC_NAMES

MAX_BLOCK_MS = 15_000
BATCH_BYTES = 262_144
"""16 times Kafka's: a request costs as much as 2,000 lines."""

FLUSH_ON_INTERRUPT_S = 5.0
"""How long an interrupted command waits for records in flight."""

NEW_TOPIC_S = 2.0
ASK_AGAIN_S = 0.1
"""How long and how often a missing topic is looked up: a broker may not have its metadata yet."""

MOST_NOTED = 10
"""The most bad lines that are reported one by one with ignore.error."""

SIGNALLED = 128
"""Exit status after a signal, minus the signal's number, as in shells."""

_SETTINGS = {
    "batch.size": "batch_bytes",
    "linger.ms": "linger_ms",
    "buffer.memory": "buffer_bytes",
    "max.request.size": "max_request_bytes",
    "delivery.timeout.ms": "delivery_timeout_ms",
    "max.block.ms": "max_block_ms",
    "max.in.flight.requests.per.connection": "max_in_flight",
}


@click.command("produce")
@client_options("producer")
@topic_option(required=True, help="The topic to write to.")
@click.option("--partition", type=int, help="Send everything to this partition.")
@click.option(
    "--property",
    "--reader-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
    "headers.key.separator, null.marker, ignore.error",
)
@click.option(
    "--compression-codec",
    is_flag=False,
    flag_value="gzip",
    help="none, gzip, snappy, lz4 or zstd; without a value: gzip.",
)
@click.option("--request-required-acks", "acks", help="all, -1, 0 or 1.")
@click.option(
    "--timeout", "linger_ms", type=int, help="How long records wait for a fuller batch, in ms."
)
@click.option("--batch-size", type=int, help="The size of a batch in bytes.")
@click.option(
    "--max-memory-bytes", type=int, help="Memory for records that are not acknowledged, in bytes."
)
@click.option("--create-topic", is_flag=True, help="Let the brokers create a missing topic.")
@click.option("--sync", is_flag=True, help="Wait for each record before the next.")
@json_option
def command(asked: CommonOptions, **flags: Any) -> None:
    """Send records, one per line of standard input."""
    if sys.stdin is None:
        raise Failed("standard input is closed: there are no lines to read")
    lines = LineFormat.from_properties(key_values(flags["properties"], "--property"))
    common, flags["client_properties"] = client_properties(
        asked.command_config, flags["client_property"]
    )
    settings = send_settings(flags)
    work = _SendJob(flags["topic"], flags["partition"], lines, settings, sync=flags["sync"])
    begun = time.monotonic()
    try:
        run(
            replace(asked, command_config=None),
            work.send_all,
            properties=common,
            progress=work.progress,
            says_once=lambda: bool(work.waits_for),
        )
    except (ClientError, Failed) as error:
        if not work.tally.taken:
            raise
        sentence = explain(error) if isinstance(error, ClientError) else str(error)
        raise Failed(f"{sentence}; {_records(work.tally.written)} written") from None
    _print_summary(work, flags["topic"], time.monotonic() - begun, as_json=flags["as_json"])


def _print_summary(work: _SendJob, topic: str, took_s: float, *, as_json: bool) -> None:
    """Print the summary. Raises Failed when anything was not written, Exit after a signal."""
    tally, failed = work.tally, work.tally.failed + work.bad_lines
    if as_json:
        print_json({"sent": tally.written, "failed": failed})
    written = f"{_records(tally.written)} written"
    if tally.first_error is not None:
        error = tally.first_error
        sentence = explain(error) if isinstance(error, ClientError) else str(error)
        raise Failed(
            f"{failed} of {tally.written + failed} records were not written: {sentence}; {written}"
        )
    if work.stopped is not None:
        raise Failed(f"{work.stopped}; {written}, and nothing from that line on")
    if failed:
        raise Failed(f"{_lines(failed)} could not be parsed; {written}")
    if work.signal is not None:
        unknown = f", {tally.unanswered:,} more may be" if tally.unanswered else ""
        note(f"interrupted: {written} to {topic}{unknown}")
        raise click.exceptions.Exit(SIGNALLED + work.signal)
    if not as_json:
        note(f"{written} to {topic} in {took_s:.1f} s")


def _records(count: int) -> str:
    return "1 record was" if count == 1 else f"{count:,} records were"


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def send_settings(flags: dict[str, Any]) -> SendSettings:
    """Return what the flags and producer properties say. Raises WrongUsage."""
    settings: dict[str, Any] = {
        "max_block_ms": MAX_BLOCK_MS,
        "batch_bytes": BATCH_BYTES,
        "create_topics": flags["create_topic"],
    }
    properties: dict[str, str] = dict(flags["client_properties"])
    acks = flags["acks"] if flags["acks"] is not None else properties.pop("acks", "all")
    properties.pop("acks", None)
    codec = flags["compression_codec"] or properties.pop("compression.type", "none")
    properties.pop("compression.type", None)
    if codec not in CODEC_NAMES:
        raise WrongUsage(f"compression {codec!r} is unknown: use one of {', '.join(CODEC_NAMES)}")
    if acks not in ("all", "-1", "0", "1"):
        raise WrongUsage(f"acks must be all, -1, 0 or 1, not {acks!r}")
    idempotent = properties.pop("enable.idempotence", None)
    settings["acks"] = -1 if acks == "all" else int(acks)
    settings["compression"] = codec
    settings["idempotent"] = settings["acks"] == -1 if idempotent is None else idempotent == "true"
    if settings["idempotent"] and settings["acks"] != -1:
        raise WrongUsage("enable.idempotence=true needs acks=all")
    for name, value in properties.items():
        if name not in _SETTINGS:
            own = ("acks", "compression.type", "enable.idempotence", *_SETTINGS)
            check_unused(name, value, "producer", (*own, *CLIENT_PROPERTIES))
            continue
        if not value.isdecimal():
            raise WrongUsage(f"{name} must be a number, not {value!r}")
        settings[_SETTINGS[name]] = int(value)
    chosen = SendSettings(**settings)
    if flags["linger_ms"] is not None:
        chosen = replace(chosen, linger_ms=flags["linger_ms"])
    if flags["batch_size"] is not None:
        chosen = replace(chosen, batch_bytes=flags["batch_size"])
    if flags["max_memory_bytes"] is not None:
        chosen = replace(chosen, buffer_bytes=flags["max_memory_bytes"])
    return chosen


class _SendJob:
    """Sends standard input. ``tally`` counts the written records; ``stopped`` is why it ended."""

    def __init__(
        self,
        topic: str,
        partition: int | None,
        lines: LineFormat,
        settings: SendSettings,
        *,
        sync: bool,
    ) -> None:
        self.tally = SendTally()
        self.bad_lines = 0
        self.stopped: str | None = None
        """The bad line that ended the sending; None when there was none."""
        self.signal: int | None = None
        """The signal that interrupted it."""
        self._topic = topic
        self._partition = partition
        self._lines = lines
        self._settings = settings
        self._sync = sync
        self._sender: RecordSender | None = None

    @property
    def waits_for(self) -> str:
        """What keeps records back; "" while there is nothing."""
        if self._sender is None:
            return f"topic {self._topic}"
        return self._sender.delivery.waits_for

    def progress(self) -> str:
        """Return the progress line, or "" for none."""
        if self.waits_for:
            settings = self._settings
            most_ms = settings.delivery_timeout_ms if self._sender else settings.max_block_ms
            most_s = most_ms / 1000
            return f"waiting for {self.waits_for}, at most {most_s:g} s"
        # A user at the terminal sees the prompt; with a piped file the progress is useful.
        return "" if sys.stdin.isatty() else f"{_records(self.tally.written)} written"

    async def send_all(self, cluster: Cluster) -> None:
        """Send standard input up to its end, the first failure or a signal."""
        # Before the first line is typed: a wrong topic fails at once.
        await self._search_for_topic(cluster)
        loop = asyncio.get_running_loop()
        source = LineInput(loop)
        self._sender = sender = RecordSender(cluster, self._settings)
        signals = (signal.SIGINT, signal.SIGTERM)
        ends = False

        closing = asyncio.timeout(None)

        def interrupt(number: int) -> None:
            self.signal = number
            source.end()
            if ends:
                closing.reschedule(loop.time() + FLUSH_ON_INTERRUPT_S)
            for other in signals:
                # A second signal ends the command at once.
                loop.remove_signal_handler(other)

        for number in signals:
            loop.add_signal_handler(number, interrupt, number)
        try:
            await self._send_lines(BulkSender(sender), source)
        finally:
            ends = True
            with contextlib.suppress(TimeoutError):
                async with closing:
                    if self.signal is not None:
                        closing.reschedule(loop.time() + FLUSH_ON_INTERRUPT_S)
                    await sender.close()
            for number in signals:
                loop.remove_signal_handler(number)

    async def _search_for_topic(self, cluster: Cluster) -> None:
        """Raise Failed for a topic that does not exist and is not to be created."""
        loop = asyncio.get_running_loop()
        block_ms, create = self._settings.max_block_ms, self._settings.create_topics
        until = loop.time() + NEW_TOPIC_S
        while True:
            try:
                await cluster.topics([self._topic], timeout_ms=block_ms, create=create)
                return
            except Refused as error:
                if create or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            if loop.time() < until:
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            there = sorted((await cluster.all_topics()).topics)
            meant = did_you_mean(self._topic, there)
            hint = f" ({meant})" if meant else ""
            raise Failed(
                f"topic {self._topic!r} does not exist{hint}; create it with `tidelog topics "
                "--create`, or let the brokers do it with --create-topic"
            )

    async def _send_lines(self, sender: BulkSender, source: LineInput) -> None:
        number = 0
        while self.tally.first_error is None or self._lines.ignore_error:
            lines = await source.next()
            if lines is None:
                return
            parsed = parse_lines(lines, self._lines)
            await self._send(sender, parsed.records)
            for index, error in parsed.bad:
                self.bad_lines += 1
                sentence = f"line {number + index + 1}: {error}"
                if not self._lines.ignore_error:
                    self.stopped = sentence
                    return
                if self.bad_lines <= MOST_NOTED:
                    note(sentence)
            number += len(lines)

    async def _send(self, sender: BulkSender, records: Columns) -> None:
        if not self._sync:
            await sender.send_many(self._topic, records, self.tally, partition=self._partition)
            return
        for record in one_by_one(records):
            await sender.send_many(self._topic, record, self.tally, partition=self._partition)
            await sender.flush()
            if self.tally.failed and not self._lines.ignore_error:
                return
