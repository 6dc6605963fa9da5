"""Delivery of batches to the leaders of their partitions: requests in flight, retries, deadlines.

Owns the way of a batch from its queue to its outcome: leaders, connections, requests, memory, the
producer's identity. Not what is put into batches: see ``sender``. Not order and sequence numbers of
one partition: see ``send_queue``. Not what follows when a topic is resized: see ``turning``.

Bounds: ``max_in_flight`` requests per broker. Work per wake-up grows with the partitions that have
records.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ClientError, ConnectionLost, GaveUp, Refused, TakenOver
from tidelog.client.metadata import NO_LEADER
from tidelog.client.producing.figures import SendFigures
from tidelog.client.producing.flights import Flight, Flights, SentBatch
from tidelog.client.producing.partitioner import PartitionChooser
from tidelog.client.producing.produce_requests import produce_request, read_answer
from tidelog.client.producing.producer_identity import next_identity
from tidelog.client.producing.send_queue import (
    BatchResult,
    ProducerBatch,
    SendQueue,
    SendTally,
)
from tidelog.client.producing.settings import ALL, SendSettings
from tidelog.client.stamps import Stamp
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.builder import Producer
from tidelog.records.compression import CODEC_NAMES
from tidelog.runtime.clock import Clock, RealClock

PURPOSE = "produce"

QueueKey = tuple[TopicPartition, int]
"""A partition and its epoch: one incarnation; -1 for a topic that is not ordered."""


class BatchDelivery:
    """Sends the batches of its queues."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SendSettings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings or SendSettings()
        if self._settings.idempotent and self._settings.acks != ALL:
            raise ClientError("an idempotent producer needs acks=all")
        if self._settings.compression not in CODEC_NAMES:
            raise ClientError(
                f"compression {self._settings.compression!r} is unknown: "
                f"use one of {', '.join(CODEC_NAMES)}"
            )
        self._codec = CODEC_NAMES[self._settings.compression]
        self._clock = clock or RealClock()
        self._chooser = PartitionChooser(
            cluster.settings.backoff.random, self._settings.partitioner
        )
        self._queues: dict[QueueKey, SendQueue] = {}
        self._numbers = itertools.count(1)
        """Numbers of batches in the order of ``send``."""
        self._identity: Producer | None = None
        self._connections: dict[int, ClientConnection] = {}
        self._in_flight: dict[int, int] = {}
        self._flights = Flights()
        self._watch: asyncio.TimerHandle | None = None
        self._tasks: dict[Any, asyncio.Task[None]] = {}
        self._buffered = 0
        self._room: list[asyncio.Future[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._due: dict[ProducerBatch, float] = {}
        self._deadlines: dict[ProducerBatch, asyncio.TimerHandle] = {}
        self.figures = SendFigures()
        self._flushing = 0
        self.owes_turn = False
        """Whether a batch was filled since callers last gave the loop a turn to send it."""
        self._is_closing = False
        """Whether ``close`` has begun: no new records, but accepted ones are still written."""
        self._closed = False
        self._failures = 0
        self._trouble: ClientError | None = None
        """The last error on the way to the brokers; None while there is none."""

    def _queue(
        self, where: TopicPartition, partition_epoch: int, former: Producer | None = None
    ) -> SendQueue:
        key = (where, partition_epoch)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = SendQueue(
                where,
                self._settings.max_in_flight,
                idempotent=self._settings.idempotent,
                batch_bytes=self._settings.batch_bytes,
                codec=self._codec,
                partition_epoch=partition_epoch,
                numbers=self._numbers,
                retries=self._settings.retries,
                former=former,
            )
        return queue

    def _next_batch(
        self,
        queue: SendQueue,
        former: ProducerBatch | None,
        tally: SendTally | None,
        stamp: Stamp | None,
        is_fixed: bool,
        deadline: float | None = None,
        held: tuple[int, ...] = (),
    ) -> ProducerBatch:
        """Open a batch after the last one, which is full and need not linger.

        ``deadline``, ``held``: of records that waited before, see ``SendQueue.open``; otherwise
        they have the whole time-out.
        """
        if former is not None:
            self._due[former] = 0.0
        batch = queue.open(tally, stamp=stamp, is_fixed=is_fixed, held=held)
        now = asyncio.get_running_loop().time()
        linger_s = self._settings.linger_ms / 1000 if deadline is None else 0.0
        self._due[batch] = now + linger_s
        if deadline is None:
            deadline = now + self._settings.delivery_timeout_ms / 1000
        self._expire_at(deadline, queue, batch)
        is_full = len(queue.waiting) > 1
        self._drain_at(0.0 if is_full else self._due[batch])
        self.owes_turn |= is_full
        if self._cluster.expired:
            # In the background: added partitions are seen within metadata_max_age_ms.
            self._run("metadata", self._cluster.refresh)
        return batch

    def _expire_at(self, deadline: float, queue: SendQueue, batch: ProducerBatch) -> None:
        loop = asyncio.get_running_loop()
        batch.deadline = deadline
        self._deadlines[batch] = loop.call_at(deadline, self._expire, queue, batch)

    # What a layer above decides

    def _look_at_topics(self) -> None:
        """Follow what metadata say of the topics, before batches are sent."""

    def _took_back(self, queue: SendQueue, batch: ProducerBatch, answer: BatchResult) -> bool:
        """Whether a batch was taken back, because its leader refused it after a resize."""
        return False

    def _acknowledged(self, queue: SendQueue, batch: ProducerBatch) -> None:
        """Do what follows when a batch is in the log."""

    # The brokers' side

    def _drain_at(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = loop.call_at(max(when, loop.time()), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._drain()

    def _drain(self) -> None:
        """Send every batch that may be sent; called after every change of state."""
        if self._closed:
            return
        self._look_at_topics()
        self._give_up_moved()
        now = asyncio.get_running_loop().time()
        groups: dict[int, list[SendQueue]] = {}
        lost: list[SendQueue] = []
        next_look: float | None = None
        hurry = self._flushing > 0 or bool(self._room)
        for queue in self._queues.values():
            if not queue.waiting:
                continue
            due = 0.0 if hurry else self._due.get(queue.waiting[0], 0.0)
            due = max(due, queue.not_before)
            if due > now:
                next_look = due if next_look is None else min(next_look, due)
                continue
            if queue.needs_identity(self._identity):
                self._run("identity", self._new_identity)
            if queue.next(self._identity) is None:
                continue
            leader = self._leader_of(queue.partition)
            if leader == NO_LEADER:
                lost.append(queue)
            elif queue.may_go_to(leader):
                groups.setdefault(leader, []).append(queue)
        if lost:
            self._run("leaders", partial(self._find_leaders, lost))
        for node_id, queues in groups.items():
            self._send_to(node_id, queues)
        if next_look is not None:
            self._drain_at(next_look)

    def _leader_of(self, partition: TopicPartition) -> int:
        found = self._cluster.view.partition(partition)
        if found is None or found.leader not in self._cluster.view.brokers:
            return NO_LEADER
        return found.leader

    def _send_to(self, node_id: int, queues: list[SendQueue]) -> None:
        connection = self._connections.get(node_id)
        if connection is None or connection.closed:
            self._run(("connection", node_id), partial(self._connect, node_id))
            return
        while queues and self._in_flight.get(node_id, 0) < self._settings.max_in_flight:
            batches: list[tuple[SendQueue, ProducerBatch, bytes]] = []
            size = 0
            left: list[SendQueue] = []
            stamps: dict[str, Stamp | None] = {}
            for queue in queues:
                batch = queue.next(self._identity)
                if batch is None:
                    continue
                is_full = size and size + batch.size > self._settings.max_request_bytes
                # A request has batches of one resize epoch per topic.
                if is_full or stamps.setdefault(queue.partition.topic, batch.stamp) != batch.stamp:
                    left.append(queue)
                    continue
                found = self._cluster.view.partition(queue.partition)
                epoch = -1 if found is None else found.leader_epoch
                data = queue.sent(batch, node_id, epoch)
                self._due.pop(batch, None)
                size += len(data)
                batches.append((queue, batch, data))
            if batches:
                self._submit(node_id, connection, batches)
            queues = left

    def _submit(
        self,
        node_id: int,
        connection: ClientConnection,
        batches: list[tuple[SendQueue, ProducerBatch, bytes]],
    ) -> None:
        timeout_ms = self._cluster.settings.request_timeout_ms
        pieces = [(queue.partition, queue.stamp_of(batch), data) for queue, batch, data in batches]
        request = produce_request(pieces, self._settings.acks, timeout_ms)
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        sent = [(queue, batch) for queue, batch, _ in batches]
        try:
            answer = connection.submit(request, None, timeout_ms, answered=self._settings.acks != 0)
        except ClientError as error:
            self._in_flight[node_id] -= 1
            for queue, batch in sent:
                self._settle(queue, batch, BatchResult(error))
            return
        self.figures.sent(len(batches), sum(len(data) for _, _, data in batches))
        sent_at = asyncio.get_running_loop().time()
        open_ones = [SentBatch(queue, batch, batch.attempts) for queue, batch in sent]
        flight = Flight(node_id, connection, sent_at, open_ones)
        self._flights.under_way.append(flight)
        answer.add_done_callback(partial(self._answered, flight))
        self._watch_silent()

    def _answered(
        self, flight: Flight, answer: asyncio.Future[messages.ProduceResponse | None]
    ) -> None:
        node_id = flight.node_id
        self._in_flight[node_id] -= 1
        self._flights.under_way.remove(flight)
        error = answer.exception()
        self.figures.answered(asyncio.get_running_loop().time() - flight.sent_at)
        sent = [(each.queue, each.batch) for each in flight.sent if each.is_open]
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
        self._drain()

    # Brokers that are silent

    def _watch_silent(self) -> None:
        """Ask for metadata when a broker does not answer: another one may lead by then."""
        waits = self._settings.idempotent or self._settings.acks == 0 or self._flights.connecting
        if self._watch is None and waits:
            now = asyncio.get_running_loop().time()
            if (when := self._flights.next_look(now)) is not None:
                self._watch = asyncio.get_running_loop().call_at(when, self._look_for_silent)

    def _look_for_silent(self) -> None:
        self._watch = None
        silent = self._flights.silent(asyncio.get_running_loop().time())
        if silent and not self._closed:
            self._run("silent", partial(self._ask_others, silent))
        self._watch_silent()

    async def _ask_others(self, silent: set[int]) -> None:
        """Ask other brokers than those that are silent for metadata."""
        for node_id in silent:
            if (broker := self._cluster.view.brokers.get(node_id)) is not None:
                self._cluster.note_silent(broker.peer)
        await self._cluster.refresh()

    def _give_up_moved(self) -> None:
        """Give up what is with a former leader; what its connection brings is not read then."""
        for queue in self._flights.taken_over(self._cluster.view):
            said = f"the leader of {queue.partition} did not respond, and another one leads now"
            if self._settings.acks == 0:
                # What was written counts as sent, as always: it is not written twice.
                for node_id in self._flights.brokers_of(queue):
                    self._cluster.close_connection(node_id, PURPOSE, said)
                continue
            self.figures.records_retried += queue.give_up(TakenOver(said))
            for node_id in self._flights.abandoned():
                self._cluster.close_connection(node_id, PURPOSE, said)

    def _settle(self, queue: SendQueue, batch: ProducerBatch, answer: BatchResult) -> None:
        if self._took_back(queue, batch, answer):
            return
        if queue.answered(batch, answer):
            self._inherit(queue, batch)
            self._finish(batch)
            self._failures = 0
            if queue.is_known:
                # It is in the log, a duplicate included.
                self.figures.records_sent += batch.builder.count
                self._acknowledged(queue, batch)
            return
        self.figures.records_retried += batch.builder.count
        self._cluster.forget()
        wait_s = self._cluster.settings.backoff.pause_s(min(batch.attempts - 1, 20))
        queue.not_before = asyncio.get_running_loop().time() + wait_s
        self._run("leaders", partial(self._find_leaders, [queue]))

    def _inherit(self, queue: SendQueue, batch: ProducerBatch) -> None:
        """Transfer memory and deadline of a split batch to its halves."""
        if not batch.halves:
            return
        until = batch.deadline
        for half in batch.halves:
            half.size = batch.size // len(batch.halves)
            self._buffered += half.size
            self._expire_at(until, queue, half)

    def _finish(self, batch: ProducerBatch) -> None:
        if batch.failed:
            self.figures.records_failed += batch.builder.count
            batch.failed = False
        self._buffered -= batch.size
        batch.size = 0
        self._due.pop(batch, None)
        deadline = self._deadlines.pop(batch, None)
        if deadline is not None:
            deadline.cancel()
        self._wake(self._room)
        self._wake(self._idle)

    def _wake(self, waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        waiters.clear()

    def _expire(self, queue: SendQueue, batch: ProducerBatch) -> None:
        if not batch.done:
            lasted = self._settings.delivery_timeout_ms
            said = f"{queue.partition}: not delivered within {lasted} ms"
            trouble = batch.trouble or self._trouble
            gave_up = GaveUp(f"{said}; {trouble}" if trouble else said)
            gave_up.__cause__ = trouble
            queue.fail(batch, gave_up)
            self._finish(batch)
            self._drain()

    # Work that waits

    def _run(self, key: Any, work: Any) -> None:
        """Run a task, one at a time per key, and call ``_drain`` when it ends."""
        if key in self._tasks or self._closed:
            return
        task = asyncio.get_running_loop().create_task(work())
        self._tasks[key] = task
        task.add_done_callback(partial(self._work_ended, key))

    def _work_ended(self, key: Any, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._failures = 0
            self._trouble = None
            self._drain()
        elif isinstance(error, ClientError):
            self._failures += 1
            self._trouble = error
            wait_s = self._cluster.settings.backoff.pause_s(self._failures - 1)
            self._cluster.forget()
            asyncio.get_running_loop().call_later(wait_s, self._drain)
            if isinstance(error, Refused) and not error.retriable:
                # No producer id: without it no partition can continue.
                self._fail_all(error)
        else:
            self._fail_all(ClientError(f"producing failed: {error!r}"))

    def _fail_all(self, error: ClientError) -> None:
        for queue in self._queues.values():
            self._fail_waiting(queue, error)

    def _fail_waiting(self, queue: SendQueue, error: ClientError) -> None:
        for batch in list(queue.waiting):
            queue.fail(batch, error)
            self._finish(batch)

    async def _connect(self, node_id: int) -> None:
        self._flights.connecting[node_id] = asyncio.get_running_loop().time()
        self._watch_silent()
        try:
            self._connections[node_id] = await self._cluster.connection(node_id, PURPOSE)
        except ConnectionLost:
            # The leader may have changed.
            await self._cluster.refresh()
            raise
        finally:
            del self._flights.connecting[node_id]

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
        self._identity = await next_identity(self._cluster, self._identity)
