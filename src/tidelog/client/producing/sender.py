"""The record sender: batches records, sends them to leaders, retries, reports each outcome once.

Owns the path of a record from ``send`` into a batch: partitioning, lingering, memory; and the parts
of a producer. Not the requests and retries: see ``delivery``. Not order and sequence numbers of one
partition: see ``send_queue``. Not a topic that is resized meanwhile: see ``turning`` and
``topic_follower``. Not the arguments and serializers of the public Producer: see ``tidelog.aio``.

Order: records of one partition are written in the order of ``send``, also after retries (five
requests in flight with an identity, one without), and records of one key also while their topic
grows or shrinks. Bounds: ``buffer_bytes`` of unacknowledged records; ``send`` waits above that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, GaveUp, Refused, WrongState
from tidelog.client.metadata import Topic
from tidelog.client.producing.ancestor_tombstones import AncestorTombstones
from tidelog.client.producing.delivery import BatchDelivery
from tidelog.client.producing.partitioner import PartitionChooser
from tidelog.client.producing.record_metadata import RecordMetadata, RecordOutcome
from tidelog.client.producing.send_memory import SendMemory
from tidelog.client.producing.send_queues import SendQueues
from tidelog.client.producing.settings import SendSettings
from tidelog.client.producing.topic_follower import TOMBSTONES, TopicFollower
from tidelog.client.producing.transactional import SenderTransactions
from tidelog.client.producing.turning import TopicTurning
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import NewRecord
from tidelog.records.record import Header
from tidelog.runtime.clock import Clock, RealClock

LAST_WAIT_S = 1.0
"""How long ``close`` waits for ancestor tombstones, which may be lost."""

RECORD_OVERHEAD_BYTES = 100
"""The estimated memory of a record in Python, beyond its key, value and headers."""


class RecordSender:
    """Sends records. ``async with RecordSender(cluster) as sender`` flushes and closes."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SendSettings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or SendSettings()
        self.clock = clock or RealClock()
        self.memory = SendMemory(self.settings.buffer_bytes)
        self.queues = SendQueues(self.settings)
        self.chooser = PartitionChooser(cluster.settings.backoff.random, self.settings.partitioner)
        self.turning = TopicTurning(
            self.queues, self.chooser, is_by_key=self.settings.partitioner is None
        )
        self.delivery = BatchDelivery(cluster, self.settings, self.queues, self.memory)
        self.tombstones = AncestorTombstones(cluster, self.clock)
        self.topics = TopicFollower(cluster, self.turning, self.delivery, self.tombstones)
        self.delivery.topics = self.topics
        self._cluster = cluster
        self.refuses: Callable[[], ClientError] | None = None
        """Why no new record is accepted, although accepted ones are still written: ``close`` has
        begun, or no transaction is open."""
        self.transactions: SenderTransactions | None = None
        if self.settings.transactional_id is not None:
            self.transactions = SenderTransactions(cluster, self, self.settings.transactional_id)
            self.delivery.transactions = self.transactions

    async def __aenter__(self) -> RecordSender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> asyncio.Future[RecordMetadata]:
        """Accept a record and return the future of its place.

        Waits for the topic's metadata and for memory, at most ``max_block_ms``. The future fails
        with Refused, or GaveUp after ``delivery_timeout_ms``. Raises Refused for an unknown topic
        or partition and for a record that is too large, GaveUp when there is no memory in time.
        """
        outcome: asyncio.Future[RecordMetadata] = asyncio.Future(loop=asyncio.get_running_loop())
        if not self.accept(topic, value, key, partition, timestamp_ms, headers, outcome):
            await self.accept_later(topic, value, key, partition, timestamp_ms, headers, outcome)
        elif self.delivery.owes_turn:
            await self.give_turn()
        return outcome

    async def give_turn(self) -> None:
        """Let the loop send and receive; otherwise brokers idle until the memory is full."""
        self.delivery.owes_turn = False
        await asyncio.sleep(0)

    def accept(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
        outcome: RecordOutcome,
    ) -> bool:
        """Accept a record now, whose outcome ``outcome`` receives; False: it has to wait first.

        With False nothing was done: ``accept_later`` waits. Raises as ``send`` does.
        """
        if self.refuses is not None:
            raise self.refuses()
        epochs = self.turning.topics.get(topic)
        if epochs is None or epochs.view is not self._cluster.view:
            epochs = self.topics.known(topic)
            if epochs is None:
                return False
        key_bytes = -1 if key is None else len(key)
        value_bytes = -1 if value is None else len(value)
        header_bytes = -1
        size = RECORD_OVERHEAD_BYTES + key_bytes + value_bytes
        if headers:
            header_bytes = size_of(headers)
            size += header_bytes
        if size > self.settings.max_request_bytes:
            raise self._not_taken(self._too_large(topic, size))
        # Without a call of ``has_room``: this is done for each record.
        memory = self.memory
        if memory.used and memory.used + size > memory.limit:
            return False
        # The record is hashed under what metadata say now.
        if partition is not None and (why := epochs.why_not(partition)) is not None:
            raise self._not_taken(why)
        if timestamp_ms is None:
            timestamp_ms = self.clock.wall_ms()
        opened = (outcome, timestamp_ms, key_bytes, value_bytes, header_bytes)
        home = partition
        if epochs.is_turning:
            home = self.turning.home_now(epochs, key, partition)
        elif partition is None:
            home = self.chooser.choose(epochs.seen, key)
        if home is None or (epochs.is_turning and epochs.is_shut(home)):
            record = NewRecord(timestamp_ms, key, value, headers)
            self.topics.hold_new(epochs, record, size, partition, opened, home=home)
        else:
            queue = epochs.queues.get(home)
            batch = None if queue is None or not queue.waiting else queue.waiting[-1]
            if (
                batch is None
                or batch.data is not None
                or batch.stamp is not epochs.stamp
                or batch.is_fixed is not (partition is not None)
                or batch.tally is not None
                or not batch.builder.append(timestamp_ms, key, value, headers)
            ):
                # All but the usual case, which costs no call for each record.
                record = NewRecord(timestamp_ms, key, value, headers)
                is_fixed = partition is not None
                batch = self.topics.append(epochs, home, record, is_fixed=is_fixed)
            batch.outcomes.append(opened)
            batch.size += size
        memory.used += size
        return True

    async def accept_later(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
        outcome: RecordOutcome,
    ) -> None:
        """Wait for the topic's metadata and for memory, then accept a record. Raises as ``send``.

        ``max_block_ms`` bounds each of the two waits.
        """
        size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + size_of(headers)
        try:
            await self.topic(topic)
            while not self.accept(topic, value, key, partition, timestamp_ms, headers, outcome):
                await self.topic(topic)
                await self.wait_for_room(size)
        except ClientError as error:
            raise self._not_taken(error) from error.__cause__

    def _not_taken(self, error: ClientError) -> ClientError:
        """Return why a record was not accepted: its transaction cannot be committed."""
        if self.transactions is not None and not isinstance(error, WrongState):
            self.transactions.lost(error)
        return error

    def _too_large(self, topic: str, size: int) -> Refused:
        most = self.settings.max_request_bytes
        why = (
            f"the record has {size} bytes and max_request_size is {most}: "
            "send less, or raise max_request_size here and max.message.bytes of the topic"
        )
        return Refused(ErrorCode.MESSAGE_TOO_LARGE, f"topic {topic!r}", why)

    async def flush(self) -> None:
        """Send all records now, without lingering, and wait for the outcomes of those.

        Records that are sent meanwhile prolong it only as far as they share a batch with these.
        """
        await self.delivery.flush()

    async def close(self) -> None:
        """Flush and stop; ``send`` raises at once. If cancelled, unwritten records fail."""
        self.refuses = _closed
        # Senders that wait for room must see that it is closed.
        self.memory.wake()
        try:
            if self.transactions is not None:
                await self.transactions.close()
            await self.flush()
            if (sending := self.delivery.work.task(TOMBSTONES)) is not None:
                await asyncio.wait([sending], timeout=LAST_WAIT_S)
        finally:
            await self.delivery.close()

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the figures as {group: {name: value}}, by Kafka's names."""
        delivery, memory = self.delivery, self.memory
        in_flight = len(delivery.flights.under_way)
        return {"producer-metrics": delivery.figures.shown(memory.limit, memory.used, in_flight)}

    def refuse_when_closed(self) -> None:
        """Raise why no record is accepted: ``close`` has begun, or no transaction is open."""
        if self.refuses is not None:
            raise self.refuses()

    @property
    def is_closing(self) -> bool:
        """Whether ``close`` has begun."""
        return self.refuses is _closed

    async def topic(self, name: str, *, for_records: bool = True) -> Topic:
        """Return the metadata of a topic; waits for them. Raises as ``send`` does.

        ``for_records=False``: also where no record is accepted now.
        """
        if for_records:
            self.refuse_when_closed()
        topic = self._cluster.view.topics.get(name)
        if topic is None or topic.error:
            block_ms, create = self.settings.max_block_ms, self.settings.create_topics
            topics = await self._cluster.topics([name], timeout_ms=block_ms, create=create)
            if for_records:
                self.refuse_when_closed()
            return topics[name]
        return topic

    async def wait_for_room(self, size: int) -> None:
        """Wait for memory for a record of ``size`` bytes. Raises GaveUp after ``max_block_ms``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.max_block_ms / 1000
        while not self.memory.has_room(size):
            waiter = self.memory.waiter()
            # While a record waits for room, no batch lingers.
            self.delivery.drain()
            await asyncio.wait([waiter], timeout=max(0.0, deadline - loop.time()))
            self.refuse_when_closed()
            if not waiter.done() and loop.time() >= deadline:
                raise self.no_room()

    def no_room(self) -> GaveUp:
        """Return the error of a record that found no memory in time."""
        text = (
            f"no memory for a record within {self.settings.max_block_ms} ms: "
            f"{self.memory.used} bytes are unacknowledged"
        )
        held = self.turning.held_bytes()
        if held:
            text += (
                f", {sum(held.values())} of them wait for the end of a resize "
                f"(topic {', '.join(sorted(held))})"
            )
        return GaveUp(self.delivery.work.because(text))


def size_of(headers: Sequence[Header]) -> int:
    """Return the bytes of headers as they are sent, without lengths."""
    return sum(len(name.encode()) + len(content or b"") for name, content in headers)


def _closed() -> WrongState:
    return WrongState("this producer is closed: open another one")
