"""Reads every replica of a partition, leader and followers, to compare them.

Owns the requests: Fetch with Kafka's replica id of a debugging consumer, -2, which tidelog serves
on every replica up to the high watermark known there. Not what counts as a difference: see
``differences``. Changes nothing on the brokers.

Bounds: one chunk of ``CHUNK_BYTES`` (or one larger batch) per replica in memory, for each partition
that is compared at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused
from tidelog.client.replicas.differences import (
    ComparedChunk,
    Difference,
    first_difference,
    first_different_record,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

CHUNK_BYTES = 1024 * 1024

DEBUGGING_CONSUMER = -2
"""The replica id by which Kafka's own tool reads replicas."""

CATCH_UP_S = 3.0
"""How long a replica may take to receive the high watermark that the leader had at the start."""

PAUSE_S = 0.1
NO_SESSION = -1
PURPOSE = "replicas"


@dataclass(frozen=True, slots=True)
class _Read:
    """One response of one replica."""

    high_watermark: int
    start: int
    records: memoryview


@dataclass
class Comparison:
    """The result of one partition: [start, end) was requested and compared up to ``reached``.

    ``unread`` has the reason by broker when a replica could not be read; ``lagging`` the high
    watermark by broker when it did not reach ``end`` in time.
    """

    partition: TopicPartition
    start: int = 0
    end: int = 0
    reached: int = 0
    size: int = 0
    replicas: tuple[int, ...] = ()
    unread: dict[int, str] = field(default_factory=dict)
    lagging: dict[int, int] = field(default_factory=dict)
    difference: Difference | None = None


async def compare_replicas(
    cluster: Cluster,
    partition: TopicPartition,
    *,
    compacted: bool = False,
    progress: Callable[[int], None] = lambda size: None,
) -> Comparison:
    """Compare all replicas of a partition up to the leader's current high watermark.

    ``compacted``: record by record (see ``differences``). ``progress`` is called with the number of
    bytes of each step. A replica that cannot be read is reported and skipped; nothing is raised for
    it. Raises Refused for a partition that does not exist.
    """
    view = cluster.view.partition(partition)
    if view is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(partition))
    done = Comparison(partition, replicas=view.replicas)
    first = await _read_each(cluster, partition, done, view.replicas, max_bytes=1)
    if not first:
        return done
    leader = first.get(view.leader)
    marks = [read.high_watermark for read in first.values()]
    done.end = leader.high_watermark if leader is not None else min(marks)
    done.start = done.reached = max(read.start for read in first.values())
    reading = sorted(first)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CATCH_UP_S
    while done.reached < done.end and reading and done.difference is None:
        chunks = await _read_each(cluster, partition, done, reading)
        start = max((read.start for read in chunks.values()), default=done.end)
        if start > done.reached:
            # Retention or DeleteRecords removed records: these cannot be compared.
            done.reached = min(start, done.end)
            continue
        late = {b: r.high_watermark for b, r in chunks.items() if r.high_watermark <= done.reached}
        if late and loop.time() < deadline:
            await asyncio.sleep(PAUSE_S)
            continue
        done.lagging.update(late)
        reading = [broker for broker in chunks if broker not in late]
        if reading and _take({b: chunks[b] for b in reading}, done, compacted, progress):
            deadline = loop.time() + CATCH_UP_S
    return done


def _take(
    chunks: Mapping[int, _Read], done: Comparison, compacted: bool, progress: Callable[[int], None]
) -> bool:
    """Compare the chunks and record how far they reach; return whether that is further."""
    piece = _compare(chunks, done, compacted)
    done.difference = piece.difference
    done.size += piece.size
    progress(piece.size)
    moved = piece.next_offset > done.reached
    if not moved and piece.difference is None:
        # Never from a sound log: its first batch is always sent whole (KIP-74).
        held = dict.fromkeys(chunks, "bytes that are not a batch")
        done.difference = Difference(done.reached, held)
    done.reached = piece.next_offset
    return moved


def _compare(chunks: Mapping[int, _Read], done: Comparison, compacted: bool) -> ComparedChunk:
    records = {broker: read.records for broker, read in chunks.items()}
    if compacted:
        ends = min(read.high_watermark for read in chunks.values())
        return first_different_record(records, done.reached, ends)
    return first_difference(records, done.reached)


async def _read_each(
    cluster: Cluster,
    partition: TopicPartition,
    done: Comparison,
    brokers: Sequence[int],
    max_bytes: int = CHUNK_BYTES,
) -> dict[int, _Read]:
    """Read the next chunk from each broker; record the brokers that cannot be read."""
    results = await asyncio.gather(
        *(_read(cluster, broker, partition, done.reached, max_bytes) for broker in brokers)
    )
    reads: dict[int, _Read] = {}
    for broker, read in zip(brokers, results, strict=True):
        if isinstance(read, _Read):
            reads[broker] = read
        else:
            done.unread[broker] = str(read)
    return reads


async def _read(
    cluster: Cluster, broker: int, partition: TopicPartition, offset: int, max_bytes: int
) -> _Read | ClientError:
    fetch = messages.FetchRequest
    request = fetch(
        replica_id=DEBUGGING_CONSUMER,
        max_wait_ms=0,
        min_bytes=0,
        session_epoch=NO_SESSION,
        topics=[
            fetch.FetchTopic(
                topic=partition.topic,
                partitions=[
                    fetch.FetchPartition(
                        partition=partition.partition,
                        fetch_offset=offset,
                        partition_max_bytes=max_bytes,
                    )
                ],
            )
        ],
    )
    try:
        answer: messages.FetchResponse = await cluster.send(broker, request, purpose=PURPOSE)
    except ClientError as error:
        return error
    if answer.error_code:
        return Refused(answer.error_code, f"broker {broker}")
    part = answer.responses[0].partitions[0]
    out_of_range = part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset >= 0
    if part.error_code and not out_of_range:
        return Refused(part.error_code, f"{partition} on broker {broker}")
    return _Read(part.high_watermark, part.log_start_offset, _as_one(part.records or b""))


def _as_one(records: object) -> memoryview:
    assert isinstance(records, bytes | bytearray | memoryview), (
        "responses have one contiguous buffer"
    )
    return memoryview(records)
