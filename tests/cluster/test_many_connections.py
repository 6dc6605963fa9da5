"""A thousand connections, each with pipelined requests of 1 MB: memory stays bounded.

The requests are for a partition that does not exist: each is received whole, held, parsed and
refused, and nothing goes to the disk. As every client does, each connection begins with a small
request: of one that has asked for nothing yet little is held, and not for long (promise 30).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import DEADLINE_S, resident_bytes
from tests.support.server import TidelogNode
from tests.support.target import TARGET
from tidelog.model.api_keys import ApiKey
from tidelog.protocol import codec, messages
from tidelog.records.builder import NewRecord, build_batch

pytestmark = [
    pytest.mark.skipif(TARGET != "tidelog", reason="a promise of tidelog's"),
]

CONNECTIONS = 1000
PIPELINED = 2
VALUE_BYTES = 1_000_000
QUEUED_BYTES = 64 * 1024 * 1024
FIRST_BUFFER_BYTES = 65_536
SLACK_BYTES = 96 * 1024 * 1024
"""The process itself, and what the allocator keeps."""


def request_frame() -> bytes:
    batch = build_batch([NewRecord(1, None, b"x" * VALUE_BYTES)])
    request = messages.ProduceRequest
    part = request.PartitionProduceData(index=0, records=batch)
    topic = request.TopicProduceData(name="not-there", partition_data=[part])
    whole: Any = request(acks=-1, timeout_ms=30_000, topic_data=[topic])
    return b"".join(codec.encode_request(ApiKey.PRODUCE, 9, 1, "many", whole))


async def answer(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def greeted(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose first, small request was answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request: Any = messages.ApiVersionsRequest("test", "1")
    writer.write(b"".join(codec.encode_request(ApiKey.API_VERSIONS, 3, 0, "many", request)))
    await answer(reader)
    return reader, writer


async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> int:
    """Send all requests before the first answer is read; how many were answered."""
    try:
        for _ in range(PIPELINED):
            writer.write(frame)
        await writer.drain()
        for _ in range(PIPELINED):
            await answer(reader)
    finally:
        writer.close()
    return PIPELINED


async def watched(port: int, pid: int) -> int:
    """Run all connections at once; the most memory that the server had resident."""
    frame = request_frame()
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resident_bytes(pid))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(6 * DEADLINE_S):
        opened = [await greeted(port) for _ in range(CONNECTIONS)]
        answered = await asyncio.gather(*(one(*each, frame) for each in opened))
    watching.cancel()
    assert sum(answered) == CONNECTIONS * PIPELINED
    return max(most, resident_bytes(pid))


def test_a_thousand_connections_with_pipelined_requests_of_1_mb(tmp_path: Path) -> None:
    config = {"queued.max.request.bytes": QUEUED_BYTES, "auto.create.topics.enable": "false"}
    with TidelogNode(tmp_path, config) as node:
        idle = resident_bytes(node.program.pid)
        try:
            most = asyncio.run(watched(node.port, node.program.pid))
        except OSError as error:
            raise AssertionError(node.said("answers all")) from error
    bound = idle + QUEUED_BYTES + CONNECTIONS * FIRST_BUFFER_BYTES + SLACK_BYTES
    print(f"idle {idle >> 20} MB, at most {most >> 20} MB, bound {bound >> 20} MB")
    assert most < bound
