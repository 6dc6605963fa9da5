"""The resize epochs of a topic for one sender: which records go, and which wait for older batches.

Owns which count and resize epoch a topic's new records are hashed under, the records that are held,
and the rule that says for how long. Without a clock or a connection. Not when metadata are looked
at, and what becomes of the records: see ``turning``. Source: docs/design/elastic.md, "Producers".

| the topic | a new record | until |
|---|---|---|
| is steady | is hashed under the stamp, and goes | metadata have another stamp |
| was refused | is held: how it is hashed is not known | metadata are newer than the refusal |
| turns | is hashed under the stamp; is held if its partition is shut | no older batch is open |

While a topic turns, a partition is **shut** as long as a batch of an older stamp has no outcome in
a partition from which keys may come to it. It is never shut for the rest of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tidelog.client.errors import Refused
from tidelog.client.metadata import ClusterMetadata, Topic
from tidelog.client.producing.held_records import HeldRecord
from tidelog.client.producing.send_queue import ProducerBatch, SendQueue
from tidelog.client.stamps import Stamp, is_newer, stamp_of
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.lineage import modulus_of
from tidelog.partitioning.older_keys import ALONE, ANY, OlderKeys
from tidelog.protocol.primitives import NO_UUID
from tidelog.records.builder import Producer


@dataclass(frozen=True, slots=True, eq=False)
class OlderBatch:
    """A batch of an older stamp that had no outcome when the topic got another one."""

    queue: SendQueue
    batch: ProducerBatch
    modulus: int
    """Which keys are at home in its partition under its stamp, see ``partitioning.older_keys``."""

    @property
    def is_on_its_way(self) -> bool:
        """Whether a broker has it and has not answered."""
        return self.batch in self.queue.in_flight

    def holds_up(self, stamp: Stamp | None) -> bool:
        """Whether records under a stamp wait for it.

        One of a topic that was deleted and created again since matters only while it is on its way.
        """
        own = self.batch.stamp
        return own is None or stamp is None or is_same(own, stamp) or self.is_on_its_way


@dataclass(slots=True, eq=False)
class TopicEpochs:
    """What new records of a topic are hashed under, and those that are held."""

    seen: Topic
    stamp: Stamp | None
    view: ClusterMetadata | None = None
    """The metadata that were checked last."""
    queues: dict[int, SendQueue] = field(default_factory=dict)
    """The queues of new records, by partition."""
    former: Producer | None = None
    """The identity of the time before the topic became ordered, or ceased to be."""
    is_turning: bool = False
    refused: Stamp | None = None
    """What a leader refused: metadata must be newer."""
    refused_by: int = -1
    older: list[OlderBatch] = field(default_factory=list)
    shut: OlderKeys | None = None
    """Where keys of older batches may come to, as they were checked last."""
    held: list[HeldRecord] = field(default_factory=list)
    """Records that are hashed at the next check of metadata that are new enough."""
    gated: dict[int, list[HeldRecord]] = field(default_factory=dict)
    """Records that wait for older batches, by their partitions under the stamp."""

    # What is held

    def all_held(self) -> Iterator[HeldRecord]:
        """Yield every record that is held, in no order."""
        yield from self.held
        for records in self.gated.values():
            yield from records

    def take_held(self) -> list[HeldRecord]:
        """Return every record that is held, in the order of ``send``, and hold none of them."""
        records = sorted(self.all_held(), key=lambda record: record.number)
        self.held, self.gated = [], {}
        return records

    def take_late(self, now: float) -> list[HeldRecord]:
        """Return the held records whose deadline is over, and hold them no longer."""
        late = [record for record in self.all_held() if record.deadline <= now]
        self.held = [record for record in self.held if record.deadline > now]
        left = {
            partition: [record for record in records if record.deadline > now]
            for partition, records in self.gated.items()
        }
        self.gated = {partition: records for partition, records in left.items() if records}
        return late

    # What waits for what

    def awaits(self, stamp: Stamp | None) -> bool:
        """Whether a leader refused what metadata of this stamp do not explain yet."""
        return self.refused is not None and not is_newer(stamp, self.refused)

    def is_shut(self, partition: int) -> bool:
        """Whether records of a partition wait for older batches."""
        return partition in self.gated or (self.shut is not None and self.shut.holds(partition))

    def turn_to(
        self, newest: Topic, stamp: Stamp | None, queues: Iterable[SendQueue], is_by_key: bool
    ) -> None:
        """Hash new records under another stamp; what has no outcome of former ones is older.

        ``is_by_key``: partitions are chosen by the hash of the key; otherwise keys have no order
        over resizes, and a batch holds up its own partition alone.
        """
        former = {left.batch: left for older in self.older for left in _left_of(older)}
        self.older = [
            former.get(batch) or OlderBatch(queue, batch, self._modulus(batch, is_by_key))
            for queue in queues
            for batch in queue.undetermined()
        ]
        self.seen, self.stamp = newest, stamp
        self.refused, self.is_turning = None, True
        self.queues.clear()

    def _modulus(self, batch: ProducerBatch, is_by_key: bool) -> int:
        """Return the modulus of a batch of the present stamp."""
        stamp, partition = batch.stamp, batch.partition.partition
        if stamp is None or batch.is_fixed or not is_by_key or partition >= stamp.undeleted_count:
            return ALONE
        if stamp != self.stamp:
            return ANY
        return modulus_of(partition, self.seen.initial_partition_count, stamp.undeleted_count)

    def check_older(self) -> None:
        """Forget the older batches that have their outcome, and see what the others hold up.

        Grows with the older batches.
        """
        self.older = [left for older in self.older for left in _left_of(older)]
        stamp, initial = self.stamp, self.seen.initial_partition_count
        self.shut = OlderKeys(None if stamp is None else initial, self.seen.count)
        for older in self.older:
            if older.holds_up(stamp):
                self.shut.add(older.batch.partition.partition, older.modulus)

    @property
    def may_end(self) -> bool:
        """Whether no older batch holds any record up."""
        return not self.held and not any(older.holds_up(self.stamp) for older in self.older)

    def opened(self) -> list[HeldRecord]:
        """Return the records of partitions that are not shut any more, in the order of ``send``."""
        assert self.shut is not None
        open_ones = [partition for partition in self.gated if not self.shut.holds(partition)]
        records = [record for partition in open_ones for record in self.gated.pop(partition)]
        return sorted(records, key=lambda record: record.number)

    # Partitions

    def why_not(self, partition: int) -> Refused | None:
        """Return why a partition that the caller named takes no record; None: it does."""
        subject = str(TopicPartition(self.seen.name, partition))
        listed = self.seen.partitions.get(partition)
        if listed is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject)
        if self.stamp is not None and listed.is_retired:
            why = f"it is retired since resize epoch {listed.retirement_epoch}"
            return Refused(ErrorCode.POLICY_VIOLATION, subject, why)
        return None

    def partition_epoch(self, partition: int) -> int:
        """Return the incarnation that a record of a partition is for."""
        return -1 if self.stamp is None else self.seen.partitions[partition].partition_epoch

    def has_use_for(self, queue: SendQueue) -> bool:
        """Whether a queue has batches, or may get new ones."""
        if not queue.empty:
            return True
        listed = self.seen.partitions.get(queue.partition.partition)
        is_ordered = queue.partition_epoch >= 0
        if listed is None or is_ordered is (self.stamp is None):
            return False
        return not is_ordered or queue.partition_epoch == listed.partition_epoch


def _left_of(older: OlderBatch) -> Iterator[OlderBatch]:
    """Yield what is left of an older batch: itself, or its halves, without those with outcomes."""
    if not older.batch.done:
        yield older
    for half in older.batch.halves:
        yield from _left_of(OlderBatch(older.queue, half, older.modulus))


def is_same(one: Stamp, other: Stamp) -> bool:
    """Whether two stamps are of one incarnation of their topic."""
    return one.topic_id == other.topic_id


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
    present, stamp = stamp_of(newest), batch.stamp
    if present is None or stamp is None or present.topic_id != stamp.topic_id:
        return False
    if present.resize_epoch <= stamp.resize_epoch:
        return False
    listed = newest.partitions.get(queue.partition.partition)
    return listed is None or listed.partition_epoch != queue.partition_epoch
