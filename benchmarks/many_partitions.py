"""What does one request cost a node's CPU when it names many partitions, or needs records opened?

Ready-made frames on one connection, five in flight; CPU of the whole process by request, in
microseconds. A JVM is warm after ``WARM_UP`` requests of each row, which no round counts.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.support import clients
from tests.support.node import receive_frame
from tests.support.processes import DEADLINE_S, wait_until

from benchmarks.measuring import Metric
from benchmarks.nodes import Target
from tidelog.client.connecting.connection import api_of_request
from tidelog.protocol import codec, messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.compression import CODEC_NAMES, Codec

IN_FLIGHT = 5
WARM_UP = 10_000
"""Requests of each row before its first round: 200,000 over all rows."""

GOAL, FLAT_GOAL = 0.8, 0.5
"""docs/design/speed.md: of Apache Kafka's CPU; the second for metadata and commits."""

PARTITIONS, EMPTY_PARTITIONS = 100, 1_000
BATCHES_BY_TIME = 2_000
RECORDS = 100
GROUP = "many-partitions"

CODECS = ("gzip", "snappy", "lz4", "zstd")
MANY, EMPTY, TIMES, COMPACTED = "many", "empty", "times", "compacted"
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    MANY: (PARTITIONS, {}),
    EMPTY: (EMPTY_PARTITIONS, {}),
    TIMES: (1, {"segment_bytes": "1048576"}),
    COMPACTED: (1, {"cleanup_policy": "compact"}),
    **{f"to-{name}": (1, {"compression_type": name}) for name in CODECS},
}
"""Partition counts and configurations."""


class Client:
    """One connection to a node that has the topics."""

    def __init__(self, target: Target) -> None:
        for name, (count, config) in TOPICS.items():
            clients.create_topic(target.bootstrap, name, count, **config)
        host, port = target.bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.session_id = self.session_epoch = 0
        self.warm: set[str] = set()
        self._fill()

    def ask(self, version: int, request: Any) -> Any:
        """Send one request, and return its response."""
        self._socket.sendall(frame_of(version, request))
        key = api_of_request(request).key
        return codec.decode_response(key, version, memoryview(receive_frame(self._socket)))[1]

    def send_all(self, frames: Iterable[bytes]) -> None:
        """Send them all, ``IN_FLIGHT`` at a time, and read the responses."""
        waiting = 0
        for frame in frames:
            if waiting == IN_FLIGHT:
                self._skip()
                waiting -= 1
            self._socket.sendall(frame)
            waiting += 1
        for _ in range(waiting):
            self._skip()

    def _skip(self) -> None:
        (left,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))
        while left:
            left -= len(self._socket.recv(min(left, 1 << 20)))

    def _fill(self) -> None:
        response = self.ask(11, produce(MANY, range(PARTITIONS), 1_000))
        parts = response.responses[0].partition_responses
        assert not any(each.error_code for each in parts), parts
        response = self.ask(12, fetch(MANY, PARTITIONS))
        sizes = {len(each.records) for each in response.responses[0].partitions}
        assert sizes == {READ_BYTES}, sizes
        begin_ms = int(time.time() * 1000) - 2 * BATCHES_BY_TIME
        self.send_all(
            frame_of(11, produce(TIMES, [0], 500, at_ms=begin_ms + number))
            for number in range(BATCHES_BY_TIME)
        )

        def commits() -> bool:
            self.ask(4, messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
            topics = self.ask(8, commit(PARTITIONS)).topics
            return bool(topics) and not any(x.error_code for x in topics[0].partitions)

        wait_until(commits, DEADLINE_S, "the group's coordinator takes a commit")


def frame_of(version: int, request: Any) -> bytes:
    """Return a request as it goes over the wire."""
    return b"".join(codec.encode_request(api_of_request(request).key, version, 1, "bench", request))


def batch_of(
    size: int,
    records: int = 1,
    codec_: Codec = Codec.NONE,
    at_ms: int | None = None,
    keys: bool = False,
    longest: int | None = None,
) -> bytes:
    """A batch of text that compresses a little; the values have ``size`` bytes, or as many to
    ``longest``."""
    at_ms = int(time.time() * 1000) if at_ms is None else at_ms
    chance = random.Random(size)
    made = [
        NewRecord(at_ms, b"%d" % number if keys else None, chance.randbytes(length // 2) * 2)
        for number, length in enumerate(
            chance.randint(size, longest or size) for _ in range(records)
        )
    ]
    return build_batch(made, codec=codec_)


READ_BYTES = len(batch_of(1_000))
"""What a Fetch reads of each partition: the first batch, no part of the next one."""


def produce(topic: str, partitions: Iterable[int], size: int, **batch_is: Any) -> Any:
    """A Produce with the same batch for each partition."""
    batch = batch_of(size, **batch_is)
    request = messages.ProduceRequest
    data = [request.PartitionProduceData(index=index, records=batch) for index in partitions]
    named = [request.TopicProduceData(name=topic, partition_data=data)]
    return request(acks=-1, timeout_ms=30_000, topic_data=named)


def fetch(topic: str, count: int, session_id: int = 0, epoch: int = -1) -> Any:
    """A Fetch of these partitions from their start, without a wait."""
    request = messages.FetchRequest
    parts = [
        request.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=READ_BYTES)
        for index in range(count)
    ]
    named = [request.FetchTopic(topic=topic, partitions=parts)] if parts else []
    return request(
        max_wait_ms=0, min_bytes=1, topics=named, session_id=session_id, session_epoch=epoch
    )


def metadata(*topics: str) -> Any:
    """All that a client asks of these topics."""
    request = messages.MetadataRequest
    named = [request.MetadataRequestTopic(name=topic) for topic in topics]
    return request(topics=named, allow_auto_topic_creation=False)


def commit(count: int) -> Any:
    """A commit without a member, as a tool makes it."""
    request = messages.OffsetCommitRequest
    parts = [
        request.OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
        for index in range(count)
    ]
    topic = request.OffsetCommitRequestTopic(name=MANY, partitions=parts)
    return request(group_id=GROUP, topics=[topic])


def committed(count: int) -> Any:
    """The offsets of so many partitions."""
    request = messages.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopic(name=MANY, partition_indexes=list(range(count)))
    return request(group_id=GROUP, topics=[topic])


def by_time() -> Any:
    """A look-up in the middle of the log."""
    request = messages.ListOffsetsRequest
    at_ms = int(time.time() * 1000) - BATCHES_BY_TIME
    part = request.ListOffsetsPartition(partition_index=0, timestamp=at_ms)
    topic = request.ListOffsetsTopic(name=TIMES, partitions=[part])
    return request(replica_id=-1, topics=[topic])


CLIENTS: dict[Target, Client] = {}
"""All rows share the connection and the topics."""


@dataclass
class RequestRow:
    """One kind of request."""

    kind: str
    count: int
    version: int
    request: Callable[[], Any]
    goal: float = GOAL
    cold: bool = False
    title: str = field(init=False)
    metrics: tuple[Metric, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.title = f"many: {self.kind}"
        self.metrics = (Metric(f"CPU, {self.kind}", "µs per request", "less", self.goal),)

    def frames(self, _client: Client, count: int) -> Iterable[bytes]:
        """So many frames."""
        return [frame_of(self.version, self.request())] * count

    def measure(self, target: Target, quick: bool) -> list[float]:
        client = CLIENTS.get(target) or CLIENTS.setdefault(target, Client(target))
        if self.kind not in client.warm:
            client.warm.add(self.kind)
            client.send_all(self.frames(client, self.count if quick else WARM_UP))
        count = self.count // 2 if quick else self.count
        frames = self.frames(client, count)
        before = target.cpu_s()
        client.send_all(frames)
        return [(target.cpu_s() - before) / count * 1e6]


class SessionRow(RequestRow):
    """A fetch session in which nothing is new."""

    def frames(self, client: Client, count: int) -> Iterator[bytes]:
        """Frames of one session, each with its epoch."""
        if not client.session_id:
            client.session_id = client.ask(self.version, self.request()).session_id
        for _ in range(count):
            client.session_epoch += 1
            yield frame_of(self.version, fetch(EMPTY, 0, client.session_id, client.session_epoch))


def _sent_to(name: str) -> str:
    """The name of a codec that a topic of this one has to replace."""
    return "zstd" if name == "lz4" else "lz4"


ROWS: tuple[RequestRow, ...] = (
    *(
        RequestRow(
            f"Produce to {count} partitions, {size} B",
            24_000 // count,
            11,
            partial(produce, MANY, range(count), size),
        )
        for count in (12, PARTITIONS)
        for size in (100, 1_000)
    ),
    *(
        RequestRow(
            f"Produce of {RECORDS} records, {_sent_to(name)} to a {name} topic",
            1_000,
            11,
            partial(
                produce, f"to-{name}", [0], 100, records=RECORDS, codec_=CODEC_NAMES[_sent_to(name)]
            ),
        )
        for name in CODECS
    ),
    RequestRow(
        f"Produce of {RECORDS} keyed records to a compacted topic",
        2_000,
        11,
        partial(produce, COMPACTED, [0], 100, records=RECORDS, keys=True),
    ),
    RequestRow(
        f"Produce of {RECORDS} keyed records of 50 to 400 B to a compacted topic",
        2_000,
        11,
        partial(produce, COMPACTED, [0], 50, records=RECORDS, keys=True, longest=400),
    ),
    *(
        RequestRow(
            f"Fetch of {count} partitions, 1 kB each",
            24_000 // count,
            12,
            partial(fetch, MANY, count),
        )
        for count in (12, PARTITIONS)
    ),
    *(
        RequestRow(
            f"Fetch of {count:,} empty partitions without a session",
            120_000 // count,
            12,
            partial(fetch, EMPTY, count),
        )
        for count in (200, EMPTY_PARTITIONS)
    ),
    SessionRow(
        f"Fetch in a session of {EMPTY_PARTITIONS:,} quiet partitions",
        2_000,
        12,
        partial(fetch, EMPTY, EMPTY_PARTITIONS, 0, 0),
    ),
    RequestRow(
        f"Metadata of {PARTITIONS} partitions", 2_000, 9, partial(metadata, MANY), FLAT_GOAL
    ),
    RequestRow(
        f"Metadata of {PARTITIONS + EMPTY_PARTITIONS:,} partitions",
        300,
        9,
        partial(metadata, MANY, EMPTY),
        FLAT_GOAL,
    ),
    *(
        RequestRow(
            f"OffsetCommit of {count} partitions",
            24_000 // count,
            8,
            partial(commit, count),
            FLAT_GOAL,
        )
        for count in (12, PARTITIONS)
    ),
    *(
        RequestRow(
            f"OffsetFetch of {count} partitions",
            36_000 // count,
            7,
            partial(committed, count),
            FLAT_GOAL,
        )
        for count in (12, PARTITIONS)
    ),
    RequestRow("ListOffsets by time", 3_000, 6, by_time),
)
