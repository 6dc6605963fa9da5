"""How long does a producer wait while 200 clients ask for the metadata of 3,000 partitions at once?

A node of its own with 60 topics of 50 partitions. One connection writes a record every 5 ms with
acks=all; meanwhile 200 connections send one Metadata request each, for all topics, and read their
responses without decoding them. CPU is that of the node's process, per response.
"""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass

from confluent_kafka.admin import NewTopic
from tests.support import clients
from tests.support.processes import DEADLINE_S, tree_cpu_s, wait_until

from benchmarks.many_partitions import frame_of, produce
from benchmarks.measuring import Metric
from benchmarks.nodes import Target
from tidelog.protocol import messages

TOPICS, PARTITIONS = 60, 50
CLIENTS = 200
PAUSE_S = 0.005
AT_REST_S = 1.0
"""How long the producer writes before the clients ask: its connection and the logs are warm."""


def create(bootstrap: str) -> None:
    """Create the topics, and return when each partition has its leader."""
    client = clients.admin(bootstrap)
    wanted = [NewTopic(f"storm-{number}", PARTITIONS, 1) for number in range(TOPICS)]
    for made in client.create_topics(wanted, request_timeout=DEADLINE_S).values():
        made.result(DEADLINE_S)

    def led() -> bool:
        seen = client.list_topics(timeout=DEADLINE_S).topics.values()
        leaders = [part.leader for topic in seen for part in topic.partitions.values()]
        return len(leaders) >= TOPICS * PARTITIONS and min(leaders) >= 0

    wait_until(led, DEADLINE_S, "all partitions have leaders")


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes
) -> None:
    """Send a request, and drop its response."""
    writer.write(frame)
    (left,) = struct.unpack(">i", await reader.readexactly(4))
    while left:
        left -= len(await reader.read(min(left, 1 << 18)))


async def write_until(ended: asyncio.Event, host: str, port: int, waits_ms: list[float]) -> None:
    """Write a record every ``PAUSE_S``, and note how long each took."""
    reader, writer = await asyncio.open_connection(host, port)
    frame = frame_of(11, produce("storm-0", [0], 100))
    while not ended.is_set():
        begun = time.perf_counter()
        await exchange(reader, writer, frame)
        waits_ms.append((time.perf_counter() - begun) * 1000)
        await asyncio.sleep(PAUSE_S)
    writer.close()


async def storm(bootstrap: str, pid: int) -> tuple[float, float]:
    """Return the producer's longest wait, and the CPU of one response, both in ms."""
    host, port = bootstrap.rsplit(":", 1)
    frame = frame_of(9, messages.MetadataRequest(topics=None, allow_auto_topic_creation=False))
    asking = [await asyncio.open_connection(host, int(port)) for _ in range(CLIENTS)]
    waits_ms: list[float] = []
    ended = asyncio.Event()
    producer = asyncio.create_task(write_until(ended, host, int(port), waits_ms))
    await asyncio.sleep(AT_REST_S)
    waits_ms.clear()
    before_s = tree_cpu_s(pid)
    await asyncio.gather(*(exchange(*each, frame) for each in asking))
    used_ms = (tree_cpu_s(pid) - before_s) * 1000
    ended.set()
    # The write that is on its way counts, too.
    await producer
    for _, writer in asking:
        writer.close()
    return max(waits_ms), used_ms / CLIENTS


@dataclass
class StormRow:
    """200 clients at once."""

    title: str = "metadata storm"
    cold: bool = True
    metrics: tuple[Metric, ...] = (
        Metric(f"longest wait of a producer, {CLIENTS} clients ask for all", "ms", "less"),
        Metric(f"CPU, {CLIENTS} × Metadata of {TOPICS * PARTITIONS:,} partitions", "ms", "less"),
    )

    def measure(self, target: Target, quick: bool) -> list[float]:
        with target.another() as node:
            create(node.bootstrap)
            return list(asyncio.run(storm(node.bootstrap, node.program.pid)))


ROWS = (StormRow(),)
