"""Simulated clients: producers and readers that write down what they saw.

Owns when a client sends, sends again and gives up, and what it may conclude from an answer. Uses
the product's connections and codecs; keeps its own books, so that a mistake in the product's
producer cannot hide one in the server.

A producer keeps up to five batches in flight on one connection. When the connection breaks or an
response asks for a retry, it connects again and sends its window again, in order, with the same
sequence numbers.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.history import Final, History, Outcome, Write
from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.batch import Buffer, walk
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.records.reader import read_all
from tidelog.records.record import CorruptRecords

IN_FLIGHT = 5
REQUEST_TIMEOUT_MS = 10_000

BEFORE_APPEND = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors that are given before anything is appended: the write is definitely refused."""

LOST_STATE = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""The broker does not know this producer's past: go on under a new id, the window undetermined."""


class _TryAgain(Exception):
    """The session ends and a new one begins."""


@dataclass
class _Batch:
    sequence: int
    writes: list[Write]
    content: bytes


@dataclass(frozen=True)
class Target:
    """A partition at an address."""

    host: str
    port: int
    topic: str
    partition: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    async def connect(self) -> ClientConnection:
        return await connect(self.host, self.port, connect_timeout_ms=5_000)


def _produce_request(target: Target, content: bytes, acks: int = -1) -> messages.ProduceRequest:
    data = messages.ProduceRequest.PartitionProduceData(index=target.partition, records=content)
    topic = messages.ProduceRequest.TopicProduceData(name=target.topic, partition_data=[data])
    return messages.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[topic])


class SimulatedProducer:
    """An idempotent producer of one partition: acks=all, five in flight, retries for ever."""

    def __init__(
        self,
        history: History,
        rng: random.Random,
        target: Target,
        name: str,
        *,
        keys: int = 0,
        codecs: tuple[int, ...] = (0,),
        acks: int = -1,
        wall_ms: int = 1_767_225_600_000,
    ) -> None:
        """With ``acks`` 1 nothing is promised: an answer leaves the write undetermined."""
        self.name = name
        self.acked = 0
        self.restarts = 0
        """How often a batch was out of order for the broker: it had forgotten this producer, or had
        taken a later batch of the window as the first of an unknown one."""
        self.errors: set[ErrorCode] = set()
        self.target = target
        self._history = history
        self._rng = rng
        self._target = target
        self._keys = keys
        self._codecs = codecs
        self.acks = acks
        self._wall_ms = wall_ms
        self._window: deque[_Batch] = deque()
        self._identity: tuple[int, int] | None = None
        self._sequence = 0
        self._number = 0
        self._left = 0

    async def run(self, batches: int, pause: float = 0.01) -> None:
        """Send so many batches and return when all are answered."""
        self._left += batches
        while self._left or self._window:
            try:
                await self._session(pause)
            except (_TryAgain, ClientError, OSError):
                await asyncio.sleep(self._rng.uniform(0.02, 0.3))

    def finish(self) -> None:
        """Stop beginning batches; ``run`` returns when all have responses."""
        self._left = 0

    def give_up(self) -> None:
        """What is not answered now stays undetermined."""
        for batch in self._window:
            for write in batch.writes:
                self._history.end(write, Outcome.UNDETERMINED)
        self._window.clear()
        self._left = 0

    async def _session(self, pause: float) -> None:
        connection = await self._target.connect()
        pending: deque[tuple[_Batch, asyncio.Future[object]]] = deque()
        try:
            if self._identity is None:
                self._identity = await self._initialise(connection)
            pending.extend((batch, self._submit(connection, batch)) for batch in self._window)
            while self._left or pending:
                while self._left and len(pending) < IN_FLIGHT and self._rng.random() < 0.8:
                    batch = self._new_batch()
                    pending.append((batch, self._submit(connection, batch)))
                if pending:
                    batch, future = pending.popleft()
                    self._answered(connection.peer, batch, await future)
                if pause:
                    await asyncio.sleep(self._rng.uniform(0, pause))
        finally:
            connection.close()
            for _, future in pending:
                future.exception()  # seen: the window is sent again

    async def _initialise(self, connection: ClientConnection) -> tuple[int, int]:
        request = messages.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )
        answer = await connection.send(request, timeout_ms=REQUEST_TIMEOUT_MS)
        if answer.error_code:
            self.errors.add(ErrorCode(answer.error_code))
            raise _TryAgain
        self._sequence = 0
        return answer.producer_id, answer.producer_epoch

    def _new_batch(self) -> _Batch:
        assert self._identity is not None
        self._left -= 1
        writes, records = [], []
        for _ in range(self._rng.randint(1, 4)):
            value = f"{self._target.name}/{self.name}/{self._number}/".encode()
            value += self._rng.randbytes(self._rng.choice((0, 10, 300))).hex().encode()
            key = b"k%d" % self._rng.randrange(self._keys) if self._keys else None
            writes.append(
                self._history.send(self._target.name, self.name, self._number, value, key=key)
            )
            records.append(NewRecord(self._wall_ms, key, value))
            self._number += 1
        content = build_batch(
            records,
            codec=self._rng.choice(self._codecs),
            producer=Producer(*self._identity, self._sequence),
        )
        batch = _Batch(self._sequence, writes, content)
        self._sequence += len(writes)
        self._window.append(batch)
        return batch

    def _submit(self, connection: ClientConnection, batch: _Batch) -> asyncio.Future[object]:
        request = _produce_request(self._target, batch.content, self.acks)
        return connection.submit(request, timeout_ms=REQUEST_TIMEOUT_MS)

    def _answered(self, peer: str, batch: _Batch, answer: object) -> None:
        found = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
        error = ErrorCode(found.error_code)
        if error is ErrorCode.NONE:
            assert self._window[0] is batch
            self._window.popleft()
            outcome = Outcome.ACKED if self.acks == -1 else Outcome.UNDETERMINED
            for place, write in enumerate(batch.writes):
                self._history.end(write, outcome, found.base_offset + place, peer)
            self.acked += len(batch.writes)
            return
        self.errors.add(error)
        if error in LOST_STATE:
            left = self._left
            self.give_up()
            self._left = left
            self._identity = None
            self.restarts += 1
        raise _TryAgain


async def send_once(
    history: History,
    target: Target,
    name: str,
    number: int,
    *,
    corrupt: bool = False,
    size: int = 10,
    wall_ms: int = 1_767_225_600_000,
) -> ErrorCode | None:
    """Send one record without an identity and without retries; None when no answer came."""
    value = f"{target.name}/{name}/{number}/".encode() + b"x" * size
    content = bytearray(build_batch([NewRecord(wall_ms, None, value)]))
    if corrupt:
        content[-1] ^= 1
    write = history.send(target.name, name, number, value, idempotent=False, corrupt=corrupt)
    try:
        connection = await target.connect()
    except (ClientError, OSError):
        history.end(write, Outcome.REFUSED)
        return None
    try:
        request = _produce_request(target, bytes(content))
        answer = await connection.send(request, timeout_ms=REQUEST_TIMEOUT_MS)
    except (ClientError, OSError):
        history.end(write, Outcome.UNDETERMINED)
        return None
    finally:
        connection.close()
    found = answer.responses[0].partition_responses[0]
    error = ErrorCode(found.error_code)
    if error is ErrorCode.NONE:
        history.end(write, Outcome.ACKED, found.base_offset)
    else:
        history.end(write, Outcome.REFUSED if error in BEFORE_APPEND else Outcome.UNDETERMINED)
    return error


class SimulatedReader:
    """Follows a partition from its start and notes every record it gets."""

    def __init__(self, history: History, rng: random.Random, target: Target, name: str) -> None:
        self.name = name
        self.position = -1
        self.high_watermark = -1
        self.above_watermark: list[int] = []
        """Offsets that came in an answer whose high watermark was not above them."""
        self.errors: set[ErrorCode] = set()
        self._history = history
        self._rng = rng
        self._target = target

    async def run(self) -> None:
        """Read for ever; end it with ``cancel``."""
        while True:
            try:
                await self._session()
            except (_TryAgain, ClientError, OSError):
                await asyncio.sleep(self._rng.uniform(0.02, 0.3))
            except CorruptRecords as error:
                self._history.corruption("served", self._target.host, self._target.name, str(error))
                await asyncio.sleep(self._rng.uniform(0.02, 0.3))

    async def _session(self) -> None:
        connection = await self._target.connect()
        try:
            while True:
                if self.position < 0:
                    self.position = await offset_of(connection, self._target, -2)
                found = await fetch(
                    connection, self._target, self.position, self._rng.choice((200, 5_000, 1 << 20))
                )
                self._take(found)
        finally:
            connection.close()

    def _take(self, found: messages.FetchResponse.PartitionData) -> None:
        error = ErrorCode(found.error_code)
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.position = -1
            return
        if error is not ErrorCode.NONE:
            self.errors.add(error)
            raise _TryAgain
        self.high_watermark = found.high_watermark
        data = found.records or b""
        for record in read_all(data, self.position):
            assert record.value is not None
            self._history.read(self._target.name, record.offset, bytes(record.value), self.name)
            if record.offset >= found.high_watermark:
                self.above_watermark.append(record.offset)
        self.position = _behind(data, self.position)


def _behind(data: Buffer, position: int) -> int:
    """Return the next position to read: after the last whole batch, with records in it or not."""
    for _, header in walk(data):
        position = header.next_offset
    return position


async def fetch(
    connection: ClientConnection, target: Target, offset: int, max_bytes: int, wait_ms: int = 500
) -> messages.FetchResponse.PartitionData:
    """Return one partition's answer to one Fetch without a session."""
    partition = messages.FetchRequest.FetchPartition(
        partition=target.partition, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    topic = messages.FetchRequest.FetchTopic(topic=target.topic, partitions=[partition])
    request = messages.FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, topics=[topic]
    )
    answer = await connection.send(request, timeout_ms=REQUEST_TIMEOUT_MS)
    if answer.error_code or not answer.responses:
        raise _TryAgain
    return answer.responses[0].partitions[0]


async def offset_of(connection: ClientConnection, target: Target, timestamp: int) -> int:
    """Return what ListOffsets says for a timestamp (-2 earliest, -1 latest)."""
    partition = messages.ListOffsetsRequest.ListOffsetsPartition(
        partition_index=target.partition, timestamp=timestamp
    )
    topic = messages.ListOffsetsRequest.ListOffsetsTopic(name=target.topic, partitions=[partition])
    request = messages.ListOffsetsRequest(replica_id=-1, topics=[topic])
    answer = await connection.send(request, timeout_ms=REQUEST_TIMEOUT_MS)
    found = answer.topics[0].partitions[0]
    if found.error_code:
        raise _TryAgain
    return int(found.offset)


async def read_whole(target: Target, *, compacted: bool = False, seconds: float = 60) -> Final:
    """Return everything readable in a partition; tries again until the broker answers."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await _read_once(target, compacted)
            except (_TryAgain, ClientError, OSError):
                await asyncio.sleep(0.1)


async def _read_once(target: Target, compacted: bool) -> Final:
    connection = await target.connect()
    try:
        start = position = await offset_of(connection, target, -2)
        end = await offset_of(connection, target, -1)
        records: dict[int, bytes] = {}
        keys: dict[int, bytes | None] = {}
        while position < end:
            found = await fetch(connection, target, position, 1 << 20)
            if found.error_code:
                raise _TryAgain
            data = found.records or b""
            for record in read_all(data, position):
                records[record.offset] = bytes(record.value or b"")
                keys[record.offset] = None if record.key is None else bytes(record.key)
            position = _behind(data, position)
        return Final(target.name, start, end, records, keys, compacted)
    finally:
        connection.close()


async def create_topic(
    host: str, port: int, name: str, partitions: int, configs: dict[str, str] | None = None
) -> None:
    """Create a topic; tries again until the broker answers. An existing one is fine."""
    listed = [
        messages.CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
        for key, value in (configs or {}).items()
    ]
    topic = messages.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=listed
    )
    request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    fine = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    await _until_answered(host, port, request, lambda answer: answer.topics[0].error_code in fine)


async def delete_topic(host: str, port: int, name: str) -> None:
    """Delete a topic; tries again until the broker answers. An unknown one is fine."""
    topic = messages.DeleteTopicsRequest.DeleteTopicState(name=name)
    request = messages.DeleteTopicsRequest(topics=[topic], topic_names=[name], timeout_ms=10_000)
    fine = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await _until_answered(
        host, port, request, lambda answer: answer.responses[0].error_code in fine
    )


async def _until_answered(
    host: str, port: int, request: object, is_fine: Callable[[Any], bool]
) -> None:
    while True:
        try:
            connection = await connect(host, port, connect_timeout_ms=5_000)
            try:
                answer = await connection.send(request, timeout_ms=REQUEST_TIMEOUT_MS)
            finally:
                connection.close()
            if is_fine(answer):
                return
        except (ClientError, OSError):
            pass  # a fault is under way: again, in a moment
        await asyncio.sleep(0.1)
