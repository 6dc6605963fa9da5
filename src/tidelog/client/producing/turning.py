"""Resizes of a topic that is written: its records wait until every older batch is determined.

Owns which count and resize epoch a topic's new records are hashed under, and the records that wait
while these change. Not the requests: see ``delivery``. Source: docs/design/elastic.md, "Producers".

| a topic is | new records are | until |
|---|---|---|
| steady | hashed under the stamp, for ever | metadata have another stamp, or a 1253 comes |
| turning | held, in the order of ``send`` | metadata are newer, no older batch is undetermined |

At the beginning of a turn the batches that were never sent are taken back. While it turns, so are
those that leaders refuse: they are certainly not in the log. A batch without an outcome is sent
again to its partition under its numbers, until its delivery time-out. At the end everything that is
held is hashed under the new stamp, in the order of ``send``: so no record of a key passes an
earlier one.

Two outcomes come from metadata. A batch that was refused, of a topic that was deleted and created
again since, is taken back: whatever its former topic had is gone. A batch whose partition was
retired and removed fails at once: no leader can say any longer whether it was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, ConnectionLost, GaveUp, Refused
from tidelog.client.metadata import ClusterMetadata, Topic
from tidelog.client.producing.ancestor_tombstones import AncestorTombstones
from tidelog.client.producing.delivery import BatchDelivery
from tidelog.client.producing.record_metadata import OpenOutcome
from tidelog.client.producing.send_queue import (
    BatchResult,
    ProducerBatch,
    SendQueue,
    SendTally,
)
from tidelog.client.producing.settings import SendSettings
from tidelog.client.stamps import Stamp, is_newer, stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.builder import NewRecord, Producer
from tidelog.records.reader import read_batch
from tidelog.runtime.clock import Clock

TOMBSTONES = "tombstones"
"""The task that sends ancestor tombstones."""


@dataclass(slots=True, eq=False)
class HeldRecord:
    """A record that waits for the end of a turn. ``partition``: the caller named it."""

    number: tuple[int, ...]
    """Its place in the order of ``send``, among records of other batches."""
    record: NewRecord
    size: int
    deadline: float
    partition: int | None = None
    outcome: OpenOutcome | None = None
    tally: SendTally | None = None

    def fail(self, error: ClientError) -> None:
        """Say that it was not written."""
        if self.outcome is not None and not self.outcome[0].done():
            self.outcome[0].set_exception(error)
        if self.tally is not None:
            self.tally.fail(1, error)


def records_of(batch: ProducerBatch, deadline: float) -> list[HeldRecord]:
    """Return the records of a batch that was taken back, with their outcomes and memory."""
    records = read_batch(batch.encode())
    share, rest = divmod(batch.size, len(records))
    return [
        HeldRecord(
            batch.number,
            NewRecord(record.timestamp, record.key, record.value, list(record.headers)),
            share + (rest if index == 0 else 0),
            deadline,
            batch.partition.partition if batch.is_fixed else None,
            None if batch.tally is not None else batch.outcomes[index],
            batch.tally,
        )
        for index, record in enumerate(records)
    ]


@dataclass(slots=True, eq=False)
class TopicEpochs:
    """What new records of a topic are hashed under, and those that are held while it turns."""

    seen: Topic
    stamp: Stamp | None
    view: ClusterMetadata | None = None
    """The metadata that were looked at last."""
    queues: dict[int, SendQueue] = field(default_factory=dict)
    """The queues of new records, by partition."""
    former: Producer | None = None
    """The identity of the time before the topic became ordered, or ceased to be."""
    is_turning: bool = False
    refused: Stamp | None = None
    """What a leader refused in this turn: metadata must be newer."""
    refused_by: int = -1
    held: list[HeldRecord] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    timer_at: float = 0.0

    def may_end(self, found: Stamp | None, undetermined: Sequence[ProducerBatch]) -> bool:
        """Whether a turn may end with metadata of this stamp.

        A batch of a topic that was deleted and created again since waits for nothing.
        """
        if self.refused is not None and not is_newer(found, self.refused):
            return False
        return not any(
            batch.stamp is None or found is None or batch.stamp.topic_id == found.topic_id
            for batch in undetermined
        )

    def why_not(self, partition: int) -> Refused | None:
        """Return why a partition that the caller named takes no record; None: it does."""
        where = TopicPartition(self.seen.name, partition)
        listed = self.seen.partitions.get(partition)
        if listed is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(where))
        if self.stamp is not None and listed.is_retired:
            said = f"it is retired since resize epoch {listed.retirement_epoch}"
            return Refused(ErrorCode.POLICY_VIOLATION, str(where), said)
        return None

    def partition_epoch(self, partition: int) -> int:
        """Return the incarnation that a record of a partition is for."""
        return -1 if self.stamp is None else self.seen.partitions[partition].partition_epoch


def is_of_former(queue: SendQueue, batch: ProducerBatch, newest: Topic | None) -> bool:
    """Whether a batch is of a topic that was deleted and created again since.

    A cluster numbers its partitions as it creates them. Where any of this other topic has a lower
    number, the metadata come from a broker that does not know of the deletion yet.
    """
    if batch.stamp is None or newest is None or newest.error:
        return False
    ids = batch.stamp.topic_id, newest.topic_id
    if NO_UUID in ids or ids[0] == ids[1] or not newest.partitions:
        return False
    return next(iter(newest.partitions.values())).partition_epoch > queue.partition_epoch


def was_removed(queue: SendQueue, batch: ProducerBatch, newest: Topic) -> bool:
    """Whether the incarnation of a partition that a batch is for was retired and removed since."""
    found, stamp = stamp_of(newest), batch.stamp
    if found is None or stamp is None or found.topic_id != stamp.topic_id:
        return False
    if found.resize_epoch <= stamp.resize_epoch:
        return False
    listed = newest.partitions.get(queue.partition.partition)
    return listed is None or listed.partition_epoch != queue.partition_epoch


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
        ):
            if batch.builder.append(*record):
                return batch
            if record.key is None:
                self._chooser.batch_filled(epochs.seen.name)
        batch = self._next_batch(queue, batch, tally, epochs.stamp, is_fixed, deadline, held)
        batch.builder.append(*record)
        return batch

    def _place(self, epochs: TopicEpochs, held: HeldRecord) -> None:
        """Hash a record that was held, and add it to a batch; or fail it."""
        partition = held.partition
        if partition is None:
            try:
                partition = self._chooser.choose(epochs.seen, held.record.key)
            except ClientError as error:
                self._fail_records([held], error)
                return
        elif (why := epochs.why_not(partition)) is not None:
            self._fail_records([held], why)
            return
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

    def _hold(self, epochs: TopicEpochs, record: HeldRecord) -> None:
        """Keep a record until the turn of its topic ends, or its deadline."""
        epochs.held.append(record)
        if epochs.timer is None or epochs.timer_at > record.deadline:
            if epochs.timer is not None:
                epochs.timer.cancel()
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
    ) -> None:
        """Keep a record that is sent while its topic turns."""
        timeout_s = self._settings.delivery_timeout_ms / 1000
        deadline = asyncio.get_running_loop().time() + timeout_s
        number = (next(self._numbers),)
        self._hold(epochs, HeldRecord(number, record, size, deadline, partition, outcome, tally))

    def _holds_before(self, number: tuple[int, ...]) -> bool:
        """Whether a record before a place in the order of ``send`` is held."""
        return any(held.number < number for epochs in self._topics.values() for held in epochs.held)

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
        if not epochs.is_turning:
            if found == epochs.stamp:
                epochs.seen = newest
                return
            self._begin_turn(epochs)
        self._let_go(epochs, newest)
        queues = self._queues_of(epochs)
        undetermined = [each for queue in queues for each in queue.undetermined()]
        in_flight = any(is_of_former(q, each, newest) for q in queues for each in q.in_flight)
        if epochs.may_end(found, undetermined) and not in_flight:
            self._end_turn(epochs, newest, found)
        elif epochs.refused is not None and not is_newer(found, epochs.refused):
            self._run(("resized", newest.name), partial(self._ask_again, epochs))

    def _queues_of(self, epochs: TopicEpochs) -> list[SendQueue]:
        name = epochs.seen.name
        return [queue for queue in self._queues.values() if queue.partition.topic == name]

    def _begin_turn(self, epochs: TopicEpochs) -> None:
        epochs.is_turning = True
        for queue in self._queues_of(epochs):
            for batch in queue.unsent():
                self._take_back(epochs, queue, batch)

    def _let_go(self, epochs: TopicEpochs, newest: Topic) -> None:
        """Take back, or fail, the waiting batches that no leader will ever acknowledge."""
        for queue in self._queues_of(epochs):
            for batch in list(queue.waiting):
                if is_of_former(queue, batch, newest):
                    # Otherwise it may be on the way to a broker that still has the former topic.
                    if isinstance(batch.trouble, Refused):
                        self._take_back(epochs, queue, batch)
                elif was_removed(queue, batch, newest):
                    said = "it was removed before a leader could say whether this was written"
                    gave_up = GaveUp(f"{queue.partition}: {said}: it may be written")
                    gave_up.__cause__ = batch.trouble
                    queue.fail(batch, gave_up)
                    self._finish(batch)

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
        if not epochs.is_turning:
            self._begin_turn(epochs)
        if not is_former:
            epochs.refused_by = answer.node_id
            # All batches of a topic that are on their way in one turn have the same stamp.
            epochs.refused = batch.stamp
        self._take_back(epochs, queue, batch)
        return True

    async def _ask_again(self, epochs: TopicEpochs) -> None:
        """Ask the broker that refused a batch for metadata: it knows the newer resize epoch."""
        name = epochs.seen.name
        try:
            await self._cluster.describe([name], node_id=epochs.refused_by)
        except ConnectionLost:
            await self._cluster.refresh()
        newest = self._cluster.view.topics.get(name)
        if newest is None or not is_newer(stamp_of(newest), epochs.refused):
            raise Refused(ErrorCode.INVALID_PARTITION_METADATA, f"topic {name!r}")

    def _end_turn(self, epochs: TopicEpochs, newest: Topic, found: Stamp | None) -> None:
        is_switch = (found is None) != (epochs.stamp is None)
        if is_switch:
            # The same logs go on, in queues that number their batches from 0.
            epochs.former = self._identity
        epochs.seen, epochs.stamp = newest, found
        epochs.is_turning, epochs.refused = False, None
        epochs.queues.clear()
        for key, queue in list(self._queues.items()):
            if queue.partition.topic == newest.name and is_switch:
                del self._queues[key]
            elif queue.partition.topic == newest.name and queue.empty:
                listed = newest.partitions.get(queue.partition.partition)
                if listed is None or queue.partition_epoch not in (-1, listed.partition_epoch):
                    del self._queues[key]
        held, epochs.held = sorted(epochs.held, key=lambda record: record.number), []
        self._stop_timer(epochs)
        self._chooser.batch_filled(newest.name)
        for record in held:
            self._place(epochs, record)

    def _stop_timer(self, epochs: TopicEpochs) -> None:
        if epochs.timer is not None:
            epochs.timer.cancel()
            epochs.timer = None

    def _expire_held(self, epochs: TopicEpochs) -> None:
        epochs.timer = None
        now = asyncio.get_running_loop().time()
        late = [record for record in epochs.held if record.deadline <= now]
        epochs.held = [record for record in epochs.held if record.deadline > now]
        lasted = self._settings.delivery_timeout_ms
        said = f"{epochs.seen.name}: not delivered within {lasted} ms, while it was resized"
        self._fail_records(late, GaveUp(f"{said}; {self._trouble}" if self._trouble else said))
        if epochs.held:
            first = min(record.deadline for record in epochs.held)
            loop = asyncio.get_running_loop()
            epochs.timer_at = first
            epochs.timer = loop.call_at(first, self._expire_held, epochs)

    def _fail_held(self, error: ClientError) -> None:
        for epochs in self._topics.values():
            held, epochs.held = epochs.held, []
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
