"""Resizes of a topic that is written: a record waits for the older ones of its keys.

Owns when metadata of a topic are looked at, what is taken back then, and the way of the records
that are held. Not which records wait, and for what: see ``topic_epochs``. Not the requests: see
``delivery``. Source: docs/design/elastic.md, "Producers".

When metadata have another stamp, the batches that were never sent are taken back, and everything
that is held is hashed under it, in the order of ``send``. What falls to a partition that is shut is
held until it opens; all other records go. A batch without an outcome is sent again to its
partition under its numbers, until its delivery time-out. One that a leader refused is certainly not
in the log: it is taken back, too, and precedes what is held for its keys. So no record of a key
passes an earlier one, and a partition that is stuck holds up only those whose keys it may have.

A refusal that metadata do not explain yet holds the whole topic: how its records are hashed is not
known. The broker that refused is asked for metadata, and another one when it is silent.

Two outcomes come from metadata. A batch that was refused, of a topic that was deleted and created
again since, is taken back: whatever its former topic had is gone. A batch whose partition was
retired and removed fails at once: no leader can say any longer whether it was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, GaveUp, Refused
from tidelog.client.metadata import Topic
from tidelog.client.producing.ancestor_tombstones import AncestorTombstones
from tidelog.client.producing.delivery import BatchDelivery
from tidelog.client.producing.held_records import HeldRecord, records_of
from tidelog.client.producing.record_metadata import OpenOutcome
from tidelog.client.producing.send_queue import (
    BatchResult,
    ProducerBatch,
    SendQueue,
    SendTally,
)
from tidelog.client.producing.settings import SendSettings
from tidelog.client.producing.topic_epochs import TopicEpochs, is_of_former, was_removed
from tidelog.client.stamps import Stamp, is_newer, stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord
from tidelog.runtime.clock import Clock

TOMBSTONES = "tombstones"
"""The task that sends ancestor tombstones."""


class TurningDelivery(BatchDelivery):
    """A delivery that follows the resizes of its topics."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SendSettings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(cluster, settings, clock=clock)
        self._topics: dict[str, TopicEpochs] = {}
        self._tombstones = AncestorTombstones(cluster, self._clock)

    def _epochs_of(self, known: Topic) -> TopicEpochs:
        """Return what a record of a topic that is sent now is hashed under."""
        epochs = self._topics.get(known.name)
        if epochs is None:
            epochs = self._topics[known.name] = TopicEpochs(known, stamp_of(known))
        newest = self._cluster.view.topics.get(known.name)
        if newest is not epochs.seen:
            self._look(epochs, newest)
        return epochs

    def _queue_of(self, epochs: TopicEpochs, partition: int) -> SendQueue:
        """Return the queue of new records of a partition."""
        queue = epochs.queues.get(partition)
        if queue is None:
            where = TopicPartition(epochs.seen.name, partition)
            epoch = epochs.partition_epoch(partition)
            queue = epochs.queues[partition] = self._queue(where, epoch, epochs.former)
        return queue

    def _append(
        self,
        epochs: TopicEpochs,
        partition: int,
        record: NewRecord,
        is_fixed: bool = False,
        tally: SendTally | None = None,
        deadline: float | None = None,
        held: tuple[int, ...] = (),
    ) -> ProducerBatch:
        """Add a record to the last batch of its partition, or to a new one."""
        queue = epochs.queues.get(partition) or self._queue_of(epochs, partition)
        batch = queue.last
        if (
            batch is not None
            and batch.tally is tally
            and batch.is_fixed is is_fixed
            and batch.stamp == epochs.stamp
            and (not held or batch.number < held)
        ):
            if batch.builder.append(*record):
                return batch
            if record.key is None:
                self._chooser.batch_filled(epochs.seen.name)
        batch = self._next_batch(queue, batch, tally, epochs.stamp, is_fixed, deadline, held)
        batch.builder.append(*record)
        return batch

    def _place(self, epochs: TopicEpochs, held: HeldRecord) -> None:
        """Hash a record that was held, and add it to a batch, hold it for its partition, or fail
        it."""
        partition = held.partition
        if partition is None:
            try:
                partition = self._home_of(epochs, held.record.key)
            except ClientError as error:
                self._fail_records([held], error)
                return
        elif (why := epochs.why_not(partition)) is not None:
            self._fail_records([held], why)
            return
        if epochs.is_shut(partition):
            self._hold(epochs, held, partition)
        else:
            self._put(epochs, partition, held)

    def _home_now(
        self, epochs: TopicEpochs, key: bytes | None, partition: int | None
    ) -> int | None:
        """Return the partition of a new record while its topic turns; None: it is not known yet."""
        if epochs.refused is not None:
            return None
        return self._home_of(epochs, key) if partition is None else partition

    def _home_of(self, epochs: TopicEpochs, key: bytes | None) -> int:
        """Return the partition of a record under the stamp; without a key, one that is not shut."""
        place = self._chooser.choose(epochs.seen, key)
        if key is None and epochs.is_shut(place):
            return self._chooser.choose_another(epochs.seen, epochs.is_shut)
        return place

    def _put(self, epochs: TopicEpochs, partition: int, held: HeldRecord) -> None:
        """Add a record that was held to a batch of its partition."""
        batch = self._append(
            epochs,
            partition,
            held.record,
            is_fixed=held.partition is not None,
            tally=held.tally,
            deadline=held.deadline,
            held=held.number,
        )
        if held.outcome is not None:
            batch.outcomes.append(held.outcome)
        batch.size += held.size

    def _hold(self, epochs: TopicEpochs, record: HeldRecord, partition: int | None = None) -> None:
        """Keep a record until its partition opens, or the stamp is known, or its deadline."""
        if partition is None:
            epochs.held.append(record)
        else:
            epochs.gated.setdefault(partition, []).append(record)
        if epochs.timer is None or epochs.timer_at > record.deadline:
            self._stop_timer(epochs)
            loop = asyncio.get_running_loop()
            epochs.timer_at = record.deadline
            epochs.timer = loop.call_at(record.deadline, self._expire_held, epochs)

    def _hold_new(
        self,
        epochs: TopicEpochs,
        record: NewRecord,
        size: int,
        partition: int | None = None,
        outcome: OpenOutcome | None = None,
        tally: SendTally | None = None,
        place: int | None = None,
    ) -> None:
        """Keep a record that is sent while its topic turns; ``place``: its partition, if known."""
        timeout_s = self._settings.delivery_timeout_ms / 1000
        deadline = asyncio.get_running_loop().time() + timeout_s
        number = (next(self._numbers),)
        held = HeldRecord(number, record, size, deadline, partition, outcome, tally)
        self._hold(epochs, held, place)

    def _holds_before(self, number: tuple[int, ...]) -> bool:
        """Whether a record before a place in the order of ``send`` is held."""
        return any(
            held.number < number for epochs in self._topics.values() for held in epochs.all_held()
        )

    def _acknowledged(self, queue: SendQueue, batch: ProducerBatch) -> None:
        if batch.stamp is None or queue.partition.partition < self._initial_of(queue):
            return
        if self._tombstones.note(queue.partition, batch.stamp, batch.encode()):
            self._run(TOMBSTONES, self._tombstones.send)

    def _initial_of(self, queue: SendQueue) -> int:
        return self._topics[queue.partition.topic].seen.initial_partition_count

    # Turns

    def _look_at_topics(self) -> None:
        for name, epochs in self._topics.items():
            newest = self._cluster.view.topics.get(name)
            if epochs.is_turning or newest is not epochs.seen:
                self._look(epochs, newest)

    def _look(self, epochs: TopicEpochs, newest: Topic | None) -> None:
        """Follow the newest metadata of a topic."""
        if newest is None or newest.error:
            return
        found = stamp_of(newest)
        if not epochs.is_turning and found == epochs.stamp:
            epochs.seen = newest
        elif epochs.awaits(found):
            self._run(("resized", newest.name), partial(self._ask_again, epochs))
        elif found == epochs.stamp and epochs.refused is None:
            epochs.seen = newest
            self._go_on(epochs)
        else:
            self._turn_to(epochs, newest, found)

    def _queues_of(self, epochs: TopicEpochs) -> list[SendQueue]:
        name = epochs.seen.name
        return [queue for queue in self._queues.values() if queue.partition.topic == name]

    def _begin_turn(self, epochs: TopicEpochs) -> None:
        """Take back what was never sent."""
        epochs.is_turning = True
        for queue in self._queues_of(epochs):
            for batch in queue.unsent():
                self._take_back(epochs, queue, batch)

    def _turn_to(self, epochs: TopicEpochs, newest: Topic, found: Stamp | None) -> None:
        """Hash under another stamp what was never sent and what is held."""
        self._begin_turn(epochs)
        self._drop_queues(epochs)
        if (found is None) != (epochs.stamp is None):
            # The same logs go on, in queues that number their batches from 0.
            epochs.former = self._identity
        is_by_key = self._settings.partitioner is None
        epochs.turn_to(newest, found, self._queues_of(epochs), is_by_key)
        epochs.held = epochs.take_held()
        self._chooser.batch_filled(newest.name)
        self._go_on(epochs)

    def _go_on(self, epochs: TopicEpochs) -> None:
        """Let records go that wait for no older batch any more, and end the turn if all do."""
        self._let_go(epochs)
        epochs.look_at_older()
        held, epochs.held = sorted(epochs.held, key=lambda record: record.number), []
        for record in held:
            self._place(epochs, record)
        for record in epochs.opened():
            self._place(epochs, record)
        if epochs.may_end:
            epochs.is_turning, epochs.shut = False, None
            self._drop_queues(epochs)
        if not epochs.gated:
            self._stop_timer(epochs)

    def _let_go(self, epochs: TopicEpochs) -> None:
        """Take back, or fail, the older batches that no leader will ever acknowledge."""
        for older in epochs.older:
            queue, batch = older.queue, older.batch
            if batch.done or older.is_on_its_way:
                continue
            if is_of_former(queue, batch, epochs.seen):
                # Otherwise it may be on the way to a broker that still has the former topic.
                if isinstance(batch.trouble, Refused):
                    self._take_back(epochs, queue, batch)
            elif was_removed(queue, batch, epochs.seen):
                said = "it was removed before a leader could say whether this was written"
                gave_up = GaveUp(f"{queue.partition}: {said}: it may be written")
                gave_up.__cause__ = batch.trouble
                queue.fail(batch, gave_up)
                self._finish(batch)

    def _drop_queues(self, epochs: TopicEpochs) -> None:
        """Forget queues that are empty and of a former incarnation or order of their topic."""
        for key, queue in list(self._queues.items()):
            if queue.partition.topic == epochs.seen.name and not epochs.has_use_for(queue):
                del self._queues[key]

    def _take_back(self, epochs: TopicEpochs, queue: SendQueue, batch: ProducerBatch) -> None:
        self._deadlines.pop(batch).cancel()
        self._due.pop(batch, None)
        records = records_of(batch, batch.deadline)
        self.figures.records_rehashed += len(records)
        queue.take_back(batch)
        for record in records:
            self._hold(epochs, record)

    def _took_back(self, queue: SendQueue, batch: ProducerBatch, answer: BatchResult) -> bool:
        error = answer.error
        if not isinstance(error, Refused) or batch.stamp is None or batch.done:
            return False
        epochs = self._topics[queue.partition.topic]
        is_former = error.retriable and is_of_former(
            queue, batch, self._cluster.view.topics.get(queue.partition.topic)
        )
        if not is_former and error.code != ErrorCode.INVALID_PARTITION_METADATA:
            return False
        is_refusal = not is_former and not is_newer(epochs.stamp, batch.stamp)
        if not epochs.is_turning or (is_refusal and epochs.refused is None):
            self._begin_turn(epochs)
        if is_refusal:
            epochs.refused_by = answer.node_id
            epochs.refused = batch.stamp
        self._take_back(epochs, queue, batch)
        return True

    async def _ask_again(self, epochs: TopicEpochs) -> None:
        """Ask the broker that refused a batch for metadata: it knows the newer resize epoch."""
        name = epochs.seen.name
        await self._cluster.describe([name], first=epochs.refused_by)
        newest = self._cluster.view.topics.get(name)
        if newest is None or epochs.awaits(stamp_of(newest)):
            raise Refused(ErrorCode.INVALID_PARTITION_METADATA, f"topic {name!r}")

    def _stop_timer(self, epochs: TopicEpochs) -> None:
        if epochs.timer is not None:
            epochs.timer.cancel()
            epochs.timer = None

    def _expire_held(self, epochs: TopicEpochs) -> None:
        epochs.timer = None
        now = asyncio.get_running_loop().time()
        late = epochs.take_late(now)
        lasted = self._settings.delivery_timeout_ms
        said = f"{epochs.seen.name}: not delivered within {lasted} ms, while it was resized"
        self._fail_records(late, GaveUp(f"{said}; {self._trouble}" if self._trouble else said))
        first = min((record.deadline for record in epochs.all_held()), default=None)
        if first is not None:
            loop = asyncio.get_running_loop()
            epochs.timer_at = first
            epochs.timer = loop.call_at(first, self._expire_held, epochs)

    def _fail_held(self, error: ClientError) -> None:
        for epochs in self._topics.values():
            held = epochs.take_held()
            self._stop_timer(epochs)
            self._fail_records(held, error)

    def _fail_records(self, records: Sequence[HeldRecord], error: ClientError) -> None:
        self.figures.records_failed += len(records)
        for record in records:
            record.fail(error)
            self._buffered -= record.size
        self._wake(self._room)
        self._wake(self._idle)

    def _fail_all(self, error: ClientError) -> None:
        super()._fail_all(error)
        self._fail_held(error)
