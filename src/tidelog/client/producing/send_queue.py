"""The batches of one partition on their way out: order, sequence numbers, what a failure means.

Owns the rules of one partition's sending side; knows no connection and no clock. What goes out,
when, and over which connection is ``producing``.

With an identity (idempotent producer, KIP-98) every batch gets its place in the sequence when it
is first sent and keeps it in all retries, so a broker can tell a repeated batch. A batch that
fails for good leaves a hole: the queue is then **broken**. It sends nothing new; what was under
way is answered or sent again under its old number, where only two answers are possible: appended,
or OUT_OF_ORDER_SEQUENCE_NUMBER, which proves that it was not; those wait for the new identity.
When nothing is under way any more the queue takes a new identity and starts at sequence 0.

A batch of several records that is too large for its topic is cut in two, under the numbers that it
had, and later batches are begun smaller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import HEADER_SIZE, read_header, seal_batch
from tidelog.records.builder import FastBuilder, Producer
from tidelog.records.reader import read_batch

MAX_SEQUENCE = 2**31 - 1


class Sent(NamedTuple):
    """Where a record was written. ``offset`` is -1 when it is not known (acks=0)."""

    partition: TopicPartition
    offset: int
    timestamp: int


@dataclass(slots=True)
class SendTally:
    """What became of many records that share one answer: counts, and what the first error was."""

    taken: int = 0
    """Records that were taken: written, refused, or not answered yet."""
    written: int = 0
    failed: int = 0
    first_error: ClientError | None = None

    @property
    def unanswered(self) -> int:
        return self.taken - self.written - self.failed

    def fail(self, count: int, error: ClientError) -> None:
        """Count records that were not acknowledged."""
        self.failed += count
        self.first_error = self.first_error or error


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records of one partition that travel together."""

    partition: TopicPartition
    builder: FastBuilder
    number: tuple[int, ...]
    """Its place among the batches of its queue; halves of (4,) are (4, 0) and (4, 1)."""
    outcomes: list[tuple[asyncio.Future[Sent], int]] = field(default_factory=list)
    tally: SendTally | None = None
    """Where its records are counted that have no ``outcomes``: all of them, or none."""
    size: int = 0
    data: bytes | None = None
    producer: Producer | None = None
    attempts: int = 0
    done: bool = False
    trouble: ClientError | None = None
    """Why it was sent again last; None while nothing went wrong."""
    halves: tuple[ProducerBatch, ...] = ()
    """What replaces it, once it was cut in two."""

    def encode(self) -> bytes:
        """Return the bytes to send, under the identity it has now."""
        if self.data is None:
            if self.producer is not None:
                self.builder.set_producer(self.producer)
            self.data = self.builder.build()
        return self.data

    def identify(self, producer: Producer) -> None:
        """Give it a place in a producer's sequence; only for one that was not appended."""
        self.producer = producer
        if self.data is not None:
            header = read_header(self.data)._replace(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=producer.base_sequence,
            )
            self.data = seal_batch(header, memoryview(self.data)[HEADER_SIZE:])

    def succeed(self, base_offset: int, append_time: int) -> None:
        """Tell every record's sender where it lies."""
        self.done = True
        for index, (outcome, timestamp) in enumerate(self.outcomes):
            if not outcome.done():
                offset = base_offset + index if base_offset >= 0 else -1
                shown = timestamp if append_time < 0 else append_time
                outcome.set_result(Sent(self.partition, offset, shown))
        if self.tally is not None:
            self.tally.written += self.builder.count

    def fail(self, error: ClientError) -> None:
        """Tell every record's sender that it was not acknowledged."""
        self.done = True
        for outcome, _ in self.outcomes:
            if not outcome.done():
                outcome.set_exception(error)
        if self.tally is not None:
            self.tally.fail(self.builder.count, error)


@dataclass(slots=True)
class BatchResult:
    """What a broker said of one batch; ``error`` None is success."""

    error: ClientError | None
    base_offset: int = -1
    append_time: int = -1


class SendQueue:
    """Batches of one partition, oldest first: waiting, then in flight, then done."""

    def __init__(
        self,
        partition: TopicPartition,
        max_in_flight: int,
        *,
        idempotent: bool,
        batch_bytes: int = 16_384,
        codec: int = 0,
    ) -> None:
        self.partition = partition
        self._batch_bytes = batch_bytes
        self._codec = codec
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.broken = False
        self.not_before = 0.0
        self.failed_lookups = 0
        """How often in a row no leader was found."""
        self._idempotent = idempotent
        # Without sequence numbers a retry would overtake what was sent behind it.
        self._limit = max_in_flight if idempotent else 1
        self._identity: Producer | None = None
        self._next_sequence = 0
        self._next_number = 0

    def open(self, tally: SendTally | None = None) -> ProducerBatch:
        """Add an empty batch behind all others; ``tally`` counts its records, if it is given."""
        self._next_number += 1
        builder = FastBuilder(self._batch_bytes, codec=self._codec)
        batch = ProducerBatch(self.partition, builder, (self._next_number,), tally=tally)
        self.waiting.append(batch)
        return batch

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self.waiting and not self.in_flight

    @property
    def last(self) -> ProducerBatch | None:
        """Return the batch that records are still added to, if it was never sent."""
        if self.waiting and self.waiting[-1].data is None:
            return self.waiting[-1]
        return None

    def needs_identity(self, current: Producer | None) -> bool:
        """Whether sending waits for a producer id other than the one it had."""
        if not self._idempotent or (not self.broken and self._identity is not None):
            return False
        return current is None or current == self._identity

    def next(self, current: Producer | None) -> ProducerBatch | None:
        """Return the batch that may be looked at for sending now; ``sent`` takes it.

        ``current`` is the producer's identity, without a sequence.
        """
        if not self.waiting or len(self.in_flight) >= self._limit:
            return None
        if not self._idempotent:
            return self.waiting[0]
        if self.broken:
            numbered = (batch for batch in self.waiting if batch.producer is not None)
            unclear = next(numbered, None)
            if unclear is not None:
                return unclear
        if self.waiting[0].producer is None and (self.broken or self._identity is None):
            if self.in_flight or current is None or current == self._identity:
                return None
            self._identity, self._next_sequence, self.broken = current, 0, False
        return self.waiting[0]

    def sent(self, batch: ProducerBatch) -> bytes:
        """Move a batch that ``next`` gave into flight and return its bytes."""
        self.waiting.remove(batch)
        if self._idempotent and batch.producer is None:
            assert self._identity is not None
            batch.identify(self._identity._replace(base_sequence=self._next_sequence))
            count = batch.builder.count
            self._next_sequence = (self._next_sequence + count) & MAX_SEQUENCE
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch.encode()

    def answered(self, batch: ProducerBatch, answer: BatchResult) -> bool:
        """Take in an answer; True when the batch is done, False when it will be sent again."""
        self.in_flight.remove(batch)
        error = answer.error
        if batch.done:
            # It expired while it was under way.
            return True
        batch.trouble = error
        code = error.code if isinstance(error, Refused) else None
        if error is None or code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            batch.succeed(answer.base_offset, answer.append_time)
            return True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.broken:
            batch.producer = None
            self._requeue(batch)
            return False
        waits = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._has_earlier(batch)
        if waits or isinstance(error, ConnectionLost) or (code is not None and code.retriable):
            self._requeue(batch)
            return False
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.builder.count > 1:
            self._cut(batch)
            return True
        self.fail(batch, error)
        return True

    def _cut(self, batch: ProducerBatch) -> None:
        """Replace a refused batch by its two halves; it was not appended, so its numbers hold."""
        assert batch.data is not None
        records = read_batch(batch.data)
        self._batch_bytes = max(1, len(batch.data) // 2)
        middle = len(records) // 2
        halves = []
        for side, (start, stop) in enumerate(((0, middle), (middle, len(records)))):
            # As large as it gets: the limit counts what is not compressed yet.
            builder = FastBuilder(MAX_SEQUENCE, codec=self._codec)
            for record in records[start:stop]:
                added = builder.append(
                    record.timestamp, record.key, record.value, list(record.headers)
                )
                assert added, "a half of a batch has room for its records"
            half = ProducerBatch(self.partition, builder, (*batch.number, side))
            half.outcomes = batch.outcomes[start:stop]
            half.tally = batch.tally
            if batch.producer is not None:
                sequence = (batch.producer.base_sequence + start) & MAX_SEQUENCE
                half.producer = batch.producer._replace(base_sequence=sequence)
            half.encode()
            self._requeue(half)
            halves.append(half)
        batch.halves = tuple(halves)
        batch.done = True

    def fail(self, batch: ProducerBatch, error: ClientError) -> None:
        """Give a batch up, wherever it is; a sequence number that is lost breaks the queue."""
        if batch in self.waiting:
            self.waiting.remove(batch)
        if batch.producer is not None:
            self.broken = True
        batch.fail(error)

    def _has_earlier(self, batch: ProducerBatch) -> bool:
        """Whether an earlier batch of the sequence is in flight or waits to be sent again."""
        return any(
            other.producer is not None and other.number < batch.number
            for other in (*self.in_flight, *self.waiting)
        )

    def _requeue(self, batch: ProducerBatch) -> None:
        """Put a batch back at its place: before every younger one."""
        older = sum(1 for other in self.waiting if other.number < batch.number)
        self.waiting.insert(older, batch)
