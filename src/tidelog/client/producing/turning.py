"""Resizes of topics that are written: a record waits for the older ones of its keys. Pure.

Owns what is taken back when a topic is resized, and the way of the records that are held: events
in, decisions out, without a loop, a clock or a connection. Not which records wait, and for what:
see ``topic_epochs``. Not when metadata are checked, and what the decisions do: see
``topic_follower``. Source: docs/design/elastic.md, "Producers".

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

==============================  ================================================================
event                           decisions
==============================  ================================================================
metadata of a topic (``saw``)   batches taken back, records in batches, or held, or failed
a leader's refusal              the batch, and what was never sent, taken back
a record of a turning topic     held, until its deadline at most
a deadline (``expired``)        the records that are late; when to check again
an error of the whole producer  every record that is held
==============================  ================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.client.errors import ClientError, GaveUp, Refused
from tidelog.client.metadata import Topic
from tidelog.client.producing.held_records import HeldRecord, records_of
from tidelog.client.producing.partitioner import PartitionChooser
from tidelog.client.producing.send_queue import BatchResult, ProducerBatch, SendQueue, SendTally
from tidelog.client.producing.send_queues import SendQueues
from tidelog.client.producing.topic_epochs import TopicEpochs, is_of_former, was_removed
from tidelog.client.stamps import Stamp, is_newer, stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import NewRecord, Producer


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch was opened after ``former``, which is full.

    ``deadline``: that of its records, which were held; None: they are new.
    """

    queue: SendQueue
    batch: ProducerBatch
    former: ProducerBatch | None
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class TookBack:
    """A batch is certainly not in the log, and is no batch any longer: its records are held."""

    batch: ProducerBatch
    records: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A batch has failed: no leader can say whether it was written."""

    batch: ProducerBatch


@dataclass(frozen=True, slots=True)
class HeldFailed:
    """Records that were held fail."""

    records: Sequence[HeldRecord]
    error: ClientError


@dataclass(frozen=True, slots=True)
class Holds:
    """Records of a topic are held until this time at most, on the loop's clock; None: none are."""

    topic: str
    until: float | None


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Metadata of a topic are older than a refusal: the broker that refused knows newer ones."""

    topic: str


Decision = Opened | TookBack | Lost | HeldFailed | Holds | AskAgain


class TopicTurning:
    """The topics of one producer, and their records on the way into batches.

    ``is_by_key``: partitions are chosen by the hash of the key, see ``TopicEpochs.turn_to``.
    """

    def __init__(
        self, queues: SendQueues, chooser: PartitionChooser, *, is_by_key: bool = True
    ) -> None:
        self.topics: dict[str, TopicEpochs] = {}
        self._queues = queues
        self._chooser = chooser
        self._is_by_key = is_by_key
        self._decided: list[Decision] = []

    def epochs_of(self, topic: Topic) -> TopicEpochs:
        """Return what new records of a topic are hashed under; at first, what it shows now."""
        epochs = self.topics.get(topic.name)
        if epochs is None:
            epochs = self.topics[topic.name] = TopicEpochs(topic, stamp_of(topic))
        return epochs

    # Events

    def saw(
        self, epochs: TopicEpochs, newest: Topic | None, identity: Producer | None
    ) -> list[Decision]:
        """Follow the newest metadata of a topic; ``identity``: the producer's present one."""
        if newest is None or newest.error:
            return []
        stamp = stamp_of(newest)
        if not epochs.is_turning and stamp == epochs.stamp:
            epochs.seen = newest
        elif epochs.awaits(stamp):
            self._decided.append(AskAgain(newest.name))
        elif stamp == epochs.stamp and epochs.refused is None:
            epochs.seen = newest
            self._go_on(epochs)
        else:
            self._turn_to(epochs, newest, stamp, identity)
        return self._taken()

    def refused(
        self, queue: SendQueue, batch: ProducerBatch, result: BatchResult, newest: Topic | None
    ) -> list[Decision] | None:
        """Take a batch back that its leader refused after a resize; None: it was not for that.

        ``newest``: the metadata of its topic.
        """
        error = result.error
        if not isinstance(error, Refused) or batch.stamp is None or batch.done:
            return None
        epochs = self.topics[queue.partition.topic]
        is_former = error.retriable and is_of_former(queue, batch, newest)
        if not is_former and error.code != ErrorCode.INVALID_PARTITION_METADATA:
            return None
        # A batch of an older stamp is refused for what metadata have shown meanwhile.
        is_unexplained = not is_former and not is_newer(epochs.stamp, batch.stamp)
        if not epochs.is_turning or (is_unexplained and epochs.refused is None):
            self._begin_turn(epochs)
        if is_unexplained:
            epochs.refused_by = result.node_id
            epochs.refused = batch.stamp
        self._take_back(epochs, queue, batch)
        return self._taken()

    def hold(
        self, epochs: TopicEpochs, record: HeldRecord, partition: int | None = None
    ) -> list[Decision]:
        """Keep a record until its partition opens, or how it is hashed is known (None)."""
        self._hold(epochs, record, partition)
        return self._taken()

    def expired(self, epochs: TopicEpochs, now: float) -> tuple[list[HeldRecord], float | None]:
        """Return the records whose deadline is over, which are held no longer, and the next one."""
        late = epochs.take_late(now)
        return late, min((record.deadline for record in epochs.all_held()), default=None)

    def failed(self, error: ClientError) -> list[Decision]:
        """Fail every record that is held: the whole producer has failed, or ends."""
        for name, epochs in self.topics.items():
            held = epochs.take_held()
            self._decided += [Holds(name, None), HeldFailed(held, error)]
        return self._taken()

    def holds_before(self, number: tuple[int, ...]) -> bool:
        """Whether a record before a place in the order of ``send`` is held."""
        return any(
            held.number < number for epochs in self.topics.values() for held in epochs.all_held()
        )

    def held_bytes(self) -> dict[str, int]:
        """Return the memory of the records that are held, of each topic that has such."""
        sizes = {
            name: sum(record.size for record in epochs.all_held())
            for name, epochs in self.topics.items()
        }
        return {name: size for name, size in sizes.items() if size}

    def _taken(self) -> list[Decision]:
        decided, self._decided = self._decided, []
        return decided

    # Partitions and batches of new records

    def home_now(self, epochs: TopicEpochs, key: bytes | None, partition: int | None) -> int | None:
        """Return the partition of a new record while its topic turns; None: it is not known yet."""
        if epochs.refused is not None:
            return None
        return self.home_of(epochs, key) if partition is None else partition

    def home_of(self, epochs: TopicEpochs, key: bytes | None) -> int:
        """Return the partition of a record under the stamp; without a key, one that is not shut."""
        home = self._chooser.choose(epochs.seen, key)
        if key is None and epochs.is_shut(home):
            return self._chooser.choose_another(epochs.seen, epochs.is_shut)
        return home

    def queue_of(self, epochs: TopicEpochs, partition: int) -> SendQueue:
        """Return the queue of new records of a partition."""
        queue = epochs.queues.get(partition)
        if queue is None:
            place = TopicPartition(epochs.seen.name, partition)
            epoch = epochs.partition_epoch(partition)
            queue = epochs.queues[partition] = self._queues.get(place, epoch, epochs.former)
        return queue

    def append(
        self,
        epochs: TopicEpochs,
        partition: int,
        record: NewRecord,
        is_fixed: bool = False,
        tally: SendTally | None = None,
        held: HeldRecord | None = None,
    ) -> tuple[ProducerBatch, Opened | None]:
        """Add a record to the last batch of its partition, or to a new one, which is returned.

        ``held``: the record, if it was held; its place is then before those of later ones.
        """
        queue = epochs.queues.get(partition) or self.queue_of(epochs, partition)
        batch = queue.last
        number = () if held is None else held.number
        if (
            batch is not None
            and batch.tally is tally
            and batch.is_fixed is is_fixed
            and batch.stamp == epochs.stamp
            and (not number or batch.number < number)
        ):
            if batch.builder.append(*record):
                return batch, None
            if record.key is None:
                self._chooser.batch_filled(epochs.seen.name)
        opened = queue.open(tally, stamp=epochs.stamp, is_fixed=is_fixed, held=number)
        opened.builder.append(*record)
        if held is None:
            return opened, Opened(queue, opened, batch)
        # It may be taken back before its time-out is set: its records keep theirs.
        opened.deadline = held.deadline
        return opened, Opened(queue, opened, batch, held.deadline)

    def _place(self, epochs: TopicEpochs, held: HeldRecord) -> None:
        """Hash a record that was held, and add it to a batch, hold it for its partition, or fail
        it."""
        partition = held.partition
        if partition is None:
            try:
                partition = self.home_of(epochs, held.record.key)
            except ClientError as error:
                self._decided.append(HeldFailed([held], error))
                return
        elif (why := epochs.why_not(partition)) is not None:
            self._decided.append(HeldFailed([held], why))
            return
        if epochs.is_shut(partition):
            self._hold(epochs, held, partition)
        else:
            self._put(epochs, partition, held)

    def _put(self, epochs: TopicEpochs, partition: int, held: HeldRecord) -> None:
        """Add a record that was held to a batch of its partition."""
        is_fixed = held.partition is not None
        batch, opened = self.append(epochs, partition, held.record, is_fixed, held.tally, held)
        if opened is not None:
            self._decided.append(opened)
        if held.outcome is not None:
            batch.outcomes.append(held.outcome)
        batch.size += held.size

    def _hold(self, epochs: TopicEpochs, record: HeldRecord, partition: int | None = None) -> None:
        if partition is None:
            epochs.held.append(record)
        else:
            epochs.gated.setdefault(partition, []).append(record)
        self._decided.append(Holds(epochs.seen.name, record.deadline))

    # Turns

    def _begin_turn(self, epochs: TopicEpochs) -> None:
        """Take back what was never sent."""
        epochs.is_turning = True
        for queue in self._queues.of_topic(epochs.seen.name):
            for batch in queue.unsent():
                self._take_back(epochs, queue, batch)

    def _turn_to(
        self, epochs: TopicEpochs, newest: Topic, stamp: Stamp | None, identity: Producer | None
    ) -> None:
        """Hash under another stamp what was never sent and what is held."""
        self._begin_turn(epochs)
        self._drop_queues(epochs)
        if (stamp is None) != (epochs.stamp is None):
            # The same logs go on, in queues that number their batches from 0.
            epochs.former = identity
        queues = self._queues.of_topic(epochs.seen.name)
        epochs.turn_to(newest, stamp, queues, self._is_by_key)
        epochs.held = epochs.take_held()
        # The sticky partition was chosen among the former ones.
        self._chooser.batch_filled(newest.name)
        self._go_on(epochs)

    def _go_on(self, epochs: TopicEpochs) -> None:
        """Let records go that wait for no older batch any more, and end the turn if all do."""
        self._let_go(epochs)
        epochs.check_older()
        # Sorted: what was taken back last was sent first.
        held, epochs.held = sorted(epochs.held, key=lambda record: record.number), []
        for record in held:
            self._place(epochs, record)
        for record in epochs.opened():
            self._place(epochs, record)
        if epochs.may_end:
            epochs.is_turning, epochs.shut = False, None
            self._drop_queues(epochs)
        if not epochs.gated:
            self._decided.append(Holds(epochs.seen.name, None))

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
                why = "it was removed before a leader could say whether this was written"
                gave_up = GaveUp(f"{queue.partition}: {why}: it may be written")
                gave_up.__cause__ = batch.trouble
                queue.fail(batch, gave_up)
                self._decided.append(Lost(batch))

    def _drop_queues(self, epochs: TopicEpochs) -> None:
        """Forget queues that are empty and of a former incarnation or order of their topic."""
        for queue in self._queues.of_topic(epochs.seen.name):
            if not epochs.has_use_for(queue):
                self._queues.drop(queue)

    def _take_back(self, epochs: TopicEpochs, queue: SendQueue, batch: ProducerBatch) -> None:
        records = records_of(batch, batch.deadline)
        self._decided.append(TookBack(batch, len(records)))
        queue.take_back(batch)
        for record in records:
            self._hold(epochs, record)
