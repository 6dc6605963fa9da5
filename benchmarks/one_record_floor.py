"""How many requests of one record could a server without any work answer?

A process that speaks to librdkafka and stores nothing: it finds the frames of Produce requests in
what it receives, and answers each with the same bytes and its correlation id. It has one thread for
each connection, which waits in ``recv``; servers and client have the cores that the rows of
``make bench`` give them. Beside it, in turn: tidelog and Apache Kafka. What it reaches is the
client's and the kernel's share, so that no server in Python reaches more.

Run: ``python -m benchmarks.one_record_floor``. Result: benchmarks/NOTES.md.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from tests.support.processes import tree_cpu_s

from benchmarks.cores import machine, pin_clients, pinned
from benchmarks.ending import end_on_sigterm
from benchmarks.nodes import MAKERS, Target
from benchmarks.one_record_requests import OneRecordRequests
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import codec, messages

PRODUCE = int(ApiKey.PRODUCE)
VERSIONS = {ApiKey.PRODUCE: (3, 7), ApiKey.METADATA: (0, 4), ApiKey.API_VERSIONS: (0, 3)}
"""Produce v7 has fields of fixed sizes only: its response is the same for each request."""

TOPIC = "round"


def serve(listener: socket.socket) -> None:
    """Answer every connection, until the process is ended."""
    port = listener.getsockname()[1]
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, port), daemon=True).start()


def _answer(connection: socket.socket, port: int) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    name = struct.pack(">h", len(TOPIC)) + TOPIC.encode()
    after = struct.pack(">i", 1) + name + struct.pack(">iihqqqi", 1, 0, 0, 0, -1, 0, 0)
    before = struct.pack(">i", 4 + len(after))
    pending = b""
    while received := connection.recv(1 << 18):
        pending += received
        at = 0
        sending: list[bytes] = []
        while len(pending) - at >= 4:
            size = int.from_bytes(pending[at : at + 4])
            if len(pending) - at < 4 + size:
                break
            if pending[at + 5] == PRODUCE:
                sending += (before, pending[at + 8 : at + 12], after)
            else:
                sending += _described(pending[at + 4 : at + 4 + size], port)
            at += 4 + size
        pending = pending[at:]
        connection.sendall(b"".join(sending))


def _described(frame: bytes, port: int) -> list[bytes]:
    """The response to ApiVersions or Metadata, with its length in front of it."""
    header = codec.decode_request_header(memoryview(frame))
    response: object
    if header.api_key == ApiKey.API_VERSIONS:
        made = messages.ApiVersionsResponse
        response = made(api_keys=[made.ApiVersion(key, *each) for key, each in VERSIONS.items()])
    else:
        assert header.api_key == ApiKey.METADATA, header
        meta = messages.MetadataResponse
        part = meta.MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        topic = meta.MetadataResponseTopic(name=TOPIC, partitions=[part])
        node = meta.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)
        response = meta(brokers=[node], controller_id=1, topics=[topic])
    encoded = codec.encode_response(
        header.api_key, header.api_version, header.correlation_id, response
    )
    return [b"".join(map(bytes, encoded))]


class Floor:
    """The server above in a process of its own, as a row of ``make bench`` sees a node."""

    name = "a server without work"

    def __init__(self, cores: frozenset[int]) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.bootstrap = f"127.0.0.1:{listener.getsockname()[1]}"
        self._process = multiprocessing.get_context("fork").Process(target=serve, args=(listener,))
        self._process.start()
        listener.close()
        assert self._process.pid is not None
        os.sched_setaffinity(self._process.pid, cores)

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def cpu_s(self) -> float:
        """CPU seconds of the process."""
        assert self._process.pid is not None
        return tree_cpu_s(self._process.pid)

    @contextlib.contextmanager
    def topic(self) -> Iterator[str]:
        """The topic of which it speaks."""
        yield TOPIC


def main() -> None:
    """Measure the three in turn, print the medians and the ratios of each round."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_record_floor")
    parser.add_argument("--rounds", type=int, default=5, help="after one to warm up")
    options = parser.parse_args()
    end_on_sigterm()
    cores = pin_clients()
    row = OneRecordRequests()
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    with contextlib.ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        floor = running.enter_context(Floor(cores.servers))
        targets = [cast("Target", floor)]
        for name, make in MAKERS.items():
            target = Target(name, pinned(make, cores), Path(folder) / name.replace(" ", "-"))
            running.enter_context(target.node)
            targets.append(target)
        for number in range(options.rounds + 1):
            for target in targets:
                rate, cost = row.measure(target, quick=False)
                if number:
                    rates.setdefault(target.name, []).append(rate)
                    costs.setdefault(target.name, []).append(cost)
    print(f"{machine()}; {cores}; {options.rounds} rounds; load {os.getloadavg()[0]:.1f}")
    theirs = rates["Apache Kafka"]
    for name, found in rates.items():
        ratios = [a / b for a, b in zip(found, theirs, strict=True)]
        print(
            f"{name:22} {statistics.median(found):8,.0f} requests/s "
            f"({min(found):,.0f} to {max(found):,.0f}), {statistics.median(costs[name]):.1f} ms "
            f"of CPU per 1000, {statistics.median(ratios):.2f} x Kafka "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
