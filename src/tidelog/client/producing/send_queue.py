"""The send queue of one partition: order, sequence numbers, the meaning of a failure.

Owns the rules of one partition's batches, without a connection or a clock. Not what is sent when,
and on which connection: see ``delivery``.

With an identity (idempotent producer, KIP-98) every batch gets its sequence number when it is first
sent and keeps it in all retries, so that a broker detects a duplicate. A batch that fails for good
leaves a gap: the queue is then **broken**. It sends nothing new. Batches in flight complete, or are
retried under their old numbers with two possible results: appended, or
OUT_OF_ORDER_SEQUENCE_NUMBER, which proves that the batch was not appended; these wait for the new
identity. When no batch is in flight the queue takes a new identity and starts at sequence 0.

A broker recognizes the last five batches of a producer (KIP-98). So a batch whose outcome is open
is always one of the last five that were sent, also while later ones are acknowledged: a new leader
acknowledges those, and the former one has not answered yet. Otherwise its retry would be refused as
out of order, and be written a second time under a new identity.

All batches in flight are with one broker, on one connection, and only one is until that broker has
acknowledged one of this identity since the last failure. When another broker leads, they are given
up and go there; so they do when they wait for another partition's replicas (``lanes``). A
leader that does not know the producer may take any first sequence number: a later batch would
otherwise be written before one that a former leader has not answered, or that this one has refused,
and that one be refused as out of order for good.

A batch of several records that is too large for its topic is split in two, under its own numbers,
and later batches are smaller.

A queue is of one incarnation of its partition (KIP-253): the next one has another queue, from
sequence 0. A batch that a leader refused because its topic was resized is certainly not in the log:
it is taken back, and its sequence numbers are given to the next one. See ``turning``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.client.producing.lanes import NOWHERE, Lane
from tidelog.client.producing.record_metadata import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    OpenOutcome,
    RecordMetadata,
    fail_outcome,
)
from tidelog.client.producing.settings import MOST_RETRIES
from tidelog.client.stamps import Stamp, partition_stamp
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import HEADER_SIZE, read_header, seal_batch
from tidelog.records.builder import FastBuilder, Producer
from tidelog.records.reader import read_batch
from tidelog.replication.resize_rules import Named

MAX_SEQUENCE = 2**31 - 1

REMEMBERED = 5
"""Batches of a producer and partition whose retry every broker recognizes, Kafka's included."""


@dataclass(slots=True)
class SendTally:
    """The outcome of many records: counts, and the first error."""

    taken: int = 0
    """Records accepted: written, refused, or unacknowledged."""
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
    """Records of one partition that are sent together."""

    partition: TopicPartition
    builder: FastBuilder
    number: tuple[int, ...]
    """Its place in the order of ``send``: the halves of (4,) are (4, 0) and (4, 1), and (4, 9) has
    records of (4,) that were held while their topic was resized."""
    stamp: Stamp | None = None
    """What its records were hashed under, for ever; None: the topic is not ordered."""
    is_fixed: bool = False
    """Whether the caller named the partition of its records."""
    outcomes: list[OpenOutcome] = field(default_factory=list)
    tally: SendTally | None = None
    """The tally of its records; they have no ``outcomes`` then."""
    size: int = 0
    deadline: float = 0.0
    """When it fails for good, on the loop's clock."""
    data: bytes | None = None
    producer: Producer | None = None
    attempts: int = 0
    done: bool = False
    failure: ClientError | None = None
    """Why its records failed, until they are counted."""
    trouble: ClientError | None = None
    """The error of the last retry; None without one."""
    halves: tuple[ProducerBatch, ...] = ()
    """The two batches that replace it after a split."""

    @property
    def failed(self) -> bool:
        """Whether its records failed and are not counted yet."""
        return self.failure is not None

    def encode(self) -> bytes:
        """Return the bytes to send, under its current identity."""
        if self.data is None:
            if self.producer is not None:
                self.builder.set_producer(self.producer)
            self.data = self.builder.build()
        return self.data

    def identify(self, producer: Producer) -> None:
        """Assign a place in a producer's sequence; only to a batch that was not appended."""
        self.producer = producer
        if self.data is not None:
            header = read_header(self.data)._replace(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=producer.base_sequence,
            )
            self.data = seal_batch(header, memoryview(self.data)[HEADER_SIZE:])

    def succeed(self, base_offset: int, append_time: int) -> None:
        """Complete the futures of its records with their offsets."""
        self.done = True
        tp = self.partition
        topic, index = tp
        kind = CREATE_TIME if append_time < 0 else LOG_APPEND_TIME
        offset, step = (base_offset, 1) if base_offset >= 0 else (-1, 0)
        for outcome, created, *sizes in self.outcomes:
            if not outcome.done():
                timestamp = created if append_time < 0 else append_time
                metadata = (topic, index, tp, offset, timestamp, kind, *sizes)
                # Without the Python call of a NamedTuple: this is done for each record.
                outcome.set_result(tuple.__new__(RecordMetadata, metadata))
            offset += step
        if self.tally is not None:
            self.tally.written += self.builder.count

    def fail(self, error: ClientError) -> None:
        """Fail the futures of its records: they were not acknowledged."""
        self.done, self.failure = True, error
        for outcome, *_ in self.outcomes:
            fail_outcome(outcome, error)
        if self.tally is not None:
            self.tally.fail(self.builder.count, error)


@dataclass(slots=True)
class BatchResult:
    """A broker's result for one batch; ``error`` None is success, ``node_id`` the broker."""

    error: ClientError | None
    base_offset: int = -1
    append_time: int = -1
    node_id: int = -1


class SendQueue:
    """Batches of one partition, oldest first: waiting, then in flight, then done."""

    def __init__(
        self,
        partition: TopicPartition,
        max_in_flight: int,
        *,
        idempotent: bool,
        batch_bytes: int = 16_384,
        new_builder: Callable[[int], FastBuilder] = FastBuilder,
        partition_epoch: int = -1,
        numbers: Iterator[int] | None = None,
        retries: int = MOST_RETRIES,
        former: Producer | None = None,
    ) -> None:
        """``former``: an identity that must not be used here, see ``turning``."""
        self.partition = partition
        self.partition_epoch = partition_epoch
        self._batch_bytes = batch_bytes
        self._new_builder = new_builder
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self._lane = NOWHERE
        """The broker and the connection that the last batch was sent to."""
        self.leader_epoch = -1
        """The leader epoch in which it was sent."""
        self.is_known = False
        """Whether that broker has acknowledged a batch of this identity since the last failure."""
        self.broken = former is not None
        self.not_before = 0.0
        self.failed_lookups = 0
        """Attempts in a row that found no leader."""
        self._idempotent = idempotent
        # Without sequence numbers a retry could be appended after later batches.
        self._limit = max_in_flight if idempotent else 1
        self._identity = former
        self._next_sequence = 0
        self._newest: list[ProducerBatch] = []
        """Those with sequence numbers from the oldest on whose outcome is open, in their order."""
        self._taken_back: tuple[int, ...] | None = None
        """The first batch that was taken back since the last one that got its numbers."""
        self._numbers = numbers or itertools.count(1)
        self._last_number: tuple[int, ...] = ()
        self._late: list[tuple[tuple[int, ...], ProducerBatch]] = []
        """Batches of held records that came after later ones, with their places among all."""
        self._retries = retries

    def open(
        self,
        tally: SendTally | None = None,
        *,
        stamp: Stamp | None = None,
        is_fixed: bool = False,
        held: tuple[int, ...] = (),
    ) -> ProducerBatch:
        """Add an empty batch at the end; ``tally`` counts its records, if given.

        ``held``: the place of its first record in the order of ``send``, if that was held.
        """
        builder = self._new_builder(self._batch_bytes)
        place = (*held, next(self._numbers))
        # The numbers of a queue ascend: its order is that of its sequence numbers.
        number = place if place > self._last_number else (*self._last_number, place[-1])
        self._last_number = number
        batch = ProducerBatch(self.partition, builder, number, stamp, is_fixed, tally=tally)
        if number is not place:
            self._late.append((place, batch))
        self.waiting.append(batch)
        return batch

    def stamp_of(self, batch: ProducerBatch) -> Named:
        """Return what a request says of a batch's count and epochs."""
        return partition_stamp(batch.stamp, self.partition_epoch)

    def undetermined(self) -> list[ProducerBatch]:
        """Return the batches whose outcome is open, in no order."""
        return [batch for batch in (*self.waiting, *self.in_flight) if not batch.done]

    def has_before(self, number: tuple[int, ...]) -> bool:
        """Whether a batch before a place in the order of ``send`` has no outcome."""
        waiting = self.waiting
        if waiting and waiting[0].number < number:
            return True
        self._late = [late for late in self._late if not late[1].done]
        if any(place < number for place, _ in self._late):
            return True
        return any(batch.number < number and not batch.done for batch in self.in_flight)

    def unsent(self) -> list[ProducerBatch]:
        """Return the waiting batches that are certainly not in the log, in their order."""
        if self._idempotent:
            return [batch for batch in self.waiting if batch.producer is None]
        return [batch for batch in self.waiting if batch.attempts == 0]

    def take_back(self, batch: ProducerBatch) -> None:
        """Remove a batch that is certainly not in the log; its sequence numbers are free again."""
        (self.waiting if batch in self.waiting else self.in_flight).remove(batch)
        batch.done = True
        self._forget(batch)
        if batch.producer is None:
            return
        if self._taken_back is None or batch.number < self._taken_back:
            self._taken_back = batch.number
            self._next_sequence = batch.producer.base_sequence

    @property
    def empty(self) -> bool:
        """Whether no batch is waiting or in flight."""
        return not self.waiting and not self.in_flight

    @property
    def last(self) -> ProducerBatch | None:
        """Return the last batch, to which records are added, if it was never sent."""
        if self.waiting and self.waiting[-1].data is None:
            return self.waiting[-1]
        return None

    def needs_identity(self, current: Producer | None) -> bool:
        """Whether sending waits for another producer identity."""
        if not self._idempotent or (not self.broken and self._identity is not None):
            return False
        return current is None or current == self._identity

    def next(self, current: Producer | None) -> ProducerBatch | None:
        """Return the batch that may be sent now; ``sent`` moves it into flight.

        ``current`` is the producer's identity, without a sequence.
        """
        if not self.waiting or len(self.in_flight) >= self._limit:
            return None
        if not self._idempotent:
            return self.waiting[0]
        # A leader that does not know the producer cannot tell a gap: with several in flight it
        # could append a later batch first (0100).
        if self.in_flight and not self.is_known:
            return None
        if self.broken:
            # They may be in the log: under another identity they would be there twice (promise 6).
            numbered = (batch for batch in self.waiting if batch.producer is not None)
            unclear = next(numbered, None)
            if unclear is not None:
                return None if self._would_push_out_another(unclear) else unclear
        if self.waiting[0].producer is None and (self.broken or self._identity is None):
            if self.in_flight or current is None or current == self._identity:
                return None
            self._identity, self._next_sequence, self.broken = current, 0, False
            self.is_known = False
        return None if self._would_push_out_another(self.waiting[0]) else self.waiting[0]

    def may_go_to(self, lane: Lane) -> bool:
        """Whether no other broker or connection has batches in flight."""
        return not self.in_flight or lane == self._lane

    def is_with_another(self, node_id: int) -> bool:
        """Whether another broker has batches in flight."""
        return bool(self.in_flight) and node_id != self._lane.node_id

    def _would_push_out_another(self, batch: ProducerBatch) -> bool:
        """Whether brokers would forget a batch whose outcome is open, if they appended this one."""
        newest = self._newest
        while newest and newest[0].done:
            del newest[0]
        place = len(newest) if batch.producer is None else newest.index(batch)
        return place >= REMEMBERED

    def _forget(self, batch: ProducerBatch, halves: Sequence[ProducerBatch] = ()) -> None:
        """Take a batch that was not appended out of the sequence; its halves take its place."""
        if batch in self._newest:
            place = self._newest.index(batch)
            self._newest[place : place + 1] = halves

    def give_up(self, error: ClientError) -> int:
        """Take the batches in flight back into the queue; return how many records they have.

        Another broker, or another connection, is sent the same batches under their numbers.
        """
        if not self._idempotent or any(batch.attempts > self._retries for batch in self.in_flight):
            return 0
        given_up, self.in_flight = self.in_flight, []
        self.is_known = False
        for batch in given_up:
            if not batch.done:
                batch.trouble = error
                self._requeue(batch)
        return sum(batch.builder.count for batch in given_up if not batch.done)

    def sent(self, batch: ProducerBatch, lane: Lane = NOWHERE, leader_epoch: int = -1) -> bytes:
        """Move a batch that ``next`` returned into flight to a broker and return its bytes."""
        self.leader_epoch = leader_epoch
        if lane.node_id != self._lane.node_id:
            self.is_known = False
        self._lane = lane
        self.waiting.remove(batch)
        if self._idempotent and batch.producer is None:
            assert self._identity is not None
            batch.identify(self._identity._replace(base_sequence=self._next_sequence))
            count = batch.builder.count
            self._next_sequence = (self._next_sequence + count) & MAX_SEQUENCE
            self._taken_back = None
            self._newest.append(batch)
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch.encode()

    def answered(self, batch: ProducerBatch, answer: BatchResult) -> bool:
        """Apply a result; True when the batch is done, False when it will be retried."""
        self.in_flight.remove(batch)
        error = answer.error
        code = error.code if isinstance(error, Refused) else None
        self.is_known = error is None or code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        if batch.done:
            # It expired while it was in flight.
            return True
        batch.trouble = error
        if error is None or self.is_known:
            batch.succeed(answer.base_offset, answer.append_time)
            return True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.broken:
            batch.producer = None
            self._forget(batch)
            self._requeue(batch)
            return False
        waits = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._has_earlier(batch)
        may_pass = isinstance(error, ConnectionLost) or (code is not None and code.retriable)
        if waits or (may_pass and batch.attempts <= self._retries):
            self._requeue(batch)
            return False
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.builder.count > 1:
            self._cut(batch)
            return True
        self.fail(batch, error)
        return True

    def _cut(self, batch: ProducerBatch) -> None:
        """Replace a refused batch by its halves; it was not appended, so its numbers stay valid."""
        assert batch.data is not None
        records = read_batch(batch.data)
        self._batch_bytes = max(1, len(batch.data) // 2)
        middle = len(records) // 2
        halves = []
        for side, (start, stop) in enumerate(((0, middle), (middle, len(records)))):
            # As large as possible: the limit counts uncompressed bytes.
            builder = self._new_builder(MAX_SEQUENCE)
            for record in records[start:stop]:
                added = builder.append(
                    record.timestamp, record.key, record.value, list(record.headers)
                )
                assert added, "a half of a batch has room for its records"
            half = ProducerBatch(
                self.partition, builder, (*batch.number, side), batch.stamp, batch.is_fixed
            )
            half.outcomes = batch.outcomes[start:stop]
            half.tally = batch.tally
            if batch.producer is not None:
                sequence = (batch.producer.base_sequence + start) & MAX_SEQUENCE
                half.producer = batch.producer._replace(base_sequence=sequence)
            half.encode()
            self._requeue(half)
            halves.append(half)
        self._forget(batch, halves)
        batch.halves = tuple(halves)
        batch.done = True

    def fail(self, batch: ProducerBatch, error: ClientError) -> None:
        """Fail a batch, waiting or in flight; a lost sequence number breaks the queue."""
        if batch in self.waiting:
            self.waiting.remove(batch)
        if batch.producer is not None:
            self.broken = True
        batch.fail(error)

    def _has_earlier(self, batch: ProducerBatch) -> bool:
        """Whether an earlier batch of the sequence is in flight or waits for a retry."""
        return any(
            other.producer is not None and other.number < batch.number
            for other in (*self.in_flight, *self.waiting)
        )

    def _requeue(self, batch: ProducerBatch) -> None:
        """Put a batch back at its position, before every later one."""
        older = sum(1 for other in self.waiting if other.number < batch.number)
        self.waiting.insert(older, batch)
