"""Produce, Fetch and ListOffsets requests to a broker in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.lone_broker import LoneBroker, Peer
from tidelog.protocol import messages
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.runtime.seams import Seams

LATEST = 11


@asynccontextmanager
async def running(
    folder: Path, config: dict[str, object] | None = None, seams: Seams | None = None
) -> AsyncIterator[tuple[LoneBroker, Peer]]:
    lone = LoneBroker(folder, config, seams)
    await lone.start()
    try:
        yield lone, await Peer.connect(lone.port)
    finally:
        await lone.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def batch(*values: str, producer: Producer | None = None, timestamp: int | None = None) -> bytes:
    now = int(time.time() * 1000) if timestamp is None else timestamp
    records = [NewRecord(now, None, value.encode()) for value in values]
    return build_batch(records) if producer is None else build_batch(records, producer=producer)


def produce(
    records: bytes | None,
    topic: str = "t",
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 5000,
    transactional_id: str | None = None,
) -> Any:
    request = messages.ProduceRequest
    part = request.PartitionProduceData(index=partition, records=records)
    data = request.TopicProduceData(name=topic, partition_data=[part])
    return request(
        acks=acks, timeout_ms=timeout_ms, topic_data=[data], transactional_id=transactional_id
    )


async def send(peer: Peer, *args: Any, version: int = LATEST, **kwargs: Any) -> Any:
    answer = await peer.ask(produce(*args, **kwargs), version)
    return answer.responses[0].partition_responses[0]


def fetch(
    offset: int = 0,
    partitions: Sequence[int] = (0,),
    *,
    topic: str = "t",
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 2**26,
    partition_max_bytes: int = 2**20,
    epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    forget: Sequence[int] = (),
    replica_id: int = -1,
    last_fetched_epoch: int = -1,
) -> Any:
    request = messages.FetchRequest
    asked = [
        request.FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        for index in partitions
    ]
    return request(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=[request.FetchTopic(topic=topic, partitions=asked)] if asked else [],
        forgotten_topics_data=[request.ForgottenTopic(topic, partitions=list(forget))]
        if forget
        else [],
    )


def offsets(records: Any) -> list[int]:
    return [header.base_offset for _, header in walk(records)]
