"""A leader and a follower in this process, joined by real connections."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.lone_broker import LoneBroker, until
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.client.connecting import connection as connections
from tidelog.client.errors import RequestTimedOut
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch

FOLLOWER_EPOCH = 7


class Pair:
    """Broker 1 leads, broker 2 follows; topics are made on both by a word."""

    def __init__(self, folder: Path, config: dict[str, object] | None = None) -> None:
        shared = {"replica.fetch.backoff.ms": 50, **(config or {})}
        self.leader = LoneBroker(folder / "1", shared)
        self.follower = LoneBroker(folder / "2", {**shared, "node.id": 2})

    async def start(self) -> None:
        await self.leader.start()
        await self.follower.start()
        self.follower.session = SimpleNamespace(broker_epoch=FOLLOWER_EPOCH)
        self.tell(self.leader.port)

    def tell(self, port: int) -> None:
        """Let the follower know where the leader is."""
        request = messages.UpdateMetadataRequest
        end = request.UpdateMetadataEndpoint(port=port, host="127.0.0.1", listener="PLAINTEXT")
        broker = request.UpdateMetadataBroker(id=1, endpoints=[end])
        update = request(controller_id=1, live_brokers=[broker])
        self.follower.broker.metadata.apply(update, complete=False)

    def lead(self, index: int = 0, epoch: int = 1, **changes: Any) -> HostedPartition:
        """Broker 1 leads t-INDEX."""
        return _apply(self.leader, index, epoch, **changes)

    def follow(self, index: int = 0, epoch: int = 1, **changes: Any) -> HostedPartition:
        """Broker 2 follows t-INDEX."""
        return _apply(self.follower, index, epoch, **changes)

    async def stop(self) -> None:
        await self.follower.broker.followers.close()
        await self.follower.stop()
        await self.leader.stop()


def _apply(lone: LoneBroker, index: int, epoch: int, **changes: Any) -> HostedPartition:
    fields = {
        "topic_id": uuid.uuid5(uuid.NAMESPACE_OID, "t"),
        "partition_epoch": 0,
        "leader": 1,
        "leader_epoch": epoch,
        "isr": (1, 2),
        "isr_version": epoch,
        "replicas": (1, 2),
        **changes,
    }
    state = LeaderAndIsrState(**fields)
    partitions = lone.broker.partitions
    hosted = partitions.create("t", index, state)
    partitions.apply(hosted, state)
    return hosted


@asynccontextmanager
async def running(folder: Path, config: dict[str, object] | None = None) -> AsyncIterator[Pair]:
    pair = Pair(folder, config)
    await pair.start()
    try:
        yield pair
    finally:
        await pair.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def append(hosted: HostedPartition, *values: str) -> None:
    now_ms = int(time.time() * 1000)
    for value in values:
        records = build_batch([NewRecord(now_ms, None, value.encode())])
        result = hosted.append(records, now_ms)
        assert hasattr(result, "first_offset"), result


def content(hosted: HostedPartition) -> bytes:
    found = hosted.read(hosted.start_offset, 2**20, committed=False)
    assert isinstance(found, memoryview), found
    return bytes(found)


def flip_a_bit(hosted: HostedPartition) -> None:
    """Damage the first batch in the file, or heal it again."""
    segment = Path(f"{hosted.log.path}/{0:020}.log")
    damaged = bytearray(segment.read_bytes())
    damaged[100] ^= 1
    segment.write_bytes(damaged)


async def until_same(leader: HostedPartition, follower: HostedPartition) -> None:
    """Wait until the follower has the leader's bytes and its high watermark."""
    await until(
        lambda: (
            follower.end_offset == leader.end_offset
            and follower.high_watermark == leader.high_watermark == leader.end_offset
        )
    )
    assert content(leader) == content(follower)
    assert follower.start_offset == leader.start_offset


def slow_greeting(asked: list[int | None], needs_ms: int) -> Any:
    """A ``connect`` to a peer that is greeted if it is waited for long enough."""

    async def connect(*address: Any, **options: Any) -> Any:
        asked.append(options.get("greeting_timeout_ms"))
        if (asked[-1] or 0) < needs_ms:
            raise RequestTimedOut("it has too much to do")
        return await connections.connect(*address, **options)

    return connect
