"""Delivery of batches to the leaders of their partitions: requests in flight, retries, deadlines.

Owns the way of a batch from its queue to its outcome: leaders, connections, requests, the
producer's identity. Not what is put into batches: see ``sender``. Not order and sequence numbers of
one partition: see ``send_queue``. Not what follows when a topic is resized: see
``topic_follower``. Not when a request has waited for too long: see ``unanswered``.

Bounds: ``max_in_flight`` requests per connection; a broker has one, or a few (``lanes``). Work per
wake-up grows with the partitions that have records.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import (
    ClientError,
    ConnectionLost,
    GaveUp,
    Refused,
    TakenOver,
    WrongState,
)
from tidelog.client.metadata import NO_LEADER
from tidelog.client.producing.batch_times import BatchTimes
from tidelog.client.producing.broker_work import BrokerWork
from tidelog.client.producing.earliest_timer import EarliestTimer
from tidelog.client.producing.figures import SendFigures
from tidelog.client.producing.flights import Flight, Flights, SentBatch
from tidelog.client.producing.lanes import Lane
from tidelog.client.producing.produce_requests import produce_request, read_answer
from tidelog.client.producing.producer_identity import next_identity
from tidelog.client.producing.send_memory import SendMemory, Waiters
from tidelog.client.producing.send_queue import BatchResult, ProducerBatch, SendQueue
from tidelog.client.producing.send_queues import SendQueues
from tidelog.client.producing.settings import SendSettings
from tidelog.client.producing.unanswered import Unanswered
from tidelog.client.stamps import Stamp
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.builder import Producer

CLOSED = "the producer was closed before this was written"
TRIED = "the producer was closed before this was acknowledged: it may be written"
"""The outcomes of records that were sent to no leader, and of those that were."""


class TopicEvents(Protocol):
    """What follows for topics from what becomes of their batches; see ``topic_follower``."""

    def check(self) -> None:
        """Follow what metadata say of the topics, before batches are sent."""

    def took_back(self, queue: SendQueue, batch: ProducerBatch, result: BatchResult) -> bool:
        """Whether a batch was taken back, because its leader refused it after a resize."""

    def acknowledged(self, queue: SendQueue, batch: ProducerBatch) -> None:
        """Do what follows when a batch is in the log."""

    def failed(self, error: ClientError) -> None:
        """Fail what is in no batch: the whole producer has failed, or ends."""

    def hold_before(self, number: tuple[int, ...]) -> bool:
        """Whether a record before a place in the order of ``send`` is in no batch."""


class TransactionGate(Protocol):
    """Which batches a transactional producer may send now; see ``transactional``."""

    def check(self) -> None:
        """Fail what is never sent, because its transaction is given up."""

    def wants(self, partition: TopicPartition) -> None:
        """Let a partition be added to the transaction: it has a batch."""

    def may_send(self, queue: SendQueue) -> bool:
        """Whether batches of a queue may go out: its partition is in the transaction."""

    def lost(self, error: ClientError) -> None:
        """Note that records have failed."""


class _NoTopics:
    """Topics of which nothing follows."""

    def check(self) -> None: ...

    def took_back(self, queue: SendQueue, batch: ProducerBatch, result: BatchResult) -> bool:
        return False

    def acknowledged(self, queue: SendQueue, batch: ProducerBatch) -> None: ...

    def failed(self, error: ClientError) -> None: ...

    def hold_before(self, number: tuple[int, ...]) -> bool:
        return False


class BatchDelivery:
    """Sends the batches of a producer's queues, and gives them their outcomes."""

    def __init__(
        self, cluster: Cluster, settings: SendSettings, queues: SendQueues, memory: SendMemory
    ) -> None:
        self.settings = settings
        self.queues = queues
        self.memory = memory
        self.topics: TopicEvents = _NoTopics()
        self.transactions: TransactionGate | None = None
        self.figures = SendFigures()
        self.identity: Producer | None = None
        self.flights = Flights()
        self.work = BrokerWork(cluster, self.drain, self.fail_all)
        self.times = BatchTimes(self._expire)
        self.timer = EarliestTimer(self.drain)
        """When the first batch is due that lingers, or waits after a refusal."""
        self.connections: dict[Lane, ClientConnection] = {}
        self.owes_turn = False
        """Whether a batch was filled since callers last gave the loop a turn to send it."""
        self._cluster = cluster
        self._unanswered = Unanswered(cluster, settings, self.flights, self.work, self._give_up)
        self._idle = Waiters()
        """The waits for outcomes."""
        self._flushing = 0
        self._closed = False

    @property
    def timeout_s(self) -> float:
        """How long a record may take to its outcome."""
        return self.settings.delivery_timeout_ms / 1000

    def opened(
        self,
        queue: SendQueue,
        batch: ProducerBatch,
        former: ProducerBatch | None,
        deadline: float | None = None,
    ) -> None:
        """Set the times of a batch that was opened after ``former``, which is full.

        ``deadline``: that of records that have waited before; they do not linger. Otherwise they
        have the whole time-out.
        """
        if former is not None:
            self.times.linger(former, 0.0)
        now = asyncio.get_running_loop().time()
        due = now + (self.settings.linger_ms / 1000 if deadline is None else 0.0)
        self.times.linger(batch, due)
        if deadline is None:
            deadline = now + self.timeout_s
        self.times.expire_at(deadline, queue, batch)
        if self.transactions is not None:
            self.transactions.wants(queue.partition)
        is_full = len(queue.waiting) > 1
        self.timer.set(0.0 if is_full else due)
        self.owes_turn |= is_full
        if self._cluster.expired:
            # In the background: added partitions are seen within metadata_max_age_ms.
            self.work.run("metadata", self._cluster.refresh)

    def took_back(self, batch: ProducerBatch, records: int) -> None:
        """Forget a batch whose records are held from now on."""
        self.times.forget(batch)
        self.figures.records_rehashed += records

    @property
    def waits_for(self) -> str:
        """What keeps records back: a producer id, or the last trouble; "" for nothing."""
        if any(queue.waiting and queue.needs_identity(self.identity) for queue in self.queues):
            return self.work.because("a producer id, which a broker gets from the controller")
        return str(self.work.trouble or "")

    # The end

    async def flush(self) -> None:
        """Send all records now, without lingering, and wait for the outcomes of those.

        Records that are sent meanwhile prolong it only as far as they share a batch with these.
        """
        self._flushing += 1
        end = self.queues.next_number()
        try:
            while self.topics.hold_before(end) or self.queues.have_before(end):
                # Before the round: what it fails for good wakes this, too.
                outcome = self._idle.add()
                self.drain()
                await outcome
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """Send nothing further; batches without an outcome fail."""
        self._closed = True
        self.work.close()
        self.timer.stop()
        self._unanswered.stop()
        for queue in self.queues:
            for batch in (*queue.waiting, *queue.in_flight):
                queue.fail(batch, WrongState(TRIED if batch.attempts else CLOSED))
                self.finish(batch)
        self.topics.failed(WrongState(CLOSED))
        await self.work.stop()

    # The brokers' side

    def drain(self) -> None:
        """Send every batch that may be sent; called after every change of state."""
        if self._closed:
            return
        transactions = self.transactions
        if transactions is not None:
            transactions.check()
        # Both before the round: what they take back, or give up, is to be sent in it.
        self.topics.check()
        self._give_up_moved()
        now = asyncio.get_running_loop().time()
        groups: dict[Lane, list[SendQueue]] = {}
        lost: list[SendQueue] = []
        next_check: float | None = None
        hurry = self._flushing > 0 or self.memory.is_awaited
        for queue in self.queues:
            if not queue.waiting:
                continue
            due = 0.0 if hurry else self.times.due(queue.waiting[0])
            due = max(due, queue.not_before)
            if due > now:
                next_check = due if next_check is None else min(next_check, due)
                continue
            if transactions is not None:
                if not transactions.may_send(queue):
                    continue
            elif queue.needs_identity(self.identity):
                self.work.run("identity", self._new_identity)
            if queue.next(self.identity) is None:
                continue
            leader = self.leader_of(queue.partition)
            if leader == NO_LEADER:
                lost.append(queue)
                continue
            lane = self.flights.lanes.of(leader, queue.partition, self._cluster.view)
            # What is in flight elsewhere could be appended after what is sent now (promise 5).
            if queue.may_go_to(lane):
                groups.setdefault(lane, []).append(queue)
        if lost:
            self.work.run("leaders", partial(self._find_leaders, lost))
        for lane, queues in groups.items():
            self._send_to(lane, queues)
        if next_check is not None:
            self.timer.set(next_check)

    def leader_of(self, partition: TopicPartition) -> int:
        """Return the leader that metadata name, if they know where it is; otherwise NO_LEADER."""
        view = self._cluster.view
        listed = view.partition(partition)
        return NO_LEADER if listed is None or listed.leader not in view.brokers else listed.leader

    def _send_to(self, lane: Lane, queues: list[SendQueue]) -> None:
        connection = self.connections.get(lane)
        if connection is None or connection.closed:
            self.work.run(("connection", lane), partial(self._connect, lane))
            return
        while queues and self.flights.counts[lane] < self.settings.max_in_flight:
            batches: list[tuple[SendQueue, ProducerBatch, bytes]] = []
            size = 0
            left: list[SendQueue] = []
            stamps: dict[str, Stamp | None] = {}
            for queue in queues:
                batch = queue.next(self.identity)
                if batch is None:
                    continue
                is_full = size and size + batch.size > self.settings.max_request_bytes
                # A request has batches of one resize epoch per topic.
                if is_full or stamps.setdefault(queue.partition.topic, batch.stamp) != batch.stamp:
                    left.append(queue)
                    continue
                listed = self._cluster.view.partition(queue.partition)
                epoch = -1 if listed is None else listed.leader_epoch
                data = queue.sent(batch, lane, epoch)
                self.times.went(batch)
                size += len(data)
                batches.append((queue, batch, data))
            if batches:
                self._submit(lane, connection, batches)
            queues = left

    def _submit(
        self,
        lane: Lane,
        connection: ClientConnection,
        batches: list[tuple[SendQueue, ProducerBatch, bytes]],
    ) -> None:
        timeout_ms = self._cluster.settings.request_timeout_ms
        pieces = [(queue.partition, queue.stamp_of(batch), data) for queue, batch, data in batches]
        transactional_id = self.settings.transactional_id
        request = produce_request(pieces, self.settings.acks, timeout_ms, transactional_id)
        sent = [(queue, batch) for queue, batch, _ in batches]
        try:
            answer = connection.submit(request, None, timeout_ms, answered=self.settings.acks != 0)
        except ClientError as error:
            for queue, batch in sent:
                self._settle(queue, batch, BatchResult(error))
            return
        self.figures.sent(len(batches), sum(len(data) for _, _, data in batches))
        sent_at = asyncio.get_running_loop().time()
        open_ones = [SentBatch(queue, batch, batch.attempts) for queue, batch in sent]
        flight = Flight(lane, connection, sent_at, open_ones)
        self.flights.began(flight)
        answer.add_done_callback(partial(self._answered, flight))
        self._unanswered.watch()

    def _answered(
        self, flight: Flight, answer: asyncio.Future[messages.ProduceResponse | None]
    ) -> None:
        node_id = flight.lane.node_id
        self.flights.ended(flight)
        error = answer.exception()
        self.figures.answered(asyncio.get_running_loop().time() - flight.sent_at)
        # What was given up meanwhile is sent again: its outcome comes with that.
        sent = [(one.queue, one.batch) for one in flight.sent if one.is_open]
        results: dict[TopicPartition, BatchResult] = {}
        if error is None:
            response = answer.result()
            if response is None:
                results = {queue.partition: BatchResult(None) for queue, _ in sent}
            else:
                results = read_answer(response, node_id)
        elif not isinstance(error, ClientError):
            error = ClientError(f"producing failed: {error!r}")
        for queue, batch in sent:
            missing = error or ClientError(
                f"the response of broker {node_id} lacks {queue.partition}"
            )
            self._settle(queue, batch, results.get(queue.partition) or BatchResult(missing))
        self.drain()

    def _give_up_moved(self) -> None:
        """Give up what is with a former leader; what its connection brings is not read then."""
        for queue in self.flights.taken_over(self._cluster.view):
            why = f"the leader of {queue.partition} did not respond, and another one leads now"
            if self.settings.acks == 0:
                # What was written counts as sent, as always: it is not written twice.
                for lane in self.flights.lanes_of(queue):
                    self._cluster.close_connection(lane.node_id, lane.purpose, why)
                continue
            self._give_up(queue, why)
            for lane in self.flights.abandoned():
                self._cluster.close_connection(lane.node_id, lane.purpose, why)

    def _give_up(self, queue: SendQueue, why: str) -> None:
        """Let what a queue has in flight be sent again."""
        self.figures.records_retried += queue.give_up(TakenOver(why))

    def _settle(self, queue: SendQueue, batch: ProducerBatch, result: BatchResult) -> None:
        if self.topics.took_back(queue, batch, result):
            return
        if queue.answered(batch, result):
            self._inherit(queue, batch)
            self.finish(batch)
            self.work.succeeded()
            if queue.is_known:
                # It is in the log, a duplicate included.
                self.figures.records_sent += batch.builder.count
                self.topics.acknowledged(queue, batch)
            return
        self.figures.records_retried += batch.builder.count
        self._cluster.forget()
        wait_s = self._cluster.settings.backoff.pause_s(min(batch.attempts - 1, 20))
        queue.not_before = asyncio.get_running_loop().time() + wait_s
        self.work.run("leaders", partial(self._find_leaders, [queue]))

    def _inherit(self, queue: SendQueue, batch: ProducerBatch) -> None:
        """Transfer memory and deadline of a split batch to its halves."""
        if not batch.halves:
            return
        for half in batch.halves:
            half.size = batch.size // len(batch.halves)
            self.memory.used += half.size
            self.times.expire_at(batch.deadline, queue, half)

    def finish(self, batch: ProducerBatch) -> None:
        """Give back what a batch had, which has its outcome."""
        if batch.failure is not None:
            self.figures.records_failed += batch.builder.count
            self.lost(batch.failure)
            batch.failure = None
        self.times.forget(batch)
        size, batch.size = batch.size, 0
        self.free(size)

    def lost(self, error: ClientError) -> None:
        """Note that records have failed: their transaction cannot be committed."""
        if self.transactions is not None:
            self.transactions.lost(error)

    def free(self, size: int) -> None:
        """Give memory back, and let those check again that wait for outcomes."""
        self.memory.free(size)
        self._idle.wake()

    def _expire(self, queue: SendQueue, batch: ProducerBatch) -> None:
        if not batch.done:
            lasted_ms = self.settings.delivery_timeout_ms
            text = f"{queue.partition}: not delivered within {lasted_ms} ms"
            trouble = batch.trouble or self.work.trouble
            gave_up = GaveUp(f"{text}; {trouble}" if trouble else text)
            gave_up.__cause__ = trouble
            queue.fail(batch, gave_up)
            self.finish(batch)
            self.drain()

    def fail_all(self, error: ClientError) -> None:
        """Fail everything that waits to be sent: no partition can continue."""
        for queue in self.queues:
            self._fail_waiting(queue, error)
        self.topics.failed(error)

    def _fail_waiting(self, queue: SendQueue, error: ClientError) -> None:
        for batch in list(queue.waiting):
            queue.fail(batch, error)
            self.finish(batch)

    async def _connect(self, lane: Lane) -> None:
        self.flights.connecting[lane] = asyncio.get_running_loop().time()
        self._unanswered.watch()
        try:
            self.connections[lane] = await self._cluster.connection(lane.node_id, lane.purpose)
        except ConnectionLost:
            # The leader may have changed.
            await self._cluster.refresh()
            raise
        finally:
            del self.flights.connecting[lane]

    async def _find_leaders(self, queues: list[SendQueue]) -> None:
        """Find the leaders of these partitions; a final error fails only its partition.

        Each partition without a leader backs off before the next lookup: otherwise every response
        for another partition would cause a lookup. Grows with the partitions; they share a metadata
        request.
        """
        backoff = self._cluster.settings.backoff
        lost: ClientError | None = None
        for queue in queues:
            try:
                await self._cluster.leader(queue.partition)
            except ClientError as error:
                if isinstance(error, Refused) and not error.retriable:
                    self._fail_waiting(queue, error)
                    continue
                wait_s = backoff.pause_s(queue.failed_lookups)
                queue.failed_lookups += 1
                again = asyncio.get_running_loop().time() + wait_s
                queue.not_before = max(queue.not_before, again)
                if not isinstance(error, Refused):
                    # No broker responds: that holds for all of them.
                    raise
                lost = error
            else:
                queue.failed_lookups = 0
        if lost is not None:
            raise lost

    async def _new_identity(self) -> None:
        self.identity = await next_identity(self._cluster, self.identity)
