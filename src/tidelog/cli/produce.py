"""``tidelog produce``: sends records, one per line of the standard input (kafka-console-producer).

Owns the flags, the reading of lines and their cutting into key, headers and value
(``record_lines``); sending is ``client.producing``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from dataclasses import replace
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
from tidelog.cli.failures import Failed, WrongUsage, explain
from tidelog.cli.output import note, print_json
from tidelog.cli.record_lines import LineFormat, NotARecord, parse_line
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.producing import RecordSender, SendSettings
from tidelog.client.send_queue import Sent
from tidelog.records.compression import CODEC_NAMES

CHUNK_BYTES = 65_536
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line taken into memory; far above any max.message.bytes."""

WAITING_CHUNKS = 16
"""Chunks of input read ahead of the sending."""

MAX_BLOCK_MS = 15_000

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
@click.option("--topic", required=True, help="Where to.")
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
@click.option("--timeout", "linger_ms", type=int, help="How long records wait for others, in ms.")
@click.option("--batch-size", type=int, help="Bytes of a batch.")
@click.option("--max-memory-bytes", type=int, help="Bytes of all records on their way.")
@click.option("--sync", is_flag=True, help="Wait for each record before the next.")
@json_option
def command(bootstrap_server: str, command_config: Path | None, **flags: Any) -> None:
    """Send records, one per line of the standard input."""
    if sys.stdin is None:
        raise Failed("the standard input is closed: there is nothing to read lines from")
    lines = LineFormat.from_properties(key_values(flags["properties"], "--property"))
    common, flags["client_properties"] = client_properties(command_config, flags["client_property"])
    settings = send_settings(flags)
    work = _Work(flags["topic"], flags["partition"], lines, settings, sync=flags["sync"])
    run(
        bootstrap_server,
        work.send_all,
        properties=common,
        # Who types sees the prompt; who pipes a file in wants to know how far it is.
        progress=lambda: "" if sys.stdin.isatty() else f"{work.sent} records written",
    )
    if flags["as_json"]:
        print_json({"sent": work.sent, "failed": work.failed})
    if work.first_error is not None:
        raise Failed(
            f"{work.failed} of {work.sent + work.failed} records were not written: "
            f"{work.first_error}"
        )


def send_settings(flags: dict[str, Any]) -> SendSettings:
    """Return what the flags and producer properties say. Raises WrongUsage."""
    found: dict[str, Any] = {"max_block_ms": MAX_BLOCK_MS}
    properties: dict[str, str] = dict(flags["client_properties"])
    acks = flags["acks"] if flags["acks"] is not None else properties.pop("acks", "all")
    properties.pop("acks", None)
    codec = flags["compression_codec"] or properties.pop("compression.type", "none")
    properties.pop("compression.type", None)
    if codec not in CODEC_NAMES:
        raise WrongUsage(f"compression {codec!r} is unknown: take one of {', '.join(CODEC_NAMES)}")
    if acks not in ("all", "-1", "0", "1"):
        raise WrongUsage(f"acks must be all, -1, 0 or 1, not {acks!r}")
    idempotent = properties.pop("enable.idempotence", None)
    found["acks"] = -1 if acks == "all" else int(acks)
    found["compression"] = codec
    found["idempotent"] = found["acks"] == -1 if idempotent is None else idempotent == "true"
    if found["idempotent"] and found["acks"] != -1:
        raise WrongUsage("enable.idempotence=true needs acks=all")
    for name, value in properties.items():
        if name not in _SETTINGS:
            own = ("acks", "compression.type", "enable.idempotence", *_SETTINGS)
            known = ", ".join((*own, *CLIENT_PROPERTIES))
            raise WrongUsage(f"the producer property {name!r} is unknown; known are {known}")
        if not value.isdecimal():
            raise WrongUsage(f"{name} must be a number, not {value!r}")
        found[_SETTINGS[name]] = int(value)
    chosen = SendSettings(**found)
    if flags["linger_ms"] is not None:
        chosen = replace(chosen, linger_ms=flags["linger_ms"])
    if flags["batch_size"] is not None:
        chosen = replace(chosen, batch_bytes=flags["batch_size"])
    if flags["max_memory_bytes"] is not None:
        chosen = replace(chosen, buffer_bytes=flags["max_memory_bytes"])
    return chosen


class _Work:
    """Sends the standard input; counts what was written and keeps the first error."""

    def __init__(
        self,
        topic: str,
        partition: int | None,
        lines: LineFormat,
        settings: SendSettings,
        *,
        sync: bool,
    ) -> None:
        self.sent = 0
        self.failed = 0
        self.first_error: str | None = None
        self._topic = topic
        self._partition = partition
        self._lines = lines
        self._settings = settings
        self._sync = sync

    async def send_all(self, cluster: Cluster) -> None:
        # Known before the first line is typed: a wrong topic is said at once.
        await cluster.topics([self._topic], timeout_ms=self._settings.max_block_ms, create=True)
        async with RecordSender(cluster, self._settings) as sender:
            source = _Input(asyncio.get_running_loop())
            number = 0
            while self.first_error is None or self._lines.ignore_errors:
                try:
                    lines = await source.next()
                except Failed:
                    await sender.flush()
                    raise
                if lines is None:
                    break
                for line in lines:
                    number += 1
                    await self._send(sender, number, line)
            await sender.flush()

    async def _send(self, sender: RecordSender, number: int, line: bytes) -> None:
        try:
            record = parse_line(line, self._lines)
        except NotARecord as error:
            self._count_failure(f"line {number}: {error}")
            return
        outcome = await sender.send(
            self._topic,
            record.value,
            record.key,
            partition=self._partition,
            headers=record.headers,
        )
        outcome.add_done_callback(self._answered)
        if self._sync:
            await asyncio.wait([outcome])

    def _answered(self, outcome: asyncio.Future[Sent]) -> None:
        error = outcome.exception()
        if error is None:
            self.sent += 1
        else:
            self._count_failure(explain(error) if isinstance(error, ClientError) else str(error))

    def _count_failure(self, said: str) -> None:
        self.failed += 1
        if self.first_error is None:
            self.first_error = said
        elif self._lines.ignore_errors:
            note(said)


class _Input:
    """The lines of the standard input, read in a thread, at most some chunks ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chunks: deque[list[bytes] | OSError | None] = deque()
        self._came = asyncio.Event()
        self._room = threading.Semaphore(WAITING_CHUNKS)
        # A daemon: a read of a terminal cannot be interrupted, and must not hold the end up.
        threading.Thread(target=self._read, daemon=True).start()

    async def next(self) -> list[bytes] | None:
        """Return the next lines without their ends, or None at the end. Raises Failed."""
        while not self._chunks:
            self._came.clear()
            await self._came.wait()
        self._room.release()
        found = self._chunks.popleft()
        if isinstance(found, OSError):
            raise Failed(f"the standard input cannot be read: {found.strerror}")
        return found

    def _read(self) -> None:
        rest = b""
        prompt = sys.stdin.isatty()
        while True:
            if prompt:
                print(">", end="", file=sys.stderr, flush=True)
            try:
                data = os.read(sys.stdin.fileno(), CHUNK_BYTES)
            except OSError as error:
                # A terminal that has gone (EIO): said, for nobody sees what a thread raises.
                self._hand_over(error)
                return
            *lines, rest = (rest + data).split(b"\n")
            if not data or len(rest) > MAX_LINE_BYTES:
                if rest:
                    lines.append(rest)
                rest = b""
            self._hand_over([line.removesuffix(b"\r") for line in lines])
            if not data:
                self._hand_over(None)
                return

    def _hand_over(self, found: list[bytes] | OSError | None) -> None:
        if found == []:
            return
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._put, found)

    def _put(self, found: list[bytes] | OSError | None) -> None:
        self._chunks.append(found)
        self._came.set()
